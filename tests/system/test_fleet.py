"""A fleet that one file describes, started here: by ``retexo fleet up``, and by its units."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import time
from collections.abc import Generator
from functools import partial
from pathlib import Path

import pytest
import tomli_w

from retexo_fl.client.preparation import make_parts
from retexo_fl.config import make_config
from retexo_fl.graph import write_partitions
from retexo_fl.simulation.flower_processes import process_table
from tests.support.commands import ROOT, environment, program
from tests.support.hosts import Hosts
from tests.support.machine_copies import HOME, MachineCopy, need_root
from tests.support.part import connects, wait_until
from tests.support.runs import model_bytes
from tests.support.short_paths import tmp_path

__all__ = ["tmp_path"]

pytestmark = [pytest.mark.system, pytest.mark.deployed, pytest.mark.timeout(2400)]

CLIENTS = 3
#: A training of seconds, but for Flower's polls.
TINY = ("--profile", "retexo", "--rounds", "1", "--hidden", "8", "--quiet")
_STARTS_S = 240.0


def write_fleet(folder: Path, **changes: object) -> Path:
    """Write a fleet's file and its clients' parts; return the file."""
    config = make_config({"dataset": "digits", "clients": CLIENTS})
    write_partitions(make_parts(config), folder / "parts")
    table = {
        "count": CLIENTS,
        "host": "clinic-{client}.example.org",
        "part-here": "parts/part-{client}",
    }
    values = {
        **{"name": "clinics", "keys": "here", "server": {"address": "203.0.113.10"}},
        **{"masks": {}, "client": [table], **changes},
    }
    path = folder / "FLEET.toml"
    path.write_text(tomli_w.dumps(values))
    return path


def done(*words: str | Path, code: int = 0, cwd: Path | None = None) -> str:
    """Run ``retexo`` to its end and return what it said."""
    ended = subprocess.run(
        [program("retexo"), *words],
        env=environment(),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1500,
        check=False,
    )
    assert ended.returncode == code, ended.stdout[-4000:]
    return ended.stdout


def processes_of(folder: Path) -> list[int]:
    """Return ids of processes that work in a folder."""
    found = []
    for pid, process in process_table().items():
        try:
            place = Path(f"/proc/{pid}/cwd").readlink()
        except OSError:
            continue
        if not process.dead and place.is_relative_to(folder):
            found.append(pid)
    return found


# With SuperNodes each message starts a program of Flower's: masked trainings over these are by day
# those of tests/system/test_masked_deployment.py and test_deployment_docs.py.
@pytest.mark.parametrize("supernode", [pytest.param("flower", marks=pytest.mark.slow), "agent"])
def test_a_rehearsal_trains_under_masks_to_the_bits_of_one_process(
    tmp_path: Path, supernode: str
) -> None:
    file = write_fleet(tmp_path, supernode=supernode)
    done("fleet", "new", file)
    folder = tmp_path / "clinics"
    with subprocess.Popen(["sleep", "2000"], cwd=folder) as other:
        try:
            said = done("fleet", "up", file, "--local")
            assert "runs already; expected retexo fleet down" in done(
                "fleet", "up", file, "--local", code=2
            )
            (command,) = re.findall(r"^retexo (run .*)$", said, re.M)
            words = (*command.split(), "--out", "deployed", *TINY)
            assert "masked" in done(*words, cwd=tmp_path)
            ended = done("fleet", "down", file)
            assert ended.startswith("ended superlink, agent client-0, agent client-1, agent ")
            assert processes_of(folder) == [other.pid]
        finally:
            other.kill()
            done("fleet", "down", file)
    assert done("fleet", "down", file) == "nothing runs\n"
    parts = ("--partitions", tmp_path / "parts", "--clients", str(CLIENTS))
    done("run", *parts, "--secure-aggregation", "masked", "--out", tmp_path / "one", *TINY)
    assert model_bytes(tmp_path / "deployed") == model_bytes(tmp_path / "one")
    # Keys of a rehearsal are not those of the fleet, and as closed.
    for key in folder.glob("local/clients/*/key.pem"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
        assert key.read_bytes() != (folder / key.relative_to(folder / "local")).read_bytes()


@pytest.mark.parametrize("supernode", ["flower", pytest.param("agent", marks=pytest.mark.slow)])
def test_a_program_that_ends_ends_the_rehearsal(tmp_path: Path, supernode: str) -> None:
    file = write_fleet(tmp_path, supernode=supernode)
    # Nothing is promised, so that nobody but the agent reads the part.
    file.write_text(file.read_text().replace("[masks]\n", ""))
    done("fleet", "new", file)
    (tmp_path / "parts" / "part-1" / "indices.npy").write_bytes(b"no array")
    said = done("fleet", "up", file, "--local", code=1)
    assert "agent client-1 ended: " in said
    assert "logs/agent-client-1.log" in said
    assert processes_of(tmp_path) == []
    assert done("fleet", "down", file) == "nothing runs\n"


def test_an_agent_that_runs_is_asked(tmp_path: Path) -> None:
    table = {"count": CLIENTS, "host": "127.0.0.1", "part-here": "parts/part-{client}"}
    table |= {"part": "../../../parts/part-{client}", "port": 27411}
    file = write_fleet(tmp_path, client=[table])
    done("fleet", "new", file)
    folder = tmp_path / "clinics" / "clients" / "client-1"
    command = [program("retexo"), "agent", "run", "--config", str(folder / "agent.toml")]
    with subprocess.Popen(command, env=environment(), stderr=subprocess.DEVNULL) as agent:
        try:
            wait_until(partial(connects, folder / "agent.sock"), "the agent does not listen")
            assert "client 1, its agent runs here" in done("fleet", "check", file)
            later = time.time() + 60
            os.utime(folder / "agent.toml", (later, later))
            said = done("fleet", "check", file)
            assert "its agent runs with an agent.toml of before" in said
        finally:
            agent.terminate()


@pytest.fixture
def machine(tmp_path: Path) -> Generator[MachineCopy]:
    """Return a machine that is the server and all clients."""
    need_root()
    shared, place = tmp_path / "shared", tmp_path / "machine"
    shared.mkdir()
    place.mkdir()
    with Hosts(["server"]) as hosts:
        copy = MachineCopy(host=hosts["server"], folder=place, shared=shared)
        copy.start()
        yield copy


def test_bundles_become_services_of_one_machine(machine: MachineCopy) -> None:
    table = {"count": CLIENTS, "name": "lab-{client}", "host": machine.host.address}
    # Its home as this machine has it: links of /proc lead out of it.
    home = machine.shared / machine.host.address
    path = write_fleet(
        home,
        services="systemd",
        server={"address": machine.host.address},
        client=[{**table, "part-here": "parts/part-{client}"}],
    )
    (home / "retexo-fl").symlink_to(ROOT)
    own = "/opt/retexo/bin/retexo"
    # As docs/services.md has it: of a wheel, which the clone's scripts and units are in.
    machine.run("python3 -m venv /opt/retexo && /opt/retexo/bin/pip install ./retexo-fl")
    machine.run(f"{own} fleet new {HOME}/{path.name}")
    for client in range(CLIENTS):
        bundle = f"{HOME}/clinics/clients/lab-{client}"
        machine.run(f"cd {bundle} && sh install.sh {HOME}/parts/part-{client}")
    names = " ".join(f"retexo-agent@lab-{client}" for client in range(CLIENTS))
    machine.run(f"systemctl enable --now {names}")
    for client in range(CLIENTS):
        path = machine.path(f"/run/retexo-agents/lab-{client}/agent.sock")
        wait_until(partial(connects, path), "the agent does not listen", within_s=_STARTS_S)
    said = machine.run(f"{own} fleet check {HOME}/clinics")
    assert said.count("its agent runs here") == CLIENTS
    # No client reads what another keeps.
    other = "setpriv --reuid=retexo-lab-0 --regid=retexo-lab-0 --init-groups cat"
    own_files = ("key.pem", "roster.toml", "agent.toml", "member.toml")
    kept = [f"etc/retexo/lab-1/{name}" for name in own_files]
    for file in (*kept, "var/lib/retexo-agents/lab-1/part/manifest.json"):
        assert "Permission denied" in machine.run(f"{other} /{file}", code=1)
    for name in own_files:
        machine.run(f"{other} /etc/retexo/lab-0/{name} > /dev/null")
    _no_folder_of_others_is_given_away(machine)
    machine.run("rm /etc/systemd/system/retexo-supernode@.service")
    machine.run("chmod 644 /etc/retexo/lab-2/key.pem")
    said = machine.run(f"{own} fleet check {HOME}/clinics", code=1)
    assert said.count("retexo-supernode@.service missing") == CLIENTS
    assert "/etc/retexo/lab-2/key.pem: others may read it" in said


def _no_folder_of_others_is_given_away(machine: MachineCopy) -> None:
    part = "/var/lib/retexo-agents/lab-0/part"
    # What an agent.toml names, what another client has, and what an agent's user put there.
    machine.run(f"mv {part} {part}-of-before && ln -s /etc/retexo {part} && mkdir /home/alice")
    for place in ("/home/alice", "/var/lib/retexo-agents/lab-1/part", part):
        machine.run(
            f"cp -r {HOME}/clinics/clients/lab-0 {HOME}/bundle && cd {HOME}/bundle && "
            f"sed -i 's#^partition = .*#partition = \"{place}\"#' agent.toml"
        )
        before = machine.run(f"stat -Lc '%U %a' {place}")
        said = machine.run(f"cd {HOME}/bundle && sh install.sh {HOME}/parts/part-0", code=2)
        assert f"install: {place}: is {before.split()[0]}'s; expected partition to be no" in said
        assert machine.run(f"rm -r {HOME}/bundle; stat -Lc '%U %a' {place}") == before
    machine.run(f"rm {part} && mv {part}-of-before {part}")
    said = machine.run(f"cd {HOME}/clinics/clients/lab-0 && sh install.sh {part}", code=2)
    assert f"install: {part}: is where the part is to be" in said
