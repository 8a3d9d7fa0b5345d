"""Real networks between depots of one process: TCP and TLS over the loopback interface."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from retexo_fl.channels.depot import BlockDepot
from retexo_fl.channels.identity import Identity, make_identity
from retexo_fl.channels.network import PeerNetwork
from retexo_fl.channels.roster import Member, Roster

_START_S = 30.0


#: Below those from which the system takes a port for a connection that goes out.
_PORTS = range(10_000, 32_000)
#: Processes that test side by side begin at places of their own, and take each port once.
_candidates = itertools.chain(
    range(_PORTS.start + os.getpid() * 211 % len(_PORTS), _PORTS.stop), itertools.cycle(_PORTS)
)


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback interface that nobody uses."""
    found: list[int] = []
    while len(found) < count:
        port = next(_candidates)
        with socket.socket() as tried, contextlib.suppress(OSError):
            tried.bind(("127.0.0.1", port))
            found.append(port)
    return found


def make_members(
    root: Path, clients: int, addresses: Sequence[str | tuple[str, ...]] | None = None
) -> tuple[list[Identity], Roster]:
    """Give every client a key in ``root/CLIENT`` and addresses: of loopback, or those given."""
    identities = [make_identity(root / str(client), client) for client in range(clients)]
    own = addresses or [f"tcp://127.0.0.1:{port}" for port in free_ports(clients)]
    members = [
        Member(
            client=client,
            certificate_pem=identity.certificate_pem,
            addresses=(address,) if isinstance(address, str) else address,
        )
        for client, (identity, address) in enumerate(zip(identities, own, strict=True))
    ]
    return identities, Roster.of(members)


@contextlib.contextmanager
def connected(
    depots: Sequence[BlockDepot], identities: Sequence[Identity], roster: Roster
) -> Iterator[None]:
    """Run a network for each depot in a thread of their own."""
    networks = [
        PeerNetwork(identity, roster, depot, listen=roster.members[depot.client].addresses)
        for identity, depot in zip(identities, depots, strict=True)
    ]
    started, loop = threading.Event(), asyncio.new_event_loop()
    running: list[asyncio.Task[object]] = []

    async def run() -> None:
        ready = [asyncio.Event() for _ in networks]
        tasks = [
            asyncio.create_task(network.run(event))
            for network, event in zip(networks, ready, strict=True)
        ]
        running.extend(tasks)
        await asyncio.gather(*(event.wait() for event in ready))
        started.set()
        await asyncio.gather(*tasks, return_exceptions=True)

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()), daemon=True)
    thread.start()
    assert started.wait(_START_S), "the networks did not start"
    try:
        yield
    finally:
        for task in running:
            loop.call_soon_threadsafe(task.cancel)
        thread.join(_START_S)
        loop.close()
