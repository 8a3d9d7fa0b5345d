"""The senders' side of a measurement: processes of one namespace, as many as send at a time."""

from __future__ import annotations

import contextlib
import resource
import socket
import time
from dataclasses import dataclass
from typing import Final

import numpy as np

from retexo_fl.additions.kernel_path.endpoint import (
    DatagramEndpoint,
    Destination,
    UserSpaceReceiver,
)
from retexo_fl.additions.kernel_path.packets.layout import Tables
from retexo_fl.additions.kernel_path.packets.packets import PacketHead, pack_packets, read_ack
from retexo_fl.additions.kernel_path.packets.stream_shape import StreamShape
from retexo_fl.additions.kernel_path.xdp.aggregate import AggregateProgram, TableSizes
from retexo_fl.additions.kernel_path.xdp.attachments import Attachment
from retexo_fl.errors import ChannelTimedOut
from sims.kernel_path.paced import Paced
from sims.kernel_path.processes import Helper
from sims.kernel_path.wire import End, enter
from sims.kernel_path.workload import JOB, STAGE, WAYS, Case, Opened, values_of

_PATIENCE_S: Final = 20.0
_TINY: Final = TableSizes(cells=1, seen_blocks=1, slots=1, streams=1, regions=1)
#: Nobody's: the senders' program passes everything on.
_UNUSED_PORT: Final = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What one process of senders says of a measurement.

    Attributes:
        process_s: Processor time of all its threads.
        begun_s: When it began, on the monotonic clock.
        packets: Packets with vectors, repetitions included; 0 for TCP.
        repeated: Of these, repetitions.
        pace_s: Between two messages of a sender; 0 where nobody was paced.
    """

    process_s: float
    begun_s: float
    packets: int = 0
    repeated: int = 0
    pace_s: float = 0.0


class SendingSide:
    """The namespace of the senders, and their processes.

    Args:
        end: Where packets leave.
        most: Processes that send at a time, at most.
    """

    def __init__(self, end: End, most: int) -> None:
        enter(end.namespace)
        self._attachment: Attachment | None = None
        self._ifindex = socket.if_nametoindex(end.interface)
        # XDP sends answers into a virtual interface only if its other end has a program, too.
        self._program = AggregateProgram(_UNUSED_PORT, _TINY)
        _compile_everything()
        self._stack = contextlib.ExitStack()
        self._senders = [
            self._stack.enter_context(Helper("fork", Sender, number, end.address))
            for number in range(most)
        ]

    def prepare(self, case: Case, opened: Opened) -> None:
        """Have the senders connect and make their vectors."""
        if WAYS[case.way].kind == "xdp" and WAYS[case.way].mode == "native":
            self._attachment = self._program.program.attach_xdp(self._ifindex, "native")
        for sender in self._active(case):
            sender.begin("prepare", case, opened)
        for sender in self._active(case):
            sender.result()

    def send(self, case: Case) -> list[Sent]:
        """Have them send everything; return what each says."""
        for sender in self._active(case):
            sender.begin("send")
        return [sender.result() for sender in self._active(case)]

    def finish(self) -> None:
        """Undo what was prepared."""
        if self._attachment is not None:
            self._attachment.detach()
            self._attachment = None

    def close(self) -> None:
        """End all processes."""
        self._stack.close()
        self.finish()
        self._program.close()

    def _active(self, case: Case) -> list[Helper]:
        return self._senders[: 1 if case.message_rows else case.senders]


class Sender:
    """One sender's process; or one that plays all of them, where they are paced.

    Args:
        number: Which.
        address: IPv4 address that it sends from.
    """

    def __init__(self, number: int, address: str) -> None:
        self._number = number
        tables = Tables.allocate(cells=1, seen_blocks=1, slots=1, streams=1, regions=1)
        self._endpoint = DatagramEndpoint(f"{address}:0", UserSpaceReceiver(tables))
        self._endpoint.start()
        self._connection: socket.socket | None = None
        self._paced: Paced | None = None

    def prepare(self, case: Case, opened: Opened) -> None:
        """Make vectors, and connect."""
        self._case, self._opened = case, opened
        if case.message_rows:
            self._paced = Paced(case, opened)
            return
        self._values = values_of(case, self._number)
        if WAYS[case.way].kind == "tcp":
            self._connection = connected(opened.address)
            self._connection.sendall(self._number.to_bytes(4, "little"))

    def send(self) -> Sent:
        """Send everything, and wait until all of it was taken."""
        begun_s, process_s = time.monotonic(), time.process_time()
        packets = repeated = 0
        pace_s = 0.0
        if self._paced is not None:
            pace_s, repeated = self._paced.send()
            packets = self._paced.packets + repeated
        elif self._connection is not None:
            self._send_stream(self._connection)
        else:
            packets, repeated = self._send_datagrams()
        used_s = time.process_time() - process_s
        self._close()
        return Sent(
            process_s=used_s, begun_s=begun_s, packets=packets, repeated=repeated, pace_s=pace_s
        )

    def close(self) -> None:
        """End its thread."""
        self._close()
        self._endpoint.close()

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        if self._paced is not None:
            self._paced.close()
        self._connection = self._paced = None

    def _send_stream(self, connection: socket.socket) -> None:
        data = self._values.data.cast("B")
        for _ in range(self._case.exchanges):
            connection.sendall(data)
            connection.recv(1)

    def _send_datagrams(self) -> tuple[int, int]:
        packets = repeated = 0
        for exchange, grant in enumerate(self._opened.grants[self._number]):
            key = exchange.to_bytes(4, "big")
            self._endpoint.send(
                key,
                self._values,
                [Destination(address=self._opened.address, grant=grant)],
                job=JOB,
                stage=STAGE,
                sender=self._number,
                packet_cells=self._opened.packet_cells,
            )
            self._wait(key)
            state = self._endpoint.sending(key)
            packets, repeated = packets + state.sent, repeated + state.retransmitted
            self._endpoint.forget_sending(key)
        return packets, repeated

    def _wait(self, key: bytes) -> None:
        deadline_s = time.monotonic() + _PATIENCE_S
        while not self._endpoint.sending(key).done:
            if time.monotonic() > deadline_s:
                raise ChannelTimedOut(f"{self._case}: {self._endpoint.sending(key)}")
            self._endpoint.wait_for_change(1.0)


def connected(address: str) -> socket.socket:
    """Return a TCP connection that sends at once what it is given."""
    host, port = address.split(":")
    made = socket.create_connection((host, int(port)), timeout=_PATIENCE_S)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def _compile_everything() -> None:
    """Have this process compile what its children would each compile."""
    shape = StreamShape(1, 16, 1)
    head = PacketHead(token=1, stream=0, job=JOB, stage=STAGE, sender=0)
    packet = np.zeros((1, shape.packet_bytes), np.uint8)
    values, seqs = np.zeros((1, 16), np.int32), np.zeros(1, np.int64)
    pack_packets(shape, head, values, seqs, packet, flags=np.zeros(1, np.uint8))
    read_ack(packet[0])
    # A child's clock begins with what it does itself.
    resource.getrusage(resource.RUSAGE_SELF)
