"""Real agents as processes on one machine: their parts, keys, roster and sockets in one folder."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retexo_fl.agent.limits import Limits
from retexo_fl.agent.promises import part_digest, uses_of_part
from retexo_fl.agent.remote import ask_agent
from retexo_fl.api.profile_choice import named_profile
from retexo_fl.api.settling import Asked
from retexo_fl.channels.addresses import DATAGRAM_SCHEMES
from retexo_fl.channels.federation import Federation
from retexo_fl.channels.identity import Identity
from retexo_fl.channels.roster import Member, Roster
from retexo_fl.config import DATA_PATH_KEYS, RunConfig, config_values, make_config
from retexo_fl.errors import AgentUnreachable
from retexo_fl.federation import make_client_app
from retexo_fl.federation.prediction_in_place import InPlaceTask, predict_in_place
from retexo_fl.federation.server_app import Listener, run_training
from retexo_fl.federation.trained_model import read_trained_model
from retexo_fl.files import write_whole
from retexo_fl.graph import GraphPartition, write_partitions
from retexo_fl.masking.agreement import LEAST
from retexo_fl.methods.predict.script import PredictionLoop, PredictionOutcome
from tests.support.commands import environment, program
from tests.support.host import Host
from tests.support.loopback import make_members
from tests.support.nursery import Born, bear
from tests.support.owners import agreed
from tests.support.runs import ledger_of, model_bytes
from tests.support.thread_grid import ThreadGrid

#: On a machine whose cores are taken by others, imports alone took a minute.
_START_S = 400.0
_END_S = 60.0
_LIMITS = Limits(least_train_nodes=1)
#: What all owners have of each other.
ROSTER = "roster.toml"


@dataclass(slots=True, kw_only=True)
class AgentProcess:
    """One agent: its folder, and its process while there is one.

    Attributes:
        folder: Settings, keys, state, socket and log.
        client: Index.
        extra: Of its environment.
        start_s: How long it may take to answer at first.
        host: Where it runs; this machine itself if None.
        program: What is run in place of ``retexo``.
        before: What it calls first in its process (``nursery.py``); it has no program then.
    """

    folder: Path
    client: int
    extra: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | Born | None = None
    start_s: float = _START_S
    host: Host | None = None
    program: Sequence[str] = ()
    before: Sequence[Any] = ()

    @property
    def command(self) -> list[str]:
        """The program, and what it is told."""
        ours = self.program or [program("retexo")]
        command = [*ours, *self._arguments]
        return command if self.host is None else self.host.command(command)

    @property
    def _arguments(self) -> list[str]:
        return ["agent", "run", "--config", str(self.settings)]

    @property
    def socket(self) -> Path:
        """Where it is asked."""
        return self.folder / "run" / "agent.sock"

    @property
    def state(self) -> Path:
        """What it keeps."""
        return self.folder / "state"

    @property
    def settings(self) -> Path:
        """Its ``agent.toml``."""
        return self.folder / "agent.toml"

    @property
    def log(self) -> str:
        """What it has written to standard error."""
        return (self.folder / "log").read_text()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self.begin()
        self.wait_until_it_answers()

    def begin(self) -> None:
        """Start it."""
        if not self.program and not self.extra:
            told = self.settings.read_text()
            self.process = bear(
                self._arguments,
                namespace="" if self.host is None else self.host.namespace,
                datagrams=any(f'"{name}://' in told for name in DATAGRAM_SCHEMES),
                env=environment(),
                log=self.folder / "log",
                ending=self.folder / "ended",
                before=self.before,
            )
            return
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                env=environment(self.extra),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def wait_until_it_answers(self) -> None:
        """Wait for a process that was begun."""
        assert self.process is not None
        deadline = time.monotonic() + self.start_s
        while True:
            try:
                self.status()
            except AgentUnreachable:
                ended = self.process.poll()
                assert ended is None, f"ended with {ended}: {self.log}"
                assert time.monotonic() < deadline, self.log
                time.sleep(0.02)
            else:
                return

    def status(self) -> Mapping[str, Any]:
        """Ask it how it is."""
        return ask_agent(self.socket, "status")

    def kill(self) -> None:
        """End it as a power cut would."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(_END_S)

    def stop(self) -> int:
        """End it as systemd would; return its exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(_END_S)

    def close(self) -> None:
        """End it, however."""
        if self.process is not None and self.process.poll() is None:
            self.kill()


@contextlib.contextmanager
def agents(
    root: Path,
    parts: Sequence[GraphPartition],
    *,
    start: bool = True,
    extra: Mapping[str, str] | None = None,
    addresses: Sequence[str | tuple[str, ...]] | None = None,
    settings: Mapping[str, object] | None = None,
    hosts: Sequence[Host] | None = None,
    **terms: Any,
) -> Iterator[list[AgentProcess]]:
    """Give every part to an agent of its own, all of whom know each other; end them at last.

    ``settings`` are more keys of every ``agent.toml``; ``hosts`` is where the agents run; ``terms``
    are those of what their owners agree on.
    """
    write_partitions(list(parts), root / "parts")
    identities, roster = make_members(root, len(parts), addresses)
    (root / ROSTER).write_text(roster.text())
    if len(parts) >= LEAST:
        # Their owners agree on masked sums, too.
        agree(root, parts, identities, **terms)
    made = [_settle(root, member, settings or {}) for member in roster.members.values()]
    for agent, host in zip(made, hosts or (), strict=False):
        agent.host = host
    for agent in made:
        agent.extra = extra or {}
    try:
        if start:
            for agent in made:
                agent.begin()
            for agent in made:
                agent.wait_until_it_answers()
        yield made
    finally:
        for agent in made:
            agent.close()


def agree(
    root: Path, parts: Sequence[GraphPartition], identities: Sequence[Identity], **terms: Any
) -> Federation:
    """Have all owners sign what sums there may be, after what stands in the roster file already."""
    path = root / ROSTER
    folders = {part.client: root / "parts" / f"part-{part.client}" for part in parts}
    federation = agreed(
        Roster.read(path),
        identities,
        digests={client: part_digest(folder) for client, folder in folders.items()},
        uses={part.client: uses_of_part(part, _LIMITS, links=False) for part in parts},
        former=Federation.read(path),
        **terms,
    )
    write_whole(path, [federation.text().encode()])
    return federation


def train_with(
    agents: Sequence[AgentProcess],
    config: RunConfig,
    listeners: Sequence[Listener] = (),
    *,
    asked: Asked | None = None,
) -> Path:
    """Train with the real server loop; every message goes through a ClientApp to its agent.

    What was ``asked`` for says which keys the server fits to the graph; None: no keys.
    """
    grid, deployed = _grid(agents, config)
    if asked is None:
        return run_training(grid, deployed, listeners)
    return run_training(
        grid, deployed, listeners, profile=named_profile(asked), fitting=asked.fitting
    )


def predict_with(agents: Sequence[AgentProcess], config: RunConfig, run: Path) -> PredictionOutcome:
    """Predict with the model of a run; agents need a folder ``predictions`` in their settings."""
    grid, deployed = _grid(agents, config)
    model = read_trained_model(run)
    return PredictionLoop(
        grid=grid, config=deployed, model=model, form="npz", tell=lambda event: None
    ).run()


def predict_in_place_with(
    agents: Sequence[AgentProcess],
    config: RunConfig,
    task: InPlaceTask,
    listeners: Sequence[Listener] = (),
) -> dict[str, Any]:
    """Predict as the ServerApp of ``retexo predict --superlink`` does; return its summary."""
    grid, deployed = _grid(agents, config)
    return predict_in_place(grid, deployed, task, listeners)


def _grid(agents: Sequence[AgentProcess], config: RunConfig) -> tuple[ThreadGrid, RunConfig]:
    # Agents know their parts, and a server that deploys knows no path.
    values = {**config_values(config), "engine": "deployment", **dict.fromkeys(DATA_PATH_KEYS, "")}
    grid = ThreadGrid(make_client_app(), [{"agent": str(agent.socket)} for agent in agents], values)
    return grid, make_config(values)


def _settle(root: Path, member: Member, settings: Mapping[str, object]) -> AgentProcess:
    agent = AgentProcess(folder=root / str(member.client), client=member.client)
    keys = {
        "partition": root / "parts" / f"part-{member.client}",
        "state": agent.state,
        "socket": agent.socket,
        "key": agent.folder / "key.pem",
        "certificate": agent.folder / "certificate.pem",
        "roster": root / ROSTER,
    }
    lines = [f"{name} = {json.dumps(str(path))}" for name, path in keys.items()]
    lines += [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    listen = f"listen = {json.dumps(list(member.addresses))}\n"
    agent.settings.write_text("\n".join([*lines, listen]))
    return agent


def assert_same_training(one: Path, other: Path) -> None:
    """Compare weights bit by bit, and what crossed between clients."""
    assert model_bytes(one) == model_bytes(other)
    found = [
        {
            account: volume
            for account, volume in ledger_of(run).lines()
            if account.kind == "boundary" or account.peer == -2
        }
        for run in (one, other)
    ]
    assert found[0] == found[1]
    assert found[0]


def retexo(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line to its end."""
    return subprocess.run(
        [program("retexo"), *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
