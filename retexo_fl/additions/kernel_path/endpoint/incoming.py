"""What arrives at the socket: packets for the receiver, acknowledgements for the sender."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from retexo_fl.additions.kernel_path.endpoint.acks import Heard, ack_places, read_acks
from retexo_fl.additions.kernel_path.endpoint.receive_buffer import Received
from retexo_fl.additions.kernel_path.endpoint.receiver import PacketTaker
from retexo_fl.additions.kernel_path.endpoint.turns import TurnLock
from retexo_fl.additions.kernel_path.endpoint.udp_socket import Message, UdpSocket
from retexo_fl.additions.kernel_path.packets.aggregation import MAX_REPLY_BYTES
from retexo_fl.additions.kernel_path.packets.layout import (
    HEADER_BYTES,
    MAX_PACKET_BYTES,
    PacketKind,
)

#: Room for the answers to the packets of some messages; the kernel joins far fewer in one.
_MOST_REPLIES: Final = 2048
_KIND_AT: Final = 5
#: In a header's 64-bit words: the token, and the first packet of an ACK.
_TOKEN_WORD, _FIRST_WORD = 1, 5

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
        on_acks: Callable[[Sequence[Heard]], None],
    ) -> None:
        self._socket = socket
        self._taker = taker
        self._tables_lock = tables_lock
        self._on_acks = on_acks
        self._replies = np.zeros((_MOST_REPLIES, MAX_REPLY_BYTES), np.uint8)
        self._reply_lengths = np.zeros(_MOST_REPLIES, np.int64)
        self._replies_used = 0
        #: By content and receiver, their place in the replies.
        self._answers: dict[tuple[int, int, int, bytes], int] = {}
        self.packets = 0
        self.data = 0
        self.answers = 0
        self.answers_sent = 0

    def read(self) -> bool:
        """Read one batch, take it and answer; False where nothing had arrived."""
        received = self._socket.receive()
        if received is None:
            return False
        for packets, lengths, names in _batches(received):
            self._take(packets, lengths, names)
        self._answer()
        return True

    def counters(self) -> dict[str, int]:
        """Return what was counted."""
        return {
            "socket_packets": self.packets,
            "socket_data": self.data,
            "answers_sent": self.answers_sent,
            "answers_joined": self.answers - self.answers_sent,
        }

    def _take(
        self, packets: NDArray[np.uint8], lengths: NDArray[np.int64], names: NDArray[np.uint8]
    ) -> None:
        count = len(lengths)
        self.packets += count
        data = int(np.count_nonzero(packets[:, _KIND_AT] == PacketKind.DATA))
        self.data += data
        if data < count:
            acks = ack_places(packets, lengths)
            if len(acks):
                self._on_acks(read_acks(packets, acks))
            if len(acks) == count:
                return
        if self._replies_used + count > _MOST_REPLIES:
            self._answer()
        first = self._replies_used
        replies = self._replies[first : first + count]
        reply_lengths = self._reply_lengths[first : first + count]
        with self._tables_lock:
            self._taker.take(packets, lengths, replies, reply_lengths)
        answered = reply_lengths.nonzero()[0]
        if len(answered):
            self._replies_used += count
            self._note_answers(answered, names, first)

    def _note_answers(
        self, answered: NDArray[np.int64], names: NDArray[np.uint8], first: int
    ) -> None:
        """Keep answers for the end of the batch; of several alike, the last includes the others."""
        places = (answered + first).tolist()
        heads = self._replies[places, :HEADER_BYTES].view(np.uint64).tolist()
        whose = [0] * len(places) if len(names) == 1 else answered.tolist()
        for place, head, name in zip(places, heads, whose, strict=True):
            key = (head[0], head[_TOKEN_WORD], head[_FIRST_WORD], names[name].tobytes())
            self._answers[key] = place
        self.answers += len(places)

    def _answer(self) -> None:
        """Send the answers."""
        messages = []
        for (*_, name), place in self._answers.items():
            size = int(self._reply_lengths[place])
            messages.append(Message(self._replies[place, :size], size, name))
        self.answers_sent += len(messages)
        self._answers.clear()
        self._replies_used = 0
        # An answer that cannot be sent is one that was lost: who waits for it asks again.
        self._socket.send_lossy(messages)


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
