"""Senders of small messages, each at its pace; one process plays them all."""

from __future__ import annotations

import ctypes
import socket
import time
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from retexo_fl.additions.kernel_path.packets.layout import BLOCK_PACKETS
from retexo_fl.additions.kernel_path.packets.packets import (
    PacketHead,
    pack_packets,
    ping_packet,
    read_ack,
)
from retexo_fl.additions.kernel_path.packets.stream_shape import StreamShape
from retexo_fl.additions.kernel_path.packets.window import ack_flags
from retexo_fl.errors import ChannelTimedOut
from sims.kernel_path.workload import JOB, PACE_S, STAGE, WAYS, Case, Opened, values_of

_PATIENCE_S: Final = 15.0
#: How long answers to a question are waited for.
_ANSWER_S: Final = 0.005
_ANSWER_BYTES: Final = 2048
#: linux/prctl.h: how late a sleep may end, in nanoseconds.
_PR_SET_TIMERSLACK: Final = 29


class Paced:
    """All messages of all senders, made before; each sender has a socket of its own.

    Args:
        case: What is sent.
        opened: Where to.
    """

    def __init__(self, case: Case, opened: Opened) -> None:
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
        host, port = opened.address.split(":")
        address = (host, int(port))
        made = _Stream if WAYS[case.way].kind == "tcp" else _Datagrams
        self._senders: Sequence[_Stream | _Datagrams] = [
            made(case, opened, number, address) for number in range(case.senders)
        ]
        self._messages = case.rows // case.message_rows

    @property
    def packets(self) -> int:
        """How many messages there are."""
        return self._messages * len(self._senders)

    def send(self) -> tuple[float, int]:
        """Send everything; return the time between messages, and how many were sent twice."""
        sends = [(sender.socket.send, sender.messages) for sender in self._senders]
        begun_s = time.monotonic()
        for message in range(self._messages):
            left_s = begun_s + message * PACE_S - time.monotonic()
            if left_s > 0:
                time.sleep(left_s)
            for send, messages in sends:
                send(messages[message])
        pace_s = (time.monotonic() - begun_s) / self._messages
        return pace_s, self._finish()

    def close(self) -> None:
        """Close all sockets."""
        for sender in self._senders:
            sender.socket.close()

    def _finish(self) -> int:
        """Wait until everything was taken; return how many messages had to be repeated."""
        deadline_s = time.monotonic() + _PATIENCE_S
        repeated = 0
        waiting = list(self._senders)
        while waiting:
            if time.monotonic() > deadline_s:
                raise ChannelTimedOut("paced senders: not everything was taken")
            for sender in waiting:
                repeated += sender.finish()
            waiting = [sender for sender in waiting if not sender.is_done]
        return repeated


class _Stream:
    def __init__(self, case: Case, opened: Opened, number: int, address: tuple[str, int]) -> None:
        del opened
        self.is_done = False
        self.socket = socket.create_connection(address, timeout=_PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(number.to_bytes(4, "little"))
        data = values_of(case, number).data.cast("B")
        size = case.message_rows * case.row_bytes
        self.messages = [data[start : start + size] for start in range(0, len(data), size)]

    def finish(self) -> int:
        self.is_done = bool(self.socket.recv(1))
        return 0


class _Datagrams:
    def __init__(self, case: Case, opened: Opened, number: int, address: tuple[str, int]) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.connect(address)
        self.socket.setblocking(True)
        grant = opened.grants[number][0]
        self._head = PacketHead(
            token=grant.token, stream=grant.stream, job=JOB, stage=STAGE, sender=number
        )
        shape = StreamShape(case.rows, case.width, opened.packet_cells)
        seqs = np.arange(shape.packets)
        packets = np.zeros((shape.packets, shape.packet_bytes), np.uint8)
        values = values_of(case, number)
        pack_packets(shape, self._head, values, seqs, packets, flags=ack_flags(seqs))
        self.messages = [packet.data for packet in packets]
        self._is_taken = np.zeros(shape.packets + BLOCK_PACKETS, np.bool_)

    @property
    def is_done(self) -> bool:
        return bool(self._is_taken[: len(self.messages)].all())

    def finish(self) -> int:
        """Ask what has arrived, and send again what has not."""
        self._read(0.0)
        blocks = np.unique(self._missing() // BLOCK_PACKETS)
        for block in blocks.tolist():
            self.socket.send(ping_packet(self._head, block * BLOCK_PACKETS))
        self._read(_ANSWER_S)
        missing = self._missing().tolist()
        for seq in missing:
            self.socket.send(self.messages[seq])
        return len(missing)

    def _missing(self) -> NDArray[np.int64]:
        return np.flatnonzero(~self._is_taken[: len(self.messages)])

    def _read(self, patience_s: float) -> None:
        # Zero would mean that no answer is waited for at all, and none be read.
        self.socket.settimeout(max(patience_s, 1e-6))
        try:
            while not self.is_done:
                ack = read_ack(self.socket.recv(_ANSWER_BYTES))
                if ack is not None:
                    bits = np.unpackbits(ack.bits.view(np.uint8), bitorder="little")
                    self._is_taken[ack.base : ack.base + BLOCK_PACKETS] |= bits.view(np.bool_)
        except TimeoutError:
            pass
        finally:
            self.socket.setblocking(True)
