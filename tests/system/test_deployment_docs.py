"""The commands of docs/deployment.md, in their order, on a server and two workstations."""

from __future__ import annotations

import re
import shutil
from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.support.commands import ROOT, environment, search_path
from tests.support.host import Host
from tests.support.hosts import Hosts
from tests.support.part import connects, wait_until
from tests.support.places import AGENT_PORT, SUPERLINK_PORT, host_names
from tests.support.runs import result_of

pytestmark = [pytest.mark.system, pytest.mark.deployed, pytest.mark.timeout(900)]

PAGE = ROOT / "docs" / "deployment.md"
#: Rows of the page's table "Files that change hands": file of one, and as what the other has it.
TO_SERVER = {
    "supernode-key.pub": "supernode-{client}.pub",
    "keys/member.toml": "member-{client}.toml",
}
TO_WORKSTATION = {"tls/ca.crt": "ca.crt", "roster.toml": "roster.toml"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block of shell commands.

    Attributes:
        where: ``server`` or ``workstation``: the last that the text before it names in bold.
        commands: As they stand on the page.
    """

    where: str
    commands: str


def blocks_of(page: str) -> list[Block]:
    found = []
    where = ""
    for match in re.finditer(
        r"\*\*(server|workstation)\*\*|^```(\w*)\n(.*?)^```$", page, re.M | re.S
    ):
        if match[1]:
            where = match[1]
        elif match[2] == "sh":
            found.append(Block(where=where, commands=match[3]))
    return found


def with_values(commands: str, values: dict[str, str]) -> str:
    """Give the variables that the page asks its reader to set the values of a machine."""
    for name, value in values.items():
        commands, times = re.subn(rf"^{name}=.*$", f"{name}={value}", commands, flags=re.M)
        assert times == 1, f"{name} is not set by {commands}"
    return commands


class Reader:
    """Somebody who follows the page on three machines."""

    def __init__(self, hosts: Hosts, folder: Path, blocks: list[Block]) -> None:
        self.hosts = hosts
        self._folder = folder
        self._opening: dict[str, str] = {}
        self.steps: list[Block] = []
        for block in blocks:
            if block.where in self._opening:
                self.steps.append(block)
            else:
                self._opening[block.where] = block.commands

    def home(self, host: Host) -> Path:
        home = self._folder / host.name
        home.mkdir(exist_ok=True)
        return home

    def place(self, host: Host) -> Path:
        return self.home(host) / "federation"

    def machines(self, where: str) -> list[Host]:
        return [host for host in self.hosts if (host.name == "server") == (where == "server")]

    def type_in(self, block: Block, host: Host) -> str:
        """Open a terminal, set the variables, and run a block to its end."""
        server = self.hosts["server"]
        values = {"SERVER": server.address}
        if host is server:
            values["RETEXO"] = str(ROOT)
        else:
            values |= {"CLIENT": host.name.removeprefix("client-"), "ADDRESS": host.address}
        commands = with_values(self._opening[block.where], values) + block.commands
        variables = environment({"HOME": str(self.home(host)), "PATH": search_path()})
        said = host.run(
            ["bash", "-euo", "pipefail", "-c", commands],
            env=variables,
            cwd=self.home(host),
            timeout_s=600.0,
        )
        self._wait_for_background(block, host)
        return said

    def _wait_for_background(self, block: Block, host: Host) -> None:
        place = self.place(host)
        signs = {"superlink.log": "Uvicorn running on", "supernode.log": "SuperNode ID:"}
        for name, sign in signs.items():
            if f"> {name} 2>&1 &" in block.commands:
                says = partial(_says, place / name, sign)
                wait_until(says, f"{host.name}: {name} does not say {sign!r}")
        if "> agent.log 2>&1 &" in block.commands:
            wait_until(lambda: connects(place / "agent.sock"), "the agent does not listen")

    def carry_files(self) -> None:
        """Carry what is there between the machines, as the page's table says."""
        server = self.place(self.hosts["server"])
        for client, host in enumerate(self.machines("workstation")):
            for source, target in TO_SERVER.items():
                _carry(self.place(host) / source, server / target.format(client=client))
            for source, target in TO_WORKSTATION.items():
                _carry(server / source, self.place(host) / target)


def _says(log: Path, sign: str) -> bool:
    return sign in log.read_text(encoding="utf-8")


def _carry(source: Path, target: Path) -> None:
    if source.exists() and target.parent.exists():
        shutil.copy(source, target)


@pytest.fixture
def reader(tmp_path: Path) -> Generator[Reader]:
    with Hosts(host_names(2)) as hosts:
        yield Reader(hosts, tmp_path, blocks_of(PAGE.read_text(encoding="utf-8")))


def test_the_page_leads_to_a_trained_model(reader: Reader) -> None:
    said: dict[str, str] = {}
    for step in reader.steps:
        for host in reader.machines(step.where):
            reader.carry_files()
            said[step.commands] = reader.type_in(step, host)
    (training,) = (text for commands, text in said.items() if "retexo run" in commands)
    promised = re.findall(r"^(?:test accuracy|bytes moved) .*$", PAGE.read_text(), re.M)
    assert len(promised) == 2
    for line in promised:
        assert line in training
    result = result_of(reader.place(reader.hosts["server"]) / "runs" / "first")
    assert result["engine"] == "deployment"
    assert result["clients"] == 2


def test_the_page_names_the_files_and_ports_that_are_used() -> None:
    page = PAGE.read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| workstation 0, 1 |")]
    for source, target in TO_SERVER.items():
        names = ", ".join(f"`{target.format(client=client)}`" for client in range(2))
        assert f"| workstation 0, 1 | `{source}` | server, as {names} |" in rows
    for source in TO_WORKSTATION:
        assert re.search(rf"^\| server.* \| `{source}` \| every workstation", page, re.M)
    assert f"agent :{AGENT_PORT}/tcp" in page
    assert f"SuperLink :{SUPERLINK_PORT}/tcp" in page


def test_every_link_of_the_page_leads_to_a_file() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]*)(?:#[^)]*)?\)", page):
        assert (PAGE.parent / target).exists(), target
    for name in re.findall(r"`((?:server|clients)/[\w.-]+\.\w+)`", page):
        assert (ROOT / name).is_file(), name
