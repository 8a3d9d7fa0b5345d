"""What arrives at the socket: packets for the receiver, acknowledgements for the sender."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from retexo_fl.channels.datagrams.receiver import PacketTaker
from retexo_fl.channels.datagrams.turns import TurnLock
from retexo_fl.channels.datagrams.udp_socket import Message, Received, UdpSocket
from retexo_fl.exchange.datagrams.aggregation import MAX_REPLY_BYTES
from retexo_fl.exchange.datagrams.layout import (
    CELL_BYTES,
    HEADER_BYTES,
    MAX_PACKET_BYTES,
    PacketKind,
)
from retexo_fl.exchange.datagrams.packets import Ack, read_ack

#: More than one message of the socket holds of packets of ours.
_MOST_PACKETS: Final = 640
_KIND_AT: Final = 5
_ACK_BYTES: Final = HEADER_BYTES + CELL_BYTES
#: In a header's 64-bit words: the token, and the first packet that an ACK tells of.
_TOKEN_WORD, _SEQ_WORD, _FIRST_WORD = 1, 4, 5

_Batch = tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.uint8]]


class Incoming:
    """Reads the socket in batches.

    Args:
        socket: Where packets come from and answers go to.
        taker: Who takes them.
        tables_lock: Held while they are taken.
        on_acks: Called with acknowledgements.
    """

    def __init__(
        self,
        socket: UdpSocket,
        taker: PacketTaker,
        *,
        tables_lock: TurnLock,
        on_acks: Callable[[Sequence[Ack]], None],
    ) -> None:
        self._socket = socket
        self._taker = taker
        self._tables_lock = tables_lock
        self._on_acks = on_acks
        self._replies = np.zeros((_MOST_PACKETS, MAX_REPLY_BYTES), np.uint8)
        self._reply_lengths = np.zeros(_MOST_PACKETS, np.int64)
        self.packets = 0
        self.data = 0
        self.acks_joined = 0

    def read(self) -> bool:
        """Read one batch, take it and answer; False where nothing had arrived."""
        received = self._socket.receive()
        if received is None:
            return False
        for packets, lengths, names in _batches(received):
            self._take(packets, lengths, names)
        return True

    def counters(self) -> dict[str, int]:
        """Return what was counted."""
        return {
            "socket_packets": self.packets,
            "socket_data": self.data,
            "acks_joined": self.acks_joined,
        }

    def _take(
        self, packets: NDArray[np.uint8], lengths: NDArray[np.int64], names: NDArray[np.uint8]
    ) -> None:
        count = len(lengths)
        self.packets += count
        with self._tables_lock:
            self._taker.take(packets, lengths, self._replies, self._reply_lengths)
        answered = np.flatnonzero(self._reply_lengths[:count])
        if len(answered):
            self._answer(answered, names)
        kinds = packets[:, _KIND_AT]
        self.data += int(np.count_nonzero(kinds == PacketKind.DATA))
        acks = np.flatnonzero((kinds == PacketKind.ACK) & (lengths == _ACK_BYTES))
        if len(acks):
            self._hear(packets, acks)

    def _answer(self, answered: NDArray[np.int64], names: NDArray[np.uint8]) -> None:
        """Send the answers; of several that tell of the same packets, the last tells all."""
        words = self._replies[answered].view(np.uint64)
        kinds = self._replies[answered, _KIND_AT]
        latest: dict[tuple[object, ...], int] = {}
        for place, row, kind, told in zip(
            answered.tolist(),
            names[answered if len(names) > 1 else answered * 0],
            kinds.tolist(),
            words[:, (_TOKEN_WORD, _FIRST_WORD)].tolist(),
            strict=True,
        ):
            key = (kind, *told, row.tobytes())
            latest[key] = place
        self.acks_joined += len(answered) - len(latest)
        answers = [
            Message(self._replies[place, :size], size, key[-1])  # type: ignore[arg-type]
            for key, place in latest.items()
            for size in (int(self._reply_lengths[place]),)
        ]
        # An answer that cannot be sent is one that was lost: who waits for it asks again.
        self._socket.send_lossy(answers)

    def _hear(self, packets: NDArray[np.uint8], acks: NDArray[np.int64]) -> None:
        """Tell of acknowledgements; of several of the same packets, the last tells all."""
        words = packets[acks, :HEADER_BYTES].view(np.uint64)
        latest = {
            tuple(told): place
            for told, place in zip(
                words[:, (_TOKEN_WORD, _FIRST_WORD)].tolist(), acks.tolist(), strict=True
            )
        }
        found = [read_ack(packets[place, :_ACK_BYTES]) for place in latest.values()]
        self._on_acks([ack for ack in found if ack is not None])


def _batches(received: Received) -> Iterator[_Batch]:
    """Cut what was received into tables of packets of one stride, with the names of who sent.

    Messages of one packet each are rows of one table; the packets of a message that the kernel
    joined are rows of a table of its own.
    """
    stride, lengths, packet_bytes = received.stride, received.lengths, received.packet_bytes
    is_joined = lengths > packet_bytes
    if not is_joined.any():
        yield _rows(received, 0, len(lengths))
        return
    begun = 0
    for place in np.flatnonzero(is_joined).tolist():
        if place > begun:
            yield _rows(received, begun, place)
        data = received.data[place * stride :]
        names = received.names[place : place + 1]
        yield (*_cut(data, int(lengths[place]), int(packet_bytes[place])), names)
        begun = place + 1
    if len(lengths) > begun:
        yield _rows(received, begun, len(lengths))


def _rows(received: Received, first: int, last: int) -> _Batch:
    data = received.data[first * received.stride : last * received.stride]
    table = data.reshape(last - first, received.stride)
    return table, received.lengths[first:last], received.names[first:last]


def _cut(
    data: NDArray[np.uint8], size: int, packet_bytes: int
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the packets of one message as a table, and their lengths."""
    count = -(-size // packet_bytes)
    lengths = np.full(count, packet_bytes, np.int64)
    lengths[-1] = size - (count - 1) * packet_bytes
    table = data[: count * packet_bytes].reshape(count, packet_bytes)
    if packet_bytes % 8 == 0 and packet_bytes >= HEADER_BYTES:
        return table, lengths
    # Not ours: it is looked at and counted all the same. Rows are aligned in a copy.
    aligned = np.zeros((count, MAX_PACKET_BYTES), np.uint8)
    aligned[:, : min(packet_bytes, MAX_PACKET_BYTES)] = table[:, :MAX_PACKET_BYTES]
    return aligned, lengths
