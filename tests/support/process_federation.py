"""A federation on one machine in which every client is a process, and so is the server.

The server runs the real loop over a :class:`~tests.support.process_grid.ProcessGrid`. A client owns
one folder and nothing else; blocks for its peers go to their inboxes in the spool::

    ROOT/client-0/parts/part-0/   its part           ROOT/spool/JOB/0/   its inbox
    ROOT/client-0/store/          what it keeps      ROOT/server/        the run directory

``python -m tests.support.process_federation JSON`` is one process of it; :func:`run_federation`
starts them all, under a command such as a tracer if one is given.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp

from retexo_fl.config import RunConfig, config_values, make_config
from tests.support.commands import ROOT, environment
from tests.support.process_grid import FIRST_NODE, Link, ProcessGrid, serve

_TIMEOUT_S: Final = 400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Federation:
    """Where the processes of a federation have their files.

    Attributes:
        root: Everything lies below it.
        clients: How many there are.
    """

    root: Path
    clients: int

    @property
    def run(self) -> Path:
        """The server's run directory."""
        return self.root / "server" / "run"

    @property
    def spool(self) -> Path:
        """Inboxes of all clients."""
        return self.root / "spool"

    def log(self, name: str) -> Path:
        """Return where a process prints to."""
        return self.root / f"{name}.log"

    def home(self, client: int) -> Path:
        """Return what a client owns."""
        return self.root / f"client-{client}"

    def part(self, client: int) -> Path:
        """Return a client's part."""
        return self.home(client) / "parts" / f"part-{client}"


def run_federation(
    federation: Federation,
    config: RunConfig,
    under: Callable[[str], Sequence[str]] = lambda name: (),
) -> None:
    """Train with every client and the server in a process of its own.

    Args:
        federation: Its clients have their parts.
        config: Of the run; its ``out`` is the run directory.
        under: Returns the command under which ``server``, ``client-0``, ... is started.

    Raises:
        AssertionError: A process failed, or did not end in time; with what it printed.
    """
    pairs = [socket.socketpair() for _ in range(federation.clients)]
    started: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for client, (_, theirs) in enumerate(pairs):
            name = f"client-{client}"
            started[name] = _start(federation, config, under(name), name, [theirs])
            theirs.close()
        ours = [pair[0] for pair in pairs]
        started["server"] = _start(federation, config, under("server"), "server", ours)
        for stream in ours:
            stream.close()
        _wait(federation, started)
    finally:
        for process in started.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _start(
    federation: Federation,
    config: RunConfig,
    under: Sequence[str],
    name: str,
    streams: Sequence[socket.socket],
) -> subprocess.Popen[bytes]:
    numbers = [stream.fileno() for stream in streams]
    facts = {
        "root": str(federation.root),
        "clients": federation.clients,
        "name": name,
        "streams": numbers,
        "config": config_values(config),
    }
    with federation.log(name).open("wb") as log:
        return subprocess.Popen(
            [*under, sys.executable, "-m", "tests.support.process_federation", json.dumps(facts)],
            cwd=ROOT,
            env=environment(),
            pass_fds=numbers,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            # A tracer that is killed would leave the process that it traces.
            start_new_session=True,
        )


def _wait(federation: Federation, started: Mapping[str, subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    codes = {}
    # The clients end when the server has.
    for name, process in reversed(list(started.items())):
        try:
            codes[name] = process.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            codes[name] = -signal.SIGALRM
    if any(codes.values()):
        logs = [f"{name}:\n{federation.log(name).read_text()[-3000:]}" for name in started]
        raise AssertionError(f"exit codes {codes}\n" + "\n".join(logs))


def _main(facts: dict[str, Any]) -> None:
    federation = Federation(root=Path(facts["root"]), clients=facts["clients"])
    links = [Link(socket.socket(fileno=number)) for number in facts["streams"]]
    config = make_config(facts["config"])
    if facts["name"] == "server":
        from retexo_fl.federation.server_app import run_training

        run_training(ProcessGrid(links), config)
        return
    (link,) = links
    client = int(facts["name"].removeprefix("client-"))
    context = Context(
        run_id=1,
        node_id=client + FIRST_NODE,
        node_config={"partition-id": client, "num-partitions": federation.clients},
        state=RecordDict(),
        run_config=config_values(config),
    )
    serve(_client_app(federation, config, client), link, context)


def _client_app(federation: Federation, config: RunConfig, client: int) -> ClientApp:
    """Return the app of a client that has its own part, its own store, and the spool."""
    from retexo_fl.channels import SpoolChannel
    from retexo_fl.client.api import ClientApi, Ticket
    from retexo_fl.client.client import GraphClient
    from retexo_fl.client.store import FolderStore
    from retexo_fl.federation.client_handlers import build_client_app
    from retexo_fl.graph import open_partition
    from retexo_fl.methods.lazy.answers import LazyClient

    part = open_partition(federation.part(client))
    clients: dict[str, GraphClient] = {}

    def find_client(context: Context, ticket: Ticket) -> ClientApi:
        assert context.node_config["partition-id"] == client
        if ticket.job not in clients:
            clients[ticket.job] = LazyClient(
                part,
                config,
                job=ticket.job,
                channel=SpoolChannel(federation.spool),
                store=FolderStore(federation.home(client) / "store" / ticket.job),
            )
        return clients[ticket.job]

    return build_client_app(find_client)


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))
