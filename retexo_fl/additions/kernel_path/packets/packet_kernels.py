"""The machine code that writes packets, and the checksum that all others use."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba import types

from retexo_fl.additions.kernel_path.packets.compiled import compiled, kernel_part
from retexo_fl.additions.kernel_path.packets.layout import CELL_BYTES, CELL_VALUES, HEADER_BYTES

# All are odd, so that a change of one word always changes the sum.
_C0: Final = np.uint64(0x9E3779B97F4A7C15)
_C1: Final = np.uint64(0xC2B2AE3D27D4EB4F)
_C2: Final = np.uint64(0x165667B19E3779F9)
_C3: Final = np.uint64(0x27D4EB2F165667C5)
_K: Final = np.uint64(0xD6E8FEB86659FD93)
_HALF_BITS: Final = np.uint64(32)
HEADER_WORDS: Final = HEADER_BYTES // 8
CELL_WORDS: Final = CELL_BYTES // 8

_WORDS: Final = types.Array(types.uint64, 1, "C", readonly=True)


@kernel_part
def covered_sum(words: Any, num_words: Any) -> Any:
    """Return the checksum of the packet in ``words`` (uint64) as numba compiles it in."""
    even, odd = np.uint64(0), np.uint64(0)
    payload = words[HEADER_WORDS:num_words]
    for pair in range(len(payload) // 2):
        even += payload[2 * pair]
        odd += payload[2 * pair + 1]
    even += words[0] * _C0
    even += (words[2] >> _HALF_BITS) * _C1
    even += words[4] * _C2
    even += words[5] * _C3
    return even + odd * _K


@kernel_part
def _copy_cells(  # noqa: PLR0917
    values: Any, width: Any, row_cells: Any, start: Any, cells: Any, packet: Any
) -> None:
    """Copy flat cells from ``start`` on behind a packet's header, vectors padded with zeros."""
    first = HEADER_BYTES // packet.itemsize
    target = packet[first : first + cells * CELL_VALUES]
    if width == row_cells * CELL_VALUES:
        source = values[start * CELL_VALUES : (start + cells) * CELL_VALUES]
        for column in range(len(target)):
            target[column] = source[column]
        return
    row, column = start // row_cells, start % row_cells * CELL_VALUES
    done = 0
    while done < len(target):
        source = values[row * width + column : (row + 1) * width]
        padded = min(row_cells * CELL_VALUES - column, len(target) - done)
        filled = min(padded, len(source))
        for index in range(filled):
            target[done + index] = source[index]
        for index in range(filled, padded):
            target[done + index] = 0
        done += padded
        row, column = row + 1, 0


@compiled((_WORDS,))
def checksum_of(words: Any) -> Any:
    """Return the checksum of one packet, given as uint64 [n]."""
    return covered_sum(words, len(words))


def _of_batch(values: Any) -> tuple[Any, ...]:
    """Return the types of what packets of values of a type are written from, and into."""
    numbers = (types.int64,) * 4
    batch = (types.int64[::1], types.uint8[::1], types.uint64[:, ::1])
    return (_WORDS, values[::1], *numbers, *batch, values[:, ::1], types.int64[::1])


@compiled(_of_batch(types.int32), _of_batch(types.uint8))
def pack(  # noqa: PLR0913, PLR0917 - one call for a batch, all of it arrays and numbers
    template: Any,
    values: Any,
    width: Any,
    row_cells: Any,
    packet_cells: Any,
    all_cells: Any,
    seqs: Any,
    flags: Any,
    out_words: Any,
    out_values: Any,
    lengths: Any,
) -> bool:
    """Write packets, and their bytes into ``lengths``; False: one is none of the stream's."""
    cell_bytes = CELL_VALUES * values.itemsize
    for index in range(len(seqs)):
        if seqs[index] < 0 or seqs[index] * packet_cells >= all_cells:
            return False
    for index in range(len(seqs)):
        seq = seqs[index]
        start = seq * packet_cells
        cells = min(packet_cells, all_cells - start)
        units = (cells * cell_bytes + CELL_BYTES - 1) // CELL_BYTES
        lengths[index] = HEADER_BYTES + units * CELL_BYTES
        words = out_words[index]
        if units * CELL_BYTES > cells * cell_bytes:
            words[HEADER_WORDS + (units - 1) * CELL_WORDS : HEADER_WORDS + units * CELL_WORDS] = 0
        _copy_cells(values, width, row_cells, start, cells, out_values[index])
        words[0] = template[0] | (np.uint64(flags[index]) << np.uint64(56))
        words[1] = template[1]
        words[2] = template[2]
        words[4] = template[4] | (np.uint64(seq) << _HALF_BITS)
        offset_and_cells = np.uint64(start % row_cells) | (np.uint64(cells) << np.uint64(16))
        words[5] = np.uint64(start // row_cells) | (offset_and_cells << _HALF_BITS)
        words[3] = covered_sum(words, HEADER_WORDS + units * CELL_WORDS)
    return True
