"""Datagram endpoints of one process for tests, and sockets that lose what they should send."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from retexo_fl.additions.kernel_path.endpoint import (
    DatagramEndpoint,
    Destination,
    IncomingStream,
    StreamGrant,
    UserSpaceReceiver,
)
from retexo_fl.additions.kernel_path.endpoint.broadcasting import BroadcastKind
from retexo_fl.additions.kernel_path.endpoint.udp_socket import Message, UdpSocket, single_packets
from retexo_fl.additions.kernel_path.packets.layout import Tables
from retexo_fl.additions.kernel_path.packets.pacing import WindowTimes

JOB, STAGE = 77, 3
_DEADLINE_S = 20.0
#: So that a test need not wait long for what takes seconds where links are bad.
SHORT = WindowTimes(first_s=0.02, least_s=0.01, most_s=0.05, ping_s=0.05, timeouts=4)


class UnreliableSocket(UdpSocket):
    """Loses, repeats and reorders packets, or has no way out.

    Args:
        loss: Share of packets that are lost.
        repeated: Share of packets that are sent twice.
        reordered: Share of packets that wait until the next batch.
    """

    def __init__(
        self,
        *,
        loss: float = 0.0,
        repeated: float = 0.0,
        reordered: float = 0.0,
        seed: int = 0,
        joins_packets: bool = True,
    ) -> None:
        super().__init__("127.0.0.1:0", joins_packets=joins_packets)
        self._random = random.Random(seed)
        self._loss, self._repeated, self._reordered = loss, repeated, reordered
        self._late: list[Message] = []
        self.is_cut = False
        self.problem: OSError | None = None
        #: Message bytes from which on ``problem`` is met.
        self.problem_from_bytes = 0

    def send(self, messages: Sequence[Message]) -> int:
        if self.problem and any(len(each.data) >= self.problem_from_bytes for each in messages):
            self.messages_sent = 0
            raise self.problem
        packets = single_packets(messages)
        chosen, self._late = self._late, []
        for packet in packets:
            kept = Message(packet.data.copy(), packet.packet_bytes, packet.name)
            if self._random.random() < self._loss:
                continue
            if self._random.random() < self._reordered:
                self._late.append(kept)
                continue
            chosen += [kept] * (2 if self._random.random() < self._repeated else 1)
        if not self.is_cut:
            super().send(chosen)
        self.messages_sent = len(messages)
        return len(packets)


def tables(cells: int = 2**16) -> Tables:
    return Tables.allocate(cells=cells, seen_blocks=512, slots=2**15, streams=64, regions=16)


@contextmanager
def endpoint(
    socket: UdpSocket | None = None,
    *,
    receiver: UserSpaceReceiver | None = None,
    address: str = "127.0.0.1:0",
    broadcast: BroadcastKind = "auto",
    memory_bytes: int = 2**20,
    times: WindowTimes | None = None,
) -> Iterator[DatagramEndpoint]:
    made = DatagramEndpoint(
        address,
        receiver or UserSpaceReceiver(tables()),
        socket=socket,
        broadcast=broadcast,
        memory_bytes=memory_bytes,
        times=times,
    )
    made.start()
    try:
        yield made
    finally:
        made.close()


def vectors(rows: int, width: int, seed: int = 0) -> NDArray[np.int32]:
    return np.random.default_rng(seed).integers(-(2**24), 2**24, (rows, width), dtype=np.int32)


def places(rows: int, accumulators: int, seed: int = 0) -> NDArray[np.int64]:
    return np.random.default_rng(seed + 1000).integers(0, accumulators, rows)


def expected_sum(
    accumulators: int, parts: Sequence[tuple[NDArray[np.int32], NDArray[np.int64]]], width: int
) -> NDArray[np.int32]:
    result = np.zeros((accumulators, width), np.int64)
    for values, where in parts:
        kept = where >= 0
        np.add.at(result, where[kept], values[kept])
    return result.astype(np.int32)


def begin(
    receiver: DatagramEndpoint,
    key: bytes,
    *,
    width: int,
    accumulators: int,
    streams: int,
    cache_key: bytes | None = None,
) -> int:
    receiver.open_exchange(
        key,
        job=JOB,
        stage=STAGE,
        width=width,
        streams_expected=streams,
        cache_key=cache_key,
    )
    return receiver.add_rows(key, accumulators)


def grant(
    receiver: DatagramEndpoint,
    key: bytes,
    where: NDArray[np.int64],
    *,
    width: int,
    handle: int = 0,
    sender: int = 0,
    packet_cells: int = 22,
    forms: NDArray[np.uint8] | None = None,
) -> StreamGrant:
    incoming = IncomingStream(
        sender=sender,
        rows=len(where),
        width=width,
        packet_cells=packet_cells,
        places=where,
        forms=forms,
    )
    return receiver.open_stream(key, incoming, handle)


def send(
    sender: DatagramEndpoint,
    key: bytes,
    values: NDArray[np.int32] | NDArray[np.uint8],
    to: Sequence[tuple[DatagramEndpoint, StreamGrant]],
    *,
    number: int = 0,
    packet_cells: int = 22,
) -> None:
    sender.send(
        key,
        values,
        [Destination(address=each.address, grant=granted) for each, granted in to],
        job=JOB,
        stage=STAGE,
        sender=number,
        packet_cells=packet_cells,
    )


def wait_until(
    endpoint: DatagramEndpoint, condition: Callable[[], bool], *, timeout_s: float = _DEADLINE_S
) -> None:
    """Wait for changes of one endpoint until a condition holds."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        left_s = deadline_s - time.monotonic()
        assert left_s > 0, f"it did not happen: {endpoint.counters()}"
        endpoint.wait_for_change(min(left_s, 0.05))


def complete(receiver: DatagramEndpoint, key: bytes) -> None:
    wait_until(receiver, lambda: receiver.progress(key).complete)


def sent(sender: DatagramEndpoint, key: bytes) -> None:
    wait_until(sender, lambda: sender.sending(key).done)
