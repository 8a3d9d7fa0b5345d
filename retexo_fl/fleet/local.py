"""``retexo fleet up --local`` and ``down``: a fleet as processes of this machine, for a rehearsal.

The fleet is another one, below the real one's folder: its hosts are the loopback, its ports free
ones, its keys are made here, its parts are those that ``part-here`` names; limits are the file's.
Each program is started in the order of docs/deployment.md, and waited for, for a time. It is
written down before it runs, so that ``down`` ends what was started and nothing else.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from retexo_fl.agent.remote import ask_agent
from retexo_fl.agent.settings import settings_of
from retexo_fl.doctor.finding import Verdict, worst
from retexo_fl.doctor.superlink import examine_superlink
from retexo_fl.errors import AgentUnreachable, ClientFailed, ConfigurationError
from retexo_fl.file_lock import locked_folder
from retexo_fl.files import write_whole
from retexo_fl.fleet.description import Fleet, FleetClient
from retexo_fl.fleet.making import SERVER_TLS, bundle, make_where_held
from retexo_fl.fleet.texts import superlink_command, supernode_command
from retexo_fl.server_address import ServerAddress
from retexo_fl.simulation.flower_processes import (
    FLOWER_SETTINGS,
    Process,
    descendants_of,
    process_table,
)

#: Below the fleet's folder.
LOCAL: Final = "local"
_RUNNING: Final = "processes.json"
_LOGS: Final = "logs"
_LOOPBACK: Final = "127.0.0.1"
#: Imports alone take a minute on a machine whose cores are taken by others.
_START_S: Final = 300.0
_END_S: Final = 30.0
_LOOK_S: Final = 0.2
_LAST_WORDS: Final = 300
_AGENT: Final = ("retexo", "agent", "run", "--config", "agent.toml")
#: Becomes the program, with the same process id, when a line comes, and ends where none does.
_WHEN_TOLD: Final = ("/bin/sh", "-c", 'read -r told && exec "$0" "$@" < /dev/null')


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A program that was started.

    Attributes:
        name: ``superlink``, ``agent clinic-0``, ``supernode clinic-0``.
        pid: Id of its process.
        started: When, in the system's own words: with the id it names the process.
    """

    name: str
    pid: int
    started: str

    def in_table(self, table: Mapping[int, Process]) -> bool:
        """Return whether it runs still."""
        found = table.get(self.pid)
        return found is not None and found.started == self.started and not found.dead


def bring_up(fleet: Fleet, folder: Path) -> tuple[Fleet, Path]:
    """Start all of a fleet on this machine; return the fleet that runs, and its folder.

    Raises:
        ConfigurationError: It runs already, another process starts it, a client's part is not
            here, or the folder's path is too long for sockets.
        ClientFailed: A program ended, or did not answer in time; what was started is ended.
        RetexoError: As :func:`.make_fleet`.
    """
    place = folder / LOCAL
    with locked_folder(folder, doing="starting the fleet of"), ExitStack() as undoing:
        if any(it.in_table(process_table()) for it in _written_down(place)):
            raise ConfigurationError(f"{place}: runs already; expected retexo fleet down before")
        local = _local(fleet, place)
        make_where_held(local, place)
        undoing.callback(take_down, folder)
        _Programs(local, place).start()
        undoing.pop_all()
    return local, place


def take_down(folder: Path) -> list[str]:
    """End what :func:`bring_up` started, and what that started; return names of what ran.

    Raises:
        ConfigurationError: The list of what was started cannot be read.
        ClientFailed: A process does not end.
    """
    place = folder / LOCAL
    table = process_table()
    running = [it for it in _written_down(place) if it.in_table(table)]
    family = {it.pid: it.started for it in running}
    for it in running:
        family |= {pid: table[pid].started for pid in descendants_of(table, it.pid)}
    programs = {it.pid: it.started for it in running}
    # What runs below a program ends with it, or is ended after it.
    for number, ending in (
        (signal.SIGTERM, programs),
        (signal.SIGTERM, family),
        (signal.SIGKILL, family),
    ):
        for pid in _left(ending):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        deadline = time.monotonic() + _END_S
        while _left(ending) and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
    if left := _left(family):
        raise ClientFailed(f"fleet down: process {left[0]} does not end; expected it to (kill -9)")
    (place / _RUNNING).unlink(missing_ok=True)
    return [it.name for it in running]


def _left(family: Mapping[int, str]) -> list[int]:
    table = process_table()
    return [
        pid
        for pid, started in family.items()
        if pid in table and table[pid].started == started and not table[pid].dead
    ]


def _written_down(place: Path) -> list[Started]:
    path = place / _RUNNING
    try:
        return [Started(**entry) for entry in json.loads(path.read_bytes())]
    except FileNotFoundError:
        return []
    except (ValueError, TypeError) as error:
        raise ConfigurationError(
            f"{path}: is damaged; expected what retexo fleet up wrote"
        ) from error


def _local(fleet: Fleet, place: Path) -> Fleet:
    """Return the fleet as it is to run here."""
    ports = _free_ports(2 * len(fleet.clients) + 1)
    server = ServerAddress(host=_LOOPBACK, port=next(ports))
    clients = []
    for one in fleet.clients:
        if one.part_here is None or not one.part_here.is_dir():
            raise ConfigurationError(
                f"client {one.client}: part-here: {one.part_here or 'missing'}; expected the "
                "folder of its part on this machine"
            )
        address = f"tcp://{_LOOPBACK}:{next(ports)}"
        # Its figures have one place, which several cannot have here.
        kept = {key: value for key, value in one.agent.items() if key != "metrics"}
        if fleet.own_nodes:
            kept |= {
                "superlink": str(server),
                "root-certificates": "ca.crt",
                "supernode-key": "supernode-key",
            }
        own = ("state", "key.pem", "certificate.pem", "roster.toml", "agent.sock")
        names = ("state", "key", "certificate", "roster", "socket")
        agent = {
            **kept,
            **dict(zip(names, own, strict=True)),
            "partition": str(one.part_here),
            "listen": [address],
            **({"predictions": "predictions"} if one.settings.predictions else {}),
        }
        try:
            settings = settings_of(agent, place / bundle(one))
        except ConfigurationError as error:
            raise ConfigurationError(f"client {one.client}: {error}") from error
        clients.append(
            replace(
                one,
                host=_LOOPBACK,
                addresses=(address,),
                agent=agent,
                settings=settings,
                node_port=next(ports),
            )
        )
    return replace(fleet, keys_here=True, services="none", server=server, clients=tuple(clients))


def _free_ports(count: int) -> Iterator[int]:
    """Return ports at which nobody listened just now, each another."""
    with ExitStack() as held:
        found = []
        for _ in range(count):
            one = held.enter_context(socket.socket())
            one.bind((_LOOPBACK, 0))
            found.append(one.getsockname()[1])
    return iter(found)


class _Programs:
    """The programs of a fleet that runs here.

    Args:
        fleet: As it runs.
        place: Its folder.
    """

    def __init__(self, fleet: Fleet, place: Path) -> None:
        self._fleet, self._place = fleet, place
        self._written: list[Started] = []
        programs = str(Path(sys.executable).parent)
        self._path = os.pathsep.join((programs, os.environ.get("PATH", os.defpath)))
        for name in ("flower-superlink", "flower-supernode", "retexo", "flwr"):
            if shutil.which(name, path=self._path) is None:
                raise ConfigurationError(f"{name}: not found; expected it beside {sys.executable}")
        (place / _LOGS).mkdir(mode=0o700, exist_ok=True)
        for log in (place / _LOGS).iterdir():
            log.unlink()

    def start(self) -> None:
        """Start all, in the order in which one needs the other."""
        authority = self._place / SERVER_TLS / "ca.crt"
        command = superlink_command(self._fleet, _LOOPBACK)
        superlink = self._started("superlink", command, self._place / "server")
        address = str(self._fleet.server)

        def answers() -> bool:
            return worst(examine_superlink(address, authority)) is not Verdict.BAD

        self._wait(superlink, answers)
        self._register(authority)
        agents = [
            (one, self._started(f"agent {one.name}", _AGENT, self._place / bundle(one)))
            for one in self._fleet.clients
        ]
        for one, agent in agents:
            self._wait(agent, lambda one=one: _is_well(one))  # type: ignore[misc]
        nodes = []
        for one in () if self._fleet.own_nodes else self._fleet.clients:
            command = [*supernode_command(self._fleet, one), f'agent="{one.settings.socket}"']
            nodes.append(self._started(f"supernode {one.name}", command, self._place / bundle(one)))
        for node in nodes:
            self._wait(node, lambda node=node: "SuperNode ID:" in self._said(node))  # type: ignore[misc]

    def _register(self, authority: Path) -> None:
        keys = sorted((self._place / "server/supernodes").iterdir())
        script = self._place / "server/register-client.sh"
        command = ["/bin/sh", *map(str, (script, self._fleet.server, authority, *keys))]
        try:
            done = subprocess.run(  # noqa: S603 - our script and files
                command,
                env=self._environment("register"),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_START_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise ClientFailed(f"{script}: did not end in {_START_S:g} s") from error
        if done.returncode:
            raise ClientFailed(f"{script}: {(done.stderr or done.stdout)[-_LAST_WORDS:].strip()}")

    def _environment(self, name: str) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("FLWR_")}
        home = str(self._place / "flower" / name.replace(" ", "-"))
        return {
            "OMP_NUM_THREADS": "1",
            **kept,
            **FLOWER_SETTINGS,
            "PATH": self._path,
            "FLWR_HOME": home,
        }

    def _started(self, name: str, command: Sequence[str], folder: Path) -> Started:
        program = shutil.which(command[0], path=self._path)
        assert program is not None
        with self._log(name).open("ab") as log:
            # Not a child any more when this process has ended, nor ended by its terminal.
            process = subprocess.Popen(  # noqa: S603 - our own programs
                [*_WHEN_TOLD, program, *command[1:]],
                cwd=folder,
                env=self._environment(name),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        assert process.stdin is not None
        # However this process ends: what it could not write down ends as well, and never ran.
        with process.stdin as telling:
            found = process_table()[process.pid]
            started = Started(name=name, pid=process.pid, started=found.started)
            self._write_down([*self._written, started])
            self._written.append(started)
            telling.write(b"\n")
        # It is left to itself: without this Python warns of one that nobody has waited for.
        process.returncode = 0
        return started

    def _write_down(self, programs: Sequence[Started]) -> None:
        told = [{"name": it.name, "pid": it.pid, "started": it.started} for it in programs]
        write_whole(self._place / _RUNNING, [json.dumps(told).encode()], private=True)

    def _wait(self, program: Started, is_ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _START_S
        while not is_ready():
            if not program.in_table(process_table()):
                raise ClientFailed(f"{program.name} ended: {self._last_words(program)}")
            if time.monotonic() > deadline:
                raise ClientFailed(
                    f"{program.name}: not ready in {_START_S:g} s: {self._last_words(program)}"
                )
            time.sleep(_LOOK_S)

    def _log(self, name: str) -> Path:
        return self._place / _LOGS / f"{name.replace(' ', '-')}.log"

    def _said(self, program: Started) -> str:
        return self._log(program.name).read_text("utf-8", errors="replace")

    def _last_words(self, program: Started) -> str:
        lines = self._said(program).strip().splitlines()
        return (lines[-1][-_LAST_WORDS:] if lines else "said nothing") + (
            f" ({self._log(program.name)})"
        )


def _is_well(one: FleetClient) -> bool:
    try:
        link = ask_agent(Path(one.settings.socket), "status")["superlink"]
    except AgentUnreachable:
        return False
    return link is None or link["state"] == "connected"
