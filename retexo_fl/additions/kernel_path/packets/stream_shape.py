"""How a stream of vectors is cut into packets: everything follows from a few numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retexo_fl.additions.kernel_path.packets.layout import (
    BLOCK_PACKETS,
    CELL_BYTES,
    CELL_VALUES,
    CELLS_IN_BYTES,
    HEADER_BYTES,
    IP_UDP_BYTES,
    MAX_PACKET_CELLS,
)
from retexo_fl.errors import LocalProtocolError

#: ``offset`` of a packet is 16 bits wide: no vector is longer than 1,048,560 values.
_MAX_ROW_CELLS = 2**16 - 1
_MAX_PACKETS = 2**32 - 1


def packet_cells_for(mtu_bytes: int) -> int:
    """Return how many cells a packet carries on a path; 22 at 1,500 bytes, 140 at the most.

    Raises:
        LocalProtocolError: Not even one fits.
    """
    cells = (mtu_bytes - IP_UDP_BYTES - HEADER_BYTES) // CELL_BYTES
    if cells < 1:
        least = IP_UDP_BYTES + HEADER_BYTES + CELL_BYTES
        raise LocalProtocolError(f"path MTU is {mtu_bytes} bytes, expected at least {least}")
    return min(cells, MAX_PACKET_CELLS)


def units_of(cells: int, in_bytes: bool) -> int:
    """Return how many times 64 bytes the payload of so many cells takes."""
    return -(-cells // CELLS_IN_BYTES) if in_bytes else cells


@dataclass(frozen=True, slots=True)
class StreamShape:
    """A stream's vectors, each padded to whole cells, end to end and cut every few cells.

    Attributes:
        rows: Number of vectors; 0 makes a stream without packets.
        width: Values of a vector, at least 1.
        packet_cells: Cells of every packet but the last, 1 to 140; in bytes to 560.
        in_bytes: Values are of a byte each, not int32.

    Raises:
        LocalProtocolError: A number is out of range.
    """

    rows: int
    width: int
    packet_cells: int
    in_bytes: bool = False

    @classmethod
    def in_room(cls, rows: int, width: int, room_cells: int, *, in_bytes: bool) -> Self:
        """Return the shape where a packet has room for so many cells of int32."""
        return cls(rows, width, room_cells * (CELLS_IN_BYTES if in_bytes else 1), in_bytes)

    def __post_init__(self) -> None:
        if self.rows < 0 or self.width < 1:
            raise LocalProtocolError(
                f"stream of {self.rows} vectors of {self.width} values, expected at least 0 and 1"
            )
        most = MAX_PACKET_CELLS * self._cells_in_unit
        if not 1 <= self.packet_cells <= most:
            raise LocalProtocolError(f"packet_cells is {self.packet_cells}, expected 1 to {most}")
        if self.row_cells > _MAX_ROW_CELLS or self.packets > _MAX_PACKETS:
            raise LocalProtocolError(
                f"stream of {self.rows} vectors of {self.width} values is too large: expected at "
                f"most {_MAX_ROW_CELLS * CELL_VALUES} values in a vector and {_MAX_PACKETS} packets"
            )

    @property
    def row_cells(self) -> int:
        """Cells of one vector."""
        return -(-self.width // CELL_VALUES)

    @property
    def cells(self) -> int:
        """Cells of all vectors."""
        return self.rows * self.row_cells

    @property
    def packets(self) -> int:
        """Packets of the stream, numbered from 0."""
        return -(-self.cells // self.packet_cells)

    @property
    def seen_blocks(self) -> int:
        """Blocks of 512 seen bits that a receiver needs."""
        return -(-self.packets // BLOCK_PACKETS)

    @property
    def packet_bytes(self) -> int:
        """Bytes of every packet but the last: the segment size of offloaded segmentation."""
        return HEADER_BYTES + self._payload_bytes(self.packet_cells)

    @property
    def last_packet_bytes(self) -> int:
        """Bytes of the last packet; 0 in a stream without packets."""
        if not self.packets:
            return 0
        return HEADER_BYTES + self._payload_bytes(int(self.cells_in(self.packets - 1)))

    @property
    def total_bytes(self) -> int:
        """Bytes of all packets, each sent once; without the headers of IP and UDP."""
        return max(self.packets - 1, 0) * self.packet_bytes + self.last_packet_bytes

    @property
    def _cells_in_unit(self) -> int:
        return CELLS_IN_BYTES if self.in_bytes else 1

    def _payload_bytes(self, cells: int) -> int:
        return units_of(cells, self.in_bytes) * CELL_BYTES

    def cells_in(self, seq: ArrayLike) -> NDArray[np.int64]:
        """Return how many cells packets carry; int64 in the form of ``seq``."""
        left = self.cells - np.asarray(seq, dtype=np.int64) * self.packet_cells
        return np.minimum(left, self.packet_cells)

    def first_of(self, seq: ArrayLike) -> NDArray[np.int64]:
        """Return the vectors that the first cells of packets belong to."""
        return np.asarray(seq, dtype=np.int64) * self.packet_cells // self.row_cells

    def offset_of(self, seq: ArrayLike) -> NDArray[np.int64]:
        """Return which cells of their vectors the first cells of packets are."""
        return np.asarray(seq, dtype=np.int64) * self.packet_cells % self.row_cells
