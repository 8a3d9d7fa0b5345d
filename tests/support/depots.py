"""Depots with their networks as one channel, for the contract that every channel satisfies."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from retexo_fl.channels import BlockKey, Channel
from retexo_fl.channels.gate import Admission
from tests.support.channel_contract import ChannelContract
from tests.support.peer_networks import Client, frames_of, header_of, running


class Open:
    """A gate that lets everything in that is not large."""

    def admission(self, key: BlockKey) -> Admission:
        return Admission(header=None, max_bytes=2**20)


@dataclass(frozen=True, slots=True)
class Depots:
    """All depots as one channel; sending waits until the block has arrived."""

    clients: Mapping[int, Client]
    within_s: float

    def send_block(self, key: BlockKey, frames: Sequence[bytes]) -> int:
        moved = self.clients[key.sender].depot.send_block(key, frames)
        assert not self.clients[key.receiver].depot.wait_for([key], self.within_s)
        return moved

    def receive_block(self, key: BlockKey) -> bytes | None:
        return self.clients[key.receiver].depot.receive_block(key)

    def senders(
        self, job: str, layer: int, weights_digest: bytes, *, receiver: int
    ) -> frozenset[int]:
        return self.clients[receiver].depot.senders(job, layer, weights_digest, receiver=receiver)

    def pile(self, job: str, layer: int, weights_digest: bytes) -> None:
        pass

    def forget_job(self, job: str, client: int) -> None:
        self.clients[client].depot.forget_job(job, client)


class DepotsContract(ChannelContract):
    """Use :meth:`exchanging` in a fixture of a subclass whose name begins with ``Test``."""

    @contextmanager
    def exchanging(
        self, clients: Mapping[int, Client], *, within_s: float = 20.0
    ) -> Iterator[None]:
        """Run the networks of clients, each block of which arrives within a time."""
        for client in clients.values():
            for job in ("job-1", "job-2"):
                client.depot.admit_job(job, Open())
        self._depots = Depots(clients, within_s)
        with running_apart(*clients.values()):
            yield

    def frames_of(self, key: BlockKey) -> tuple[bytes, ...]:
        header = header_of(key.sender, key.receiver, layer=key.layer, rows=40, job=key.job)
        return frames_of(replace(header, weights_digest=key.weights_digest), frame_bytes=1024)

    def ends(self) -> tuple[Channel, Channel]:
        return self._depots, self._depots


@contextmanager
def running_apart(*clients: Client) -> Iterator[None]:
    """Run the networks of clients in a thread, for a test that waits itself."""
    started, loop = threading.Event(), asyncio.new_event_loop()
    stopped = asyncio.Event()

    async def serve() -> None:
        async with running(*clients):
            started.set()
            await stopped.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert started.wait(30)
        yield
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join(30)
        loop.close()
