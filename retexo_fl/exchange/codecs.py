"""How the rows of one frame become bytes: but for LEVELS, the same bits come out.

A coding holds where the non-zero values are (*positions*) and what they are (*values*)::

    DENSE    every value, little-endian             (only with FULL)
    BITS     per row ceil(width / 8) bytes: column c is bit c % 8 (least first) of byte c // 8
    COLUMNS  count per row, then column numbers: u16 up to a width of 65,536, else u32
    GAPS     count per row, then per non-zero the columns skipped since the last one in its row
    LEVELS   every value in few bits, rounded: :mod:`.levels` (values names how many)

    ONES     nothing: every non-zero is 1.0
    ROW      one value per row that is not empty; all its non-zeros have these bits
    FULL     one value per non-zero

    EIGHT, FOUR, TWO   bits of a level (only with LEVELS)

Positions stand before values, without padding. Counts and gaps are escaped bytes (:mod:`.escapes`).
ROW is there for GCN, which sends 0/1 features scaled by one number per row.

A codec is a sender's choice among them: ``lossless`` takes the shortest of the ten that lose
nothing, ``dense`` takes DENSE always, for volumes that are compared with those of the literature;
``levels8``, ``levels4`` and ``levels2`` take LEVELS where ``lossless`` is not shorter.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, unique
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from retexo_fl.exchange.escapes import encode_numbers, escaped_bytes
from retexo_fl.exchange.levels import encode_levels, level_bytes
from retexo_fl.exchange.vectors import (
    Integers,
    Vectors,
    bits_of,
    count_nonzeros,
    nonzero_mask,
    to_dense,
)

#: Ways of choosing a coding; frames name the coding, so a receiver reads all of them.
CODECS: Final = ("lossless", "dense", "levels8", "levels4", "levels2")
_U16_COLUMNS: Final = 2**16


@unique
class Positions(IntEnum):
    """Where the non-zero values are; also the order in which ties are broken."""

    DENSE = 0
    BITS = 1
    COLUMNS = 2
    GAPS = 3
    LEVELS = 4


@unique
class Values(IntEnum):
    """What the non-zero values are."""

    ONES = 0
    ROW = 1
    FULL = 2
    EIGHT = 3
    FOUR = 4
    TWO = 5


#: By the bits of a level.
LEVELS: Final = MappingProxyType({8: Values.EIGHT, 4: Values.FOUR, 2: Values.TWO})


@dataclass(frozen=True, slots=True, kw_only=True)
class Coding:
    """One way of writing rows; its two numbers stand in the frame header."""

    positions: Positions
    values: Values


#: Every coding that there is.
CODINGS: Final = frozenset(
    Coding(positions=positions, values=values)
    for positions in Positions
    for values in Values
    if (positions is Positions.LEVELS) == (values in LEVELS.values())
    and (positions is not Positions.DENSE or values is Values.FULL)
)


def row_codec(codec: str, bits: int) -> str:
    """Return the codec of rows that may take ``bits`` bits a value; 32 leaves them as they are."""
    return codec if bits not in LEVELS else f"levels{bits}"


def column_dtype(width: int) -> np.dtype[Any]:
    """Return the dtype of column numbers on the wire."""
    return np.dtype("<u2" if width <= _U16_COLUMNS else "<u4")


def row_costs(counts: Integers, *, width: int, itemsize: int) -> Integers:
    """Return what each row takes as COLUMNS with FULL values, the plain sparse form.

    Args:
        counts: Non-zero values of each row.
        width: Values per row.
        itemsize: Bytes per value.
    """
    costs: Integers = 1 + counts // 255 + counts * (column_dtype(width).itemsize + itemsize)
    return costs


def encode_rows(rows: Vectors) -> tuple[Coding, bytes]:
    """Write rows in the coding that makes them shortest; equal rows give equal bytes.

    Args:
        rows: Dense, or CSR with sorted columns and no explicit zeros; at least one row.

    Returns:
        The coding and the bytes. They depend on the values only, not on the form of ``rows``.

    Shapes:
        rows: ``[num_rows, width]`` float32 or float64.
    """
    counts = count_nonzeros(rows)
    if _is_full(rows, counts):
        return encode_dense(rows)
    mode, values = _encode_values(_nonzero_values(rows), counts)
    sizes = _sizes(rows, counts, len(values))
    best = min(sizes, key=lambda positions: sizes[positions])
    sparse_floor = escaped_bytes(counts) + int(counts.sum()) + len(values)
    if sparse_floor < sizes[best]:  # else no gaps can win, and finding them costs most
        gaps = _gaps(_columns(rows), counts)
        if escaped_bytes(counts) + escaped_bytes(gaps) + len(values) < sizes[best]:
            body = encode_numbers(counts) + encode_numbers(gaps) + values
            return Coding(positions=Positions.GAPS, values=mode), body
    if best is Positions.DENSE:
        return encode_dense(rows)
    if best is Positions.BITS:
        packed = np.packbits(_mask(rows), axis=1, bitorder="little")
        return Coding(positions=best, values=mode), packed.tobytes() + values
    columns = _columns(rows).astype(column_dtype(rows.shape[1]))
    return Coding(positions=best, values=mode), encode_numbers(counts) + columns.tobytes() + values


def encode_few_bits(rows: Vectors, bits: int, *, max_dense_bytes: int) -> tuple[Coding, bytes]:
    """Write rows in so many bits a value, or without loss where that is shorter.

    Rows that take more than ``max_dense_bytes`` as an array are sparse, and lose nothing.

    Shapes:
        rows: ``[num_rows, width]`` float32 or float64.
    """
    coding, exact = encode_rows(rows)
    num_rows, width = rows.shape
    if num_rows * width * rows.dtype.itemsize > max_dense_bytes:
        return coding, exact
    if len(exact) <= level_bytes(num_rows, width, bits):
        return coding, exact
    return Coding(positions=Positions.LEVELS, values=LEVELS[bits]), encode_levels(
        to_dense(rows), bits
    )


def _is_full(rows: Vectors, counts: Integers) -> bool:
    """Say at once of most rows without zeros that nothing is shorter than all their values."""
    if isinstance(rows, sp.csr_array) or int(counts.sum()) < rows.size:
        return False
    first = bits_of(rows[0])
    # One row whose values differ leaves FULL as the only way of writing values.
    return bool((first != first[0]).any())


def encode_dense(rows: Vectors) -> tuple[Coding, bytes]:
    """Write every value: as many bytes as the rows have in memory as an array.

    Shapes:
        rows: ``[num_rows, width]`` float32 or float64.
    """
    coding = Coding(positions=Positions.DENSE, values=Values.FULL)
    return coding, _little_endian(to_dense(rows))


def _sizes(rows: Vectors, counts: Integers, value_bytes: int) -> dict[Positions, int]:
    num_rows, width = rows.shape
    column_bytes = int(counts.sum()) * column_dtype(width).itemsize
    return {
        Positions.DENSE: num_rows * width * rows.dtype.itemsize,
        Positions.BITS: num_rows * -(-width // 8) + value_bytes,
        Positions.COLUMNS: escaped_bytes(counts) + column_bytes + value_bytes,
    }


def _encode_values(values: npt.NDArray[Any], counts: Integers) -> tuple[Values, bytes]:
    bits = bits_of(values)
    filled = counts[counts > 0]
    first_of_row = np.cumsum(filled) - filled
    per_row = bits[first_of_row]
    if not np.array_equal(bits, np.repeat(per_row, filled)):
        return Values.FULL, _little_endian(values)
    one = bits_of(np.ones(1, dtype=values.dtype))
    if (per_row == one).all():
        return Values.ONES, b""
    return Values.ROW, _little_endian(values[first_of_row])


def _gaps(columns: Integers, counts: Integers) -> npt.NDArray[np.int64]:
    wide = columns.astype(np.int64)
    gaps = np.diff(wide, prepend=-1) - 1
    filled = counts[counts > 0]
    first_of_row = np.cumsum(filled) - filled
    gaps[first_of_row] = wide[first_of_row]
    return gaps


def _nonzero_values(rows: Vectors) -> npt.NDArray[Any]:
    if isinstance(rows, sp.csr_array):
        data: npt.NDArray[Any] = rows.data
        return data
    # Positions first: a mask as index costs five times as much where half the values are zero.
    found: npt.NDArray[Any] = rows.reshape(-1).take(np.flatnonzero(nonzero_mask(rows)))
    return found


def _columns(rows: Vectors) -> Integers:
    if isinstance(rows, sp.csr_array):
        columns: Integers = rows.indices
        return columns
    found: Integers = np.flatnonzero(nonzero_mask(rows)) % rows.shape[1]
    return found


def _mask(rows: Vectors) -> npt.NDArray[np.bool_]:
    if not isinstance(rows, sp.csr_array):
        return nonzero_mask(rows)
    mask = np.zeros(rows.shape, dtype=np.bool_)
    mask[np.repeat(np.arange(len(mask)), np.diff(rows.indptr)), rows.indices] = True
    return mask


def _little_endian(values: npt.NDArray[Any]) -> bytes:
    return values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()
