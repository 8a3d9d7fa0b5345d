"""The receiver's side of a measurement: a process in a namespace of its own."""

from __future__ import annotations

import resource
import time
from dataclasses import asdict
from typing import Final

import numpy as np

from retexo_fl.additions.kernel_path.endpoint import (
    DatagramEndpoint,
    IncomingStream,
    UserSpaceReceiver,
)
from retexo_fl.additions.kernel_path.endpoint.receiver import Receiver
from retexo_fl.additions.kernel_path.endpoint.udp_socket import UdpSocket
from retexo_fl.additions.kernel_path.packets.layout import Tables
from retexo_fl.additions.kernel_path.packets.stream_shape import StreamShape
from retexo_fl.additions.kernel_path.xdp.af_xdp import AfXdpReceiver
from retexo_fl.additions.kernel_path.xdp.aggregate import TableSizes
from retexo_fl.additions.kernel_path.xdp.receiver import XdpReceiver
from retexo_fl.errors import ChannelTimedOut
from sims.kernel_path.numpy_receiver import NumpyReceiver
from sims.kernel_path.tcp_receiver import TcpReceiver
from sims.kernel_path.wire import End, enter
from sims.kernel_path.workload import JOB, STAGE, WAYS, Case, Opened, Way, places_of, wanted_sum

_PORT: Final = 7411
_PATIENCE_S: Final = 20.0


class ReceivingSide:
    """Opens one way after the other.

    Args:
        end: Where packets arrive.
    """

    def __init__(self, end: End) -> None:
        enter(end.namespace)
        self._end = end
        self._endpoint: DatagramEndpoint | None = None
        self._tcp: TcpReceiver | None = None

    def open(self, case: Case) -> Opened:
        """Prepare for a measurement."""
        self._case = case
        if WAYS[case.way].kind == "tcp":
            self._tcp = TcpReceiver(case, self._end.address)
            return Opened(address=self._tcp.address, packet_cells=0, grants=(), opening_s=0.0)
        return self._open_datagrams(case, WAYS[case.way])

    def ready(self) -> None:
        """Begin to count; senders have connected."""
        if self._tcp is not None:
            self._tcp.accept()
        self._process_s = time.process_time()
        self._wake_ups = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw

    def receive(self) -> tuple[float, float, int]:
        """Wait until everything was added; return processor time, the end's time and wake-ups."""
        if self._tcp is not None:
            self._tcp.receive()
        else:
            self._wait_for_all()
        wake_ups = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - self._wake_ups
        return time.process_time() - self._process_s, time.monotonic(), wake_ups

    def finish(self) -> tuple[int, bool]:
        """Compare the sums and close; return packets through user space, and exactness."""
        wanted = wanted_sum(self._case)
        if self._tcp is not None:
            found = self._tcp.sums
            self._tcp.close()
            self._tcp = None
            return 0, bool(np.array_equal(found, wanted * np.int32(self._case.exchanges)))
        assert self._endpoint is not None
        rows = [self._endpoint.rows(key, 0) for key in self._keys]
        is_exact = all(np.array_equal(each, wanted) for each in rows)
        packets = self._endpoint.counters()["socket_data"]
        self.close()
        return packets, is_exact

    def close(self) -> None:
        """Close what is open."""
        if self._tcp is not None:
            self._tcp.close()
        if self._endpoint is not None:
            self._endpoint.close()
        self._tcp = self._endpoint = None

    def _open_datagrams(self, case: Case, way: Way) -> Opened:
        bound = UdpSocket(f"{self._end.address}:{_PORT}", joins_packets=way.joins_packets)
        receiver = _receiver(case, way, self._end.interface)
        self._endpoint = DatagramEndpoint("", receiver, socket=bound)
        self._endpoint.start()
        packet_cells = min(
            self._endpoint.packet_cells_to(f"{self._end.address.rpartition('.')[0]}.1:9"),
            receiver.max_cells,
        )
        if case.message_rows:
            packet_cells = case.message_rows * case.row_cells
        self._keys = [exchange.to_bytes(4, "big") for exchange in range(case.exchanges)]
        places = [places_of(case, sender) for sender in range(case.senders)]
        begun = time.process_time()
        grants = [
            self._open_exchange(self._endpoint, key, packet_cells, places) for key in self._keys
        ]
        return Opened(
            address=self._endpoint.address,
            packet_cells=packet_cells,
            grants=tuple(zip(*grants, strict=True)),
            opening_s=time.process_time() - begun,
        )

    def _open_exchange(
        self, endpoint: DatagramEndpoint, key: bytes, packet_cells: int, places: list[np.ndarray]
    ) -> list[object]:
        case = self._case
        endpoint.open_exchange(
            key, job=JOB, stage=STAGE, width=case.width, streams_expected=case.senders
        )
        handle = endpoint.add_rows(key, case.accumulators)
        streams = [
            IncomingStream(
                sender=sender,
                rows=case.rows,
                width=case.width,
                packet_cells=packet_cells,
                places=where,
            )
            for sender, where in enumerate(places)
        ]
        return [endpoint.open_stream(key, stream, handle) for stream in streams]

    def _wait_for_all(self) -> None:
        assert self._endpoint is not None
        deadline_s = time.monotonic() + _PATIENCE_S
        for key in self._keys:
            while not self._endpoint.progress(key).complete:
                if time.monotonic() > deadline_s:
                    raise ChannelTimedOut(
                        f"{self._case}: {self._endpoint.progress(key)}, {self._endpoint.counters()}"
                    )
                self._endpoint.wait_for_change(1.0)


def _receiver(case: Case, way: Way, interface: str) -> Receiver:
    shape = StreamShape(case.rows, case.width, case.message_rows * case.row_cells or 22)
    streams = case.senders * case.exchanges
    sizes = TableSizes(
        cells=case.accumulators * case.row_cells * case.exchanges,
        seen_blocks=shape.seen_blocks * streams,
        slots=case.rows * streams,
        streams=streams,
        regions=case.exchanges,
    )
    if way.kind == "xdp":
        return XdpReceiver(interface, _PORT, sizes=sizes, mode=way.mode)
    tables = Tables.allocate(**asdict(sizes))
    if way.kind == "af_xdp":
        return AfXdpReceiver(interface, _PORT, tables, mode=way.mode)
    return NumpyReceiver(tables) if way.kind == "numpy" else UserSpaceReceiver(tables)
