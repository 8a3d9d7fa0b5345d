"""The commands of the pages that set up a deployment, in their order, on copies of this machine."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from tests.support.commands import ROOT
from tests.support.hosts import Hosts
from tests.support.machine_copies import HOME, MachineCopy, need_root
from tests.support.part import connects, wait_until
from tests.support.places import AGENT_PORT, SUPERLINK_PORT, host_names
from tests.support.runs import result_of

pytestmark = [pytest.mark.system, pytest.mark.deployed, pytest.mark.timeout(2400)]

BY_HAND, AS_SERVICES = ROOT / "docs" / "deployment.md", ROOT / "docs" / "services.md"
OTHERS, INSTALLATION = ROOT / "docs" / "connections.md", ROOT / "docs" / "installation.md"
BOX, TWO_PIS = ROOT / "docs" / "edge.md", ROOT / "edge" / "two-pis.md"
OWNERS = ROOT / "docs" / "three-owners.md"
#: Rows of the page's table "Files that change hands": file of one, and as what the other has it.
TO_SERVER = {
    "supernode-key.pub": "supernode-{client}.pub",
    "keys/member.toml": "member-{client}.toml",
}
TO_CLIENT = {"tls/ca.crt": "ca.crt", "roster.toml": "roster.toml"}
#: The page on three owners has them carry this, too, and signatures back.
AGREED_TO_CLIENT = {"proposed.toml": "proposed.toml"}
#: Three machines on the cores of one, beside other tests.
_STARTS_S = 240.0
#: What a program says when others may go on, by what starts it and where it says so.
SIGNS = (
    ("> superlink.log 2>&1 &", "superlink.log", "Uvicorn running on"),
    ("> supernode.log 2>&1 &", "supernode.log", "SuperNode ID:"),
    ("--now retexo-superlink", "/var/log/retexo-superlink.service.log", "Uvicorn running on"),
    (
        "--now retexo-agent retexo-supernode",
        "/var/log/retexo-supernode.service.log",
        "SuperNode ID:",
    ),
    ("--now retexo-agent\n", "/var/log/retexo-agent.service.log", "superlink connected="),
    ("install.sh --files", "/var/log/retexo-supernode.service.log", "SuperNode ID:"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block of shell commands.

    Attributes:
        where: ``server``, ``workstation`` or ``Pi``: the last that the text before it names in
            bold.
        commands: As they are on the page, without root's prompt.
        supernode: Whether it is for workstations ``with a SuperNode``, or ``without``; None for
            all.
    """

    where: str
    commands: str
    supernode: bool | None = None


def blocks_of(page: Path) -> list[Block]:
    found = []
    where, supernode = "", None
    for match in re.finditer(
        r"\*\*(server|workstation|Pi)(?: (with|without) a SuperNode)?\*\*|^```(\w*)\n(.*?)^```$",
        page.read_text(encoding="utf-8"),
        re.M | re.S,
    ):
        commands = match[4]
        if match[1]:
            where, supernode = match[1], {"with": True, "without": False}.get(match[2])
        elif match[3] == "sh":
            found.append(Block(where=where, commands=commands, supernode=supernode))
        elif match[3] == "console":
            assert re.match(r"[#$] ", commands), commands
            commands = re.sub(r"^[#$] ", "", commands, flags=re.M)
            found.append(Block(where=where, commands=commands, supernode=supernode))
    return found


def with_values(commands: str, values: Mapping[str, str]) -> str:
    """Give the variables that the page asks its reader to set the values of a machine."""
    for name, value in values.items():
        commands, times = re.subn(rf"^{name}=.*$", f"{name}={value}", commands, flags=re.M)
        assert times == 1, f"{name} is not set by {commands}"
    return commands


@dataclass(slots=True, kw_only=True)
class Seat:
    """Where somebody types in what a page says to one machine, or to one client of it.

    Attributes:
        where: As the page calls the machine.
        machine: It.
        place: Folder below the home in which the page's files lie.
        values: Of the variables that the page asks to set.
    """

    where: str
    machine: MachineCopy
    place: str = "federation"
    values: Mapping[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return self.machine.home / self.place


class Reader:
    """Somebody who follows a page.

    Args:
        page: What is followed.
        seats: Its machines, clients in their order.
        rounds: Trainings take so many; 0: as many as the page says.
        supernodes: Whether workstations have SuperNodes, where the page has both.
    """

    def __init__(
        self, page: Path, seats: Sequence[Seat], *, rounds: int = 0, supernodes: bool = True
    ) -> None:
        self._seats = seats
        self._rounds = rounds
        self._opening: dict[str, str] = {}
        self.steps: list[Block] = []
        for block in blocks_of(page):
            if block.where in self._opening:
                if block.supernode in {None, supernodes}:
                    self.steps.append(block)
            else:
                self._opening[block.where] = block.commands

    def follow(self, until: str = "") -> str:
        """Do all steps up to that which holds ``until``; return all that was said."""
        said = ""
        for step in self.steps:
            if until and until in step.commands:
                break
            for seat in self._seats:
                if seat.where == step.where:
                    carry_files(self._seats)
                    said += self._type_in(step, seat)
        return said

    def _type_in(self, block: Block, seat: Seat) -> str:
        """Open a terminal, set the variables, and run a block to its end."""
        commands = with_values(self._opening[block.where], seat.values) + block.commands
        if self._rounds:
            commands = re.sub(r"--rounds \d+", f"--rounds {self._rounds}", commands)
        # The training that is resumed has finished: what it would be for is tested elsewhere.
        said = seat.machine.run(commands, code=2 if "--resume" in block.commands else 0)
        for started, name, sign in SIGNS:
            if started in block.commands:
                log = seat.machine.path(name) if name.startswith("/") else seat.folder / name
                says = partial(_says, log, sign)
                wait_until(says, f"{log} does not say {sign!r}", within_s=_STARTS_S)
        if "> agent.log 2>&1 &" in block.commands:
            listening = partial(connects, seat.folder / "agent.sock")
            wait_until(listening, "the agent does not listen", within_s=_STARTS_S)
        return said


def _says(log: Path, sign: str) -> bool:
    return log.exists() and sign in log.read_text(encoding="utf-8")


def carry_files(seats: Sequence[Seat]) -> None:
    """Carry what is there between the machines, as the pages say."""
    (server,) = (seat.folder for seat in seats if seat.where == "server")
    clients = [seat.folder for seat in seats if seat.where != "server"]
    for client, folder in enumerate(clients):
        for source, target in TO_SERVER.items():
            _carry(folder / source, server / target.format(client=client))
        for signature in folder.glob("keys/signature-*.toml"):
            _carry(signature, server / signature.name)
        for source, target in {**TO_CLIENT, **AGREED_TO_CLIENT}.items():
            _carry(server / source, folder / target)


def _carry(source: Path, target: Path) -> None:
    if source.exists() and target.parent.exists():
        shutil.copy(source, target)


Machines = Callable[[int], list[MachineCopy]]


@pytest.fixture
def machines(tmp_path: Path) -> Generator[Machines]:
    """Return what makes a server and so many machines of clients."""
    need_root()
    shared = tmp_path / "shared"
    shared.mkdir()
    with Hosts(host_names(3)) as hosts:

        def make(clients: int) -> list[MachineCopy]:
            made = []
            for name in host_names(clients):
                host = hosts[name]
                (tmp_path / name).mkdir()
                copy = MachineCopy(host=host, folder=tmp_path / name, shared=shared)
                copy.start()
                (copy.home / "retexo-fl").symlink_to(ROOT)
                made.append(copy)
            return made

        yield make


def seats_of(server: MachineCopy, workstations: Sequence[MachineCopy]) -> list[Seat]:
    """Return the seats of the server and of a client on each workstation."""
    values = {"SERVER": server.host.address}
    seats = [Seat(where="server", machine=server, values=values)]
    for client, machine in enumerate(workstations):
        own = {**values, "CLIENT": str(client), "ADDRESS": machine.host.address}
        place = f"federation/client-{client}"
        seats.append(Seat(where="workstation", machine=machine, place=place, values=own))
    return seats


def promised_lines() -> list[str]:
    lines = re.findall(r"^(?:test accuracy|bytes moved) .*$", BY_HAND.read_text(), re.M)
    assert len(lines) == 2
    return lines


def trained_by_hand(machines: Machines) -> list[Seat]:
    """Follow the page by hand; return its seats as they are at its end."""
    server, *clients = machines(2)
    seats = seats_of(server, clients)
    said = Reader(BY_HAND, seats).follow()
    for line in (*promised_lines(), "has finished; there is nothing to do"):
        assert line in said
    result = result_of(server.home / "federation" / "runs" / "first")
    assert (result["engine"], result["clients"]) == ("deployment", 2)
    return seats


def test_the_page_leads_to_a_trained_model_by_hand(machines: Machines) -> None:
    trained_by_hand(machines)


# Units that are installed by day: tests/system/test_fleet.py; what they train is that by hand.
@pytest.mark.slow
def test_the_next_page_makes_services_of_it(machines: Machines) -> None:
    seats = trained_by_hand(machines)
    become_services(seats, supernodes=True)


def become_services(seats: Sequence[Seat], *, supernodes: bool) -> None:
    """Follow the page on services with the files of a page by hand, and train."""
    clients = len(seats) - 1
    root = {"RETEXO": f"{HOME}/retexo-fl", "FEDERATION": f"{HOME}/federation"}
    for seat in seats:
        own = {"CLIENTS": str(clients)} if seat.where == "server" else {}
        kept = {key: seat.values[key] for key in seat.values if key != "ADDRESS"}
        seat.values = kept | root | own
    Reader(AS_SERVICES, seats, rounds=1, supernodes=supernodes).follow()
    result = result_of(seats[0].machine.path("/var/lib/retexo/runs/second"))
    assert (result["engine"], result["clients"]) == ("deployment", clients)


def test_three_owners_train_with_masked_sums(machines: Machines) -> None:
    trained_by_owners(machines)


def trained_by_owners(machines: Machines) -> list[Seat]:
    """Follow the page of three owners; return its seats as they are at its end."""
    server, *branches = machines(3)
    seats = seats_of(server, branches)
    said = Reader(OWNERS, seats, rounds=1).follow()
    assert len(set(re.findall(r"^agreed .*$", said, re.M))) == 1
    run = server.home / "federation" / "runs" / "first"
    assert (result_of(run)["engine"], result_of(run)["clients"]) == ("deployment", 3)
    assert 'secure-aggregation = "masked"' in (run / "config.toml").read_text(encoding="utf-8")
    return seats


@pytest.mark.slow
def test_services_of_three_owners_go_on_with_their_state(machines: Machines) -> None:
    """Peers refuse counters that have fallen, so that ``state`` has to come along."""
    seats = trained_by_owners(machines)
    for seat in seats:
        with_agent = "retexo agent stop --config agent.toml"
        without = 'kill "$(cat superlink.pid)"'
        command = without if seat.where == "server" else with_agent
        seat.machine.run(f"PATH=~/retexo-fl/.venv/bin:$PATH; cd {seat.place} && {command}")
    become_services(seats, supernodes=False)
    run = seats[0].machine.path("/var/lib/retexo/runs/second")
    assert 'secure-aggregation = "masked"' in (run / "config.toml").read_text(encoding="utf-8")


# The commands are those above, with other ports; that these are set is looked at below.
@pytest.mark.slow
def test_one_machine_can_be_the_server_and_both_clients(machines: Machines) -> None:
    (machine,) = machines(0)
    values = {"SERVER": "127.0.0.1"}
    seats = [Seat(where="server", machine=machine, values=values)]
    for client, ports in enumerate(({}, {"PORT": "7421", "NODE_PORT": "9095"})):
        own = {**values, "CLIENT": str(client), "ADDRESS": "127.0.0.1", **ports}
        place = f"federation/client-{client}"
        seats.append(Seat(where="workstation", machine=machine, place=place, values=own))
    # Both agents and SuperNodes have come up, and the doctor has looked at each; to train is no
    # other than on machines of their own.
    Reader(BY_HAND, seats).follow(until="retexo run --superlink")


# It is the page above, on machines whose files tests/system/test_edge.py looks at.
@pytest.mark.slow
def test_a_box_of_pis_trains(machines: Machines) -> None:
    server, *pis = machines(2)
    values = {"SERVER": server.host.address, "CLIENTS": str(len(pis))}
    seats = [Seat(where="server", machine=server, values=values)]
    for client, machine in enumerate(pis):
        own = {**values, "CLIENT": str(client), "ADDRESS": machine.host.address}
        seats.append(Seat(where="Pi", machine=machine, values=own))
    said = Reader(BOX, seats, rounds=1).follow()
    assert result_of(server.home / "federation" / "runs" / "box")["clients"] == 2
    assert said.count("key,class,p0,") == len(pis)


@pytest.mark.slow
def test_two_pis_train_after_one_script_each(machines: Machines) -> None:
    server, *pis = machines(2)
    addresses = {"PI0": pis[0].host.address, "PI1": pis[1].host.address}
    values = {"SERVER": server.host.address, **addresses}
    seats = [Seat(where="server", machine=server, place="", values=values)]
    for client, machine in enumerate(pis):
        seats.append(Seat(where="Pi", machine=machine, place="", values={"CLIENT": str(client)}))
    Reader(TWO_PIS, seats, rounds=1).follow()
    assert result_of(server.home / "runs" / "two-pis")["clients"] == 2


def test_the_page_names_the_files_and_ports_that_are_used() -> None:
    page = BY_HAND.read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| workstation 0, 1 |")]
    for source, target in TO_SERVER.items():
        names = ", ".join(f"`{target.format(client=client)}`" for client in range(2))
        assert f"| workstation 0, 1 | `{source}` | server, as {names} |" in rows
    for source in TO_CLIENT:
        assert re.search(rf"^\| server.* \| `{source}` \| every workstation", page, re.M)
    assert f"| server, {SUPERLINK_PORT}/tcp |" in page
    assert f"| the other, {AGENT_PORT}/tcp |" in page
    drawing = (BY_HAND.parent / "deployment.svg").read_text(encoding="utf-8")
    assert drawing.count(f">{SUPERLINK_PORT}/tcp<") == 1
    assert drawing.count(f">{AGENT_PORT}/tcp<") == 2


def test_both_clients_of_one_machine_have_ports_of_their_own() -> None:
    page = BY_HAND.read_text(encoding="utf-8")
    assert "`PORT=7421`, `NODE_PORT=9095`" in page
    (opening, *steps) = [
        block.commands for block in blocks_of(BY_HAND) if block.where == "workstation"
    ]
    assert "\nPORT=7411\nNODE_PORT=9094\n" in opening
    for program, option in (
        ("retexo keys new", '--address "tcp://$ADDRESS:$PORT"'),
        ("> agent.toml", 'listen = ["tcp://0.0.0.0:$PORT"]'),
        ("flower-supernode", '--port "$NODE_PORT"'),
    ):
        (step,) = [commands for commands in steps if f"{program} " in commands]
        assert option in step


@pytest.mark.parametrize("page", [BY_HAND, AS_SERVICES, OTHERS, INSTALLATION, BOX, TWO_PIS, OWNERS])
def test_every_link_of_a_page_leads_to_a_file(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]*)(?:#[^)]*)?\)", text):
        assert (page.parent / target).exists(), target
    for name in re.findall(r"`((?:server|clients|edge)/[\w.-]+\.\w+)`", text):
        assert (ROOT / name).is_file(), name
