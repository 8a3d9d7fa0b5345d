"""The machine code that decides whether a packet is taken; ``take_packets`` has the order."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from retexo_fl.additions.kernel_path.packets.compiled import kernel_part
from retexo_fl.additions.kernel_path.packets.layout import (
    BLOCK_PACKETS,
    CELL_BYTES,
    CELLS_IN_BYTES,
    COUNTER_NAMES,
    DATAGRAM_VERSION,
    HEADER_BYTES,
    MAGIC,
    PacketKind,
)

# numba has no str.index: numbers are looked up here.
PASSED: Final = COUNTER_NAMES.index("passed")
MALFORMED: Final = COUNTER_NAMES.index("malformed")
FOREIGN: Final = COUNTER_NAMES.index("foreign")
#: No counter: the packet may be taken.
GOOD: Final = -1

_DATA, _ACK, _PING = (int(kind) for kind in PacketKind)


@kernel_part
def _units(cells: Any, in_bytes: Any) -> Any:
    """Return what :func:`.units_of` does."""
    return (cells + CELLS_IN_BYTES - 1) // CELLS_IN_BYTES if in_bytes else cells


@kernel_part
def judge_frame(header: Any, size: Any, room: Any, max_cells: Any) -> Any:
    """Return the counter of a packet that is not to be taken for its form alone."""
    if size < 4 or header.magic != MAGIC:
        return PASSED
    if size < HEADER_BYTES or header.version != DATAGRAM_VERSION:
        return MALFORMED
    if header.kind == _ACK:
        return PASSED
    units = _units(np.int64(header.cells), header.in_bytes)
    good = header.kind in (_DATA, _PING) and header.in_bytes <= 1 and 1 <= units <= max_cells
    good = good and size <= room and size == HEADER_BYTES + units * CELL_BYTES
    return GOOD if good else MALFORMED


@kernel_part
def judge_stream(header: Any, streams: Any, regions: Any, seen: Any) -> Any:
    """Return the counter of a packet that none of the open streams is waiting for."""
    if header.stream >= len(streams):
        return FOREIGN
    stream = streams[header.stream]
    if stream.token == 0 or stream.token != header.token or stream.job != header.job:
        return FOREIGN
    if stream.stage != header.stage or stream.sender != header.sender:
        return FOREIGN
    # A record that leaves the tables is no open stream; nothing is written elsewhere.
    last_block = np.int64(stream.seen_base) + (np.int64(stream.packets) - 1) // BLOCK_PACKETS
    good = stream.region < len(regions) and last_block < len(seen)
    return GOOD if good else FOREIGN


@kernel_part
def judge_place(header: Any, stream: Any) -> Any:
    """Return the counter of a packet that does not follow from its stream and number."""
    if header.in_bytes != stream.in_bytes or header.seq >= stream.packets:
        return MALFORMED
    if header.kind == _PING:
        good = header.cells == 1 and header.first == 0 and header.offset == 0
        return GOOD if good else MALFORMED
    start = np.int64(header.seq) * np.int64(stream.packet_cells)
    row_cells = np.int64(stream.row_cells)
    left = np.int64(stream.rows) * row_cells - start
    good = header.first == start // row_cells and header.offset == start % row_cells
    good = good and header.cells == min(left, np.int64(stream.packet_cells))
    return GOOD if good else MALFORMED
