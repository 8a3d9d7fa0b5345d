"""Clients with a depot, a key and a network over TCP of this machine; and one who misbehaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from retexo_fl.channels import BlockKey
from retexo_fl.channels.depot import BlockDepot
from retexo_fl.channels.doorway import Proved, prove
from retexo_fl.channels.gate import Admission
from retexo_fl.channels.identity import Identity, make_identity
from retexo_fl.channels.limits import LinkLimits
from retexo_fl.channels.network import PeerNetwork
from retexo_fl.channels.roster import Member, Roster
from retexo_fl.channels.secure_stream import SecureStream, connecting_context
from retexo_fl.channels.transports.tcp import TcpTransport
from retexo_fl.errors import PeerRefused
from retexo_fl.exchange import BlockHeader, encode_block
from tests.support.loopback import free_ports

JOB = "job-1"
#: Short enough for a test, long enough for a machine that is busy with others.
QUICK = LinkLimits(
    retry_first_s=0.05, retry_most_s=0.4, awaited_only_s=0.05, penalty_first_s=30.0, patience_s=0.2
)


def header_of(
    sender: int, receiver: int, *, layer: int = 0, rows: int = 8, job: str = JOB
) -> BlockHeader:
    return BlockHeader(
        job=job,
        layer=layer,
        sender=sender,
        receiver=receiver,
        weights_digest=bytes([layer]) * 32,
        num_edges=3,
        plan_digest=b"p" * 32,
        num_vectors=rows,
        width=64,
        dtype="float32",
    )


def frames_of(header: BlockHeader, *, frame_bytes: int = 2**20) -> tuple[bytes, ...]:
    rows = np.random.default_rng(header.layer).standard_normal((header.num_vectors, header.width))
    vectors = rows.astype(header.dtype)
    return encode_block(header, vectors, codec="dense", max_frame_bytes=frame_bytes).frames


class Plan:
    """A gate that lets in what a plan of ``rows`` vectors for every layer below ten allows."""

    def __init__(self, rows: int = 8, max_bytes: int = 2**24) -> None:
        self._rows = rows
        self._max_bytes = max_bytes

    def admission(self, key: BlockKey) -> Admission:
        if key.layer >= 10:
            raise PeerRefused(f"client {key.sender} offers layer {key.layer}, expected below 10")
        header = header_of(key.sender, key.receiver, layer=key.layer, rows=self._rows, job=key.job)
        return Admission(
            header=replace(header, weights_digest=key.weights_digest), max_bytes=self._max_bytes
        )


@cache
def _keys(folder: Path, client: int) -> Identity:
    return make_identity(folder / f"key-{client}", client)


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """One client and its network."""

    identity: Identity
    depot: BlockDepot
    network: PeerNetwork


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Identities and addresses of clients 0 to ``clients - 1``; files below ``folder``."""

    folder: Path
    roster: Roster

    @classmethod
    def of(cls, folder: Path, clients: int, *, without_route: tuple[int, ...] = ()) -> World:
        members = []
        for client, port in enumerate(free_ports(clients)):
            addresses = () if client in without_route else (f"tcp://127.0.0.1:{port}",)
            members.append(
                Member(
                    client=client,
                    certificate_pem=_keys(folder, client).certificate_pem,
                    addresses=addresses,
                )
            )
        return cls(folder=folder, roster=Roster.of(members))

    def identity(self, client: int) -> Identity:
        return _keys(self.folder, client)

    def address(self, client: int) -> str:
        return self.roster.members[client].addresses[0]

    def client(self, client: int, *, limits: LinkLimits = QUICK, job: str = JOB) -> Client:
        depot = BlockDepot(self.folder / f"depot-{client}", client)
        depot.admit_job(job, Plan())
        network = PeerNetwork(
            self.identity(client),
            self.roster,
            depot,
            listen=self.roster.members[client].addresses,
            limits=limits,
        )
        return Client(identity=self.identity(client), depot=depot, network=network)

    async def prove_as(self, client: int, to: int) -> Proved:
        """Connect to a client by hand, with the key of another."""
        stream = await TcpTransport().connect(self.address(to), to)
        member = self.roster.members[to]
        secure = SecureStream(
            connecting_context(self.identity(client), member),
            is_accepting=False,
            clients={member.digest: to},
        )
        return await prove(stream, secure, within_s=10.0)


@asynccontextmanager
async def running(*clients: Client) -> AsyncIterator[None]:
    """Run the networks of clients."""
    tasks = []
    for client in clients:
        ready = asyncio.Event()
        tasks.append(asyncio.create_task(client.network.run(ready)))
        await asyncio.wait_for(ready.wait(), 10)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


async def arrive(receiver: Client, *keys: BlockKey) -> None:
    """Wait until blocks are whole."""
    missing = await asyncio.to_thread(receiver.depot.wait_for, keys, 100.0)
    assert not missing


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(100):
        while not holds():
            await asyncio.sleep(0.01)


def run(story: Awaitable[None]) -> None:
    """Run a test's story in an event loop of its own."""

    async def _bounded() -> None:
        async with asyncio.timeout(200):
            await story

    asyncio.run(_bounded())
