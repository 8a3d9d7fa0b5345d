"""What is sent in a measurement, and what has to come of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from retexo_fl.additions.kernel_path.endpoint import StreamGrant
from retexo_fl.additions.kernel_path.packets.layout import CELL_VALUES

Kind = Literal["xdp", "af_xdp", "udp", "numpy", "tcp"]

JOB: Final = 77
STAGE: Final = 3
#: A message every so often from each sender, where senders are paced.
PACE_S: Final = 200e-6
_VALUES_OF_BITS: Final = 24
#: Vectors repeat after so many: drawing takes long, and adding does not care.
_DRAWN_ROWS: Final = 1024
_VALUE_BYTES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way for vectors to arrive and be added up.

    Attributes:
        kind: Who takes and adds: "numpy" is a UDP receiver as one would write it.
        mode: Of an XDP program.
        joins_packets: A UDP socket gets packets that follow each other as one (GRO).
        has_super_frames: Frames hold several packets, as only virtual interfaces hand them over.
    """

    kind: Kind
    mode: Literal["native", "generic"] = "native"
    joins_packets: bool = True
    has_super_frames: bool = False


WAYS: Final = {
    "XDP native": Way(kind="xdp"),
    "XDP generic": Way(kind="xdp", mode="generic"),
    "AF_XDP": Way(kind="af_xdp"),
    "UDP": Way(kind="udp"),
    "UDP, not joined": Way(kind="udp", joins_packets=False),
    "UDP, super-frames": Way(kind="udp", has_super_frames=True),
    "UDP, numpy": Way(kind="numpy", joins_packets=False),
    "TCP": Way(kind="tcp"),
    "TCP, super-frames": Way(kind="tcp", has_super_frames=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One measurement.

    Attributes:
        way: One of :data:`WAYS`.
        width: Values of a vector.
        senders: Processes that send at a time; if they are paced, parts that one process plays.
        rows: Vectors of each sender in each exchange.
        exchanges: One after the other.
        message_rows: Vectors that each sender sends every 200 microseconds; 0: all at once.
        accumulators: Rows that the vectors are added to.
    """

    way: str
    width: int
    senders: int
    rows: int
    exchanges: int = 1
    message_rows: int = 0
    accumulators: int = 4096

    @property
    def vectors(self) -> int:
        """How many vectors are sent in all."""
        return self.rows * self.senders * self.exchanges

    @property
    def row_bytes(self) -> int:
        """Bytes of a vector."""
        return self.width * _VALUE_BYTES

    @property
    def row_cells(self) -> int:
        """Cells of a vector."""
        return -(-self.width // CELL_VALUES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What senders have to know.

    Attributes:
        address: ``IP:PORT`` of the receiver.
        packet_cells: Cells of a packet; 0 for TCP.
        grants: Of each sender, for each exchange; empty for TCP.
        opening_s: Processor time that opening took the receiver.
    """

    address: str
    packet_cells: int
    grants: tuple[tuple[StreamGrant, ...], ...]
    opening_s: float


def values_of(case: Case, sender: int) -> NDArray[np.int32]:
    """Return the vectors that a sender sends in each exchange, int32 [rows, width]."""
    generator = np.random.default_rng((sender, case.width))
    most = 1 << _VALUES_OF_BITS
    drawn = generator.integers(
        -most, most, (min(case.rows, _DRAWN_ROWS), case.width), dtype=np.int32
    )
    return np.resize(drawn, (case.rows, case.width))


def places_of(case: Case, sender: int) -> NDArray[np.int64]:
    """Return where each vector of a sender is added, int64 [rows]."""
    generator = np.random.default_rng((sender, case.rows, 1))
    return generator.integers(0, case.accumulators, case.rows)


def wanted_sum(case: Case) -> NDArray[np.int32]:
    """Return what one exchange has to come to, modulo 2^32, int32 [accumulators, width]."""
    return _wanted_sum(case.width, case.senders, case.rows, case.accumulators)


@cache
def _wanted_sum(width: int, senders: int, rows: int, accumulators: int) -> NDArray[np.int32]:
    case = Case(way="", width=width, senders=senders, rows=rows, accumulators=accumulators)
    result = np.zeros((accumulators, width), np.int32)
    for sender in range(senders):
        np.add.at(result, places_of(case, sender), values_of(case, sender))
    return result
