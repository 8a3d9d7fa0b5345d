"""The rows of one frame to bytes, and back: but for LEVELS, the same bits come out.

A coding holds where the non-zero values are (*positions*) and what they are (*values*)::

    DENSE    every value, little-endian             (only with FULL)
    BITS     per row ceil(width / 8) bytes: column c is bit c % 8 (least first) of byte c // 8
    COLUMNS  count per row, then column numbers: u16 up to a width of 65,536, else u32
    GAPS     count per row, then per non-zero the columns skipped since the last one in its row
    LEVELS   every value in few bits, rounded: :mod:`.levels` (values names how many)
    NONZERO_LEVELS  the same without those that are 0
    GRID     every value in a byte, on one grid: :mod:`.fixed_vectors` (only with EIGHT)
    PACKED   every value, 0 or 1, in a bit, those of all rows one after the other (only with ONES)

    ONES     nothing: every non-zero is 1.0
    ROW      one value per row that is not empty; all its non-zeros have these bits
    FULL     one value per non-zero

    EIGHT, FOUR, TWO   bits of a level (with LEVELS, NONZERO_LEVELS), of a number (with GRID)

Positions come before values, without padding. Counts and gaps are escaped bytes: 0 to 254 take
one, and each 255 means "255 more", so every number has exactly one spelling. Gaps between the
columns of sparse features are mostly below 255 (Cora: 96 %), which makes one byte each: half of
what u16 column numbers take. ROW is there for GCN, which sends 0/1 features scaled by one number
per row.

A codec is a sender's choice among them: ``lossless`` takes the shortest of the ten that lose
nothing, ``dense`` takes DENSE always, for volumes that are compared with those of the literature;
``levels8``, ``levels4`` and ``levels2`` round where ``lossless`` is not shorter than LEVELS, and
take the shorter of LEVELS and NONZERO_LEVELS then; ``grid8``
takes GRID where rows have 8 bits on one and ``lossless`` is not shorter, and loses nothing, either;
``bits`` takes PACKED always, for classes in few bits each.

A receiver believes nothing. Lengths are checked before arrays of that length are made, so a frame
costs it memory in proportion to the frame limit, whatever its sender writes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum, unique
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from retexo_fl.errors import LocalProtocolError, RemoteProtocolError
from retexo_fl.exchange.fixed_vectors import decode_grid, encode_grid, grid_bytes
from retexo_fl.exchange.frames import Buffer
from retexo_fl.exchange.levels import (
    count_nonzero_levels,
    decode_levels,
    decode_nonzero_levels,
    level_bytes,
    level_table,
    nonzero_level_bytes,
    nonzero_levels,
)
from retexo_fl.exchange.vectors import (
    VALUES_PER_NONZERO,
    Integers,
    Vectors,
    bits_of,
    count_nonzeros,
    is_ascending,
    make_csr,
    nonzero_mask,
    to_dense,
)
from retexo_fl.packing import pack, packed_bytes, unpack
from retexo_fl.units import counted

#: Ways of choosing a coding; frames name the coding, so a receiver reads all of them.
CODECS: Final = ("lossless", "dense", "levels8", "levels4", "levels2", "grid8", "bits")
_U16_COLUMNS: Final = 2**16


@unique
class Positions(IntEnum):
    """Where the non-zero values are; also the order in which ties are broken."""

    DENSE = 0
    BITS = 1
    COLUMNS = 2
    GAPS = 3
    LEVELS = 4
    GRID = 5
    NONZERO_LEVELS = 6
    PACKED = 7


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
    """One way of writing rows; its two numbers are in the frame header."""

    positions: Positions
    values: Values


#: Every coding that there is.
CODINGS: Final = frozenset(
    Coding(positions=positions, values=values)
    for positions in Positions
    for values in Values
    if (positions in {Positions.LEVELS, Positions.NONZERO_LEVELS, Positions.GRID})
    == (values in LEVELS.values())
    and (positions is not Positions.DENSE or values is Values.FULL)
    and (positions is not Positions.GRID or values is Values.EIGHT)
    and (positions is not Positions.PACKED or values is Values.ONES)
)


def level_bits(codec: str) -> int:
    """Return the bits of a level under a codec that has levels."""
    return int(codec.removeprefix("levels"))


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
    return encode_levels(level_table(to_dense(rows), bits), width=width, bits=bits)


def encode_levels(table: npt.NDArray[np.uint8], *, width: int, bits: int) -> tuple[Coding, bytes]:
    """Write the levels of rows, or those alone that are not 0 where that is shorter.

    Args:
        table: (n, bytes) as :func:`~.levels.level_table` returns them.
        width: Values per row.
        bits: Of a level.
    """
    nonzeros = int(count_nonzero_levels(table, width=width, bits=bits).sum())
    if nonzero_level_bytes(len(table), width, bits, nonzeros) < table.size:
        coding = Coding(positions=Positions.NONZERO_LEVELS, values=LEVELS[bits])
        return coding, nonzero_levels(table, width=width, bits=bits)
    return Coding(positions=Positions.LEVELS, values=LEVELS[bits]), table.tobytes()


def encode_on_grid(rows: Vectors, *, max_dense_bytes: int) -> tuple[Coding, bytes]:
    """Write rows that have 8 bits each on one grid in a byte a value; others, or sparse ones, not.

    Args:
        rows: As for :func:`encode_rows`.
        max_dense_bytes: Rows that take more as an array are sparse.

    Shapes:
        rows: ``[num_rows, width]`` float32 or float64.
    """
    coding, exact = encode_rows(rows)
    num_rows, width = rows.shape
    if num_rows * width * rows.dtype.itemsize > max_dense_bytes:
        return coding, exact
    if len(exact) <= grid_bytes(num_rows, width):
        return coding, exact
    written = encode_grid(to_dense(rows))
    if written is None:
        return coding, exact
    return Coding(positions=Positions.GRID, values=Values.EIGHT), written


def encode_bits(rows: Vectors) -> tuple[Coding, bytes]:
    """Write rows of 0 and 1 in a bit a value.

    Raises:
        LocalProtocolError: A value is another one.

    Shapes:
        rows: ``[num_rows, width]`` float32 or float64.
    """
    packed = pack(checked_bits(rows).reshape(1, -1), 1)
    return Coding(positions=Positions.PACKED, values=Values.ONES), packed.tobytes()


def checked_bits(rows: Vectors) -> npt.NDArray[np.uint8]:
    """Return rows of 0 and 1 as uint8, an array.

    Raises:
        LocalProtocolError: A value is another one.
    """
    values = bits_of(to_dense(rows))
    ones = values == bits_of(np.ones(1, rows.dtype))
    if not (ones | (values == 0)).all():
        raise LocalProtocolError("rows hold other values; expected 0 and 1 under the codec bits")
    found: npt.NDArray[np.uint8] = ones.astype(np.uint8)
    return found


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
    values: npt.NDArray[Any] = rows.reshape(-1).take(np.flatnonzero(nonzero_mask(rows)))
    return values


def _columns(rows: Vectors) -> Integers:
    if isinstance(rows, sp.csr_array):
        columns: Integers = rows.indices
        return columns
    numbers: Integers = np.flatnonzero(nonzero_mask(rows)) % rows.shape[1]
    return numbers


def _mask(rows: Vectors) -> npt.NDArray[np.bool_]:
    if not isinstance(rows, sp.csr_array):
        return nonzero_mask(rows)
    mask = np.zeros(rows.shape, dtype=np.bool_)
    mask[np.repeat(np.arange(len(mask)), np.diff(rows.indptr)), rows.indices] = True
    return mask


def _little_endian(values: npt.NDArray[Any]) -> bytes:
    return values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()


# ---- bytes to rows -------------------------------------------------------------------------------

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsShape:
    """What the receiver expects of a frame's rows before it decodes them.

    Attributes:
        num_rows: Rows in the frame, at least 1.
        width: Values per row.
        dtype: ``float32`` or ``float64``.
        max_frame_bytes: What the rows may take uncoded, as DENSE or as COLUMNS with FULL values.
    """

    num_rows: int
    width: int
    dtype: str
    max_frame_bytes: int

    @property
    def itemsize(self) -> int:
        """Bytes per value."""
        return np.dtype(self.dtype).itemsize

    @property
    def dense_bytes(self) -> int:
        """Bytes of the rows as a dense array."""
        return self.num_rows * self.width * self.itemsize


def parse_coding(positions: int, values: int) -> Coding:
    """Return the coding that a frame header names.

    Raises:
        RemoteProtocolError: There is no such coding.
    """
    try:
        coding = Coding(positions=Positions(positions), values=Values(values))
    except ValueError as error:
        raise RemoteProtocolError(f"coding {positions}/{values} is unknown") from error
    if coding not in CODINGS:
        raise RemoteProtocolError(f"coding {coding.positions.name}/{coding.values.name} is unknown")
    return coding


def decode_rows(coding: Coding, payload: Buffer, shape: RowsShape) -> Vectors:
    """Read the rows of one frame.

    Args:
        coding: How they were written.
        payload: The bytes; the rows do not look at them afterwards.
        shape: What they must be.

    Returns:
        An array for DENSE, both kinds of levels, GRID and PACKED, and for BITS of many values; else
        CSR with sorted int32 columns.

    Raises:
        RemoteProtocolError: Anything in the payload is not as the coding demands, a value is not
            finite, or the rows would take more memory than the frame limit allows.

    Shapes:
        result: ``[num_rows, width]`` float32 or float64.
    """
    data = np.frombuffer(payload, dtype=np.uint8)
    if coding.positions is Positions.DENSE:
        return _read_floats(data, shape.num_rows * shape.width, shape.dtype).reshape(
            shape.num_rows, shape.width
        )
    if coding.positions in {Positions.LEVELS, Positions.NONZERO_LEVELS}:
        return _read_levels(coding, data, shape)
    if coding.positions is Positions.GRID:
        _check_dense(shape)
        return decode_grid(data, num_rows=shape.num_rows, width=shape.width, dtype=shape.dtype)
    if coding.positions is Positions.PACKED:
        return _read_packed(data, shape)
    if coding.positions is Positions.BITS:
        return _read_bits(coding.values, data, shape)
    counts, columns, rest = _POSITIONS[coding.positions](data, shape)
    values = _read_values(coding.values, rest, counts, shape.dtype)
    return make_csr(values, columns, counts, width=shape.width)


def _read_levels(coding: Coding, data: Bytes, shape: RowsShape) -> npt.NDArray[Any]:
    _check_dense(shape)
    bits = next(bits for bits, name in LEVELS.items() if name is coding.values)
    decode = decode_levels if coding.positions is Positions.LEVELS else decode_nonzero_levels
    return decode(data, num_rows=shape.num_rows, width=shape.width, bits=bits, dtype=shape.dtype)


def _read_packed(data: Bytes, shape: RowsShape) -> npt.NDArray[Any]:
    _check_dense(shape)
    count = shape.num_rows * shape.width
    packed, rest = _cut(data, packed_bytes(count, 1), "bits")
    if rest.size:
        raise RemoteProtocolError(f"{counted(rest.size, 'byte')} after the last bit, expected none")
    if unpack(packed[None], 8 * packed.size, 1)[0, count:].any():
        raise RemoteProtocolError("bits are set beyond the last value")
    return unpack(packed[None], count, 1).reshape(shape.num_rows, -1).astype(shape.dtype)


def _check_dense(shape: RowsShape) -> None:
    if shape.dense_bytes > shape.max_frame_bytes:
        raise RemoteProtocolError(
            f"rows take {counted(shape.dense_bytes, 'byte')} uncoded, the limit is "
            f"{shape.max_frame_bytes}"
        )


def _read_bits(mode: Values, data: Bytes, shape: RowsShape) -> Vectors:
    stride = -(-shape.width // 8)
    packed, rest = _cut(data, shape.num_rows * stride, "bits")
    bits = np.unpackbits(packed.reshape(shape.num_rows, stride), axis=1, bitorder="little")
    if bits[:, shape.width :].any():
        raise RemoteProtocolError(f"bits are set beyond column {shape.width - 1}")
    counts = np.count_nonzero(bits, axis=1).astype(np.int64)
    _check_memory(counts, shape)
    values = _read_values(mode, rest, counts, shape.dtype)
    places = bits.view(np.bool_)
    many = len(values) * VALUES_PER_NONZERO >= shape.num_rows * shape.width
    if many and shape.dense_bytes <= shape.max_frame_bytes:
        # Most likely wanted dense: half the time of CSR and back.
        rows = np.zeros((shape.num_rows, shape.width), dtype=shape.dtype)
        rows[places[:, : shape.width]] = values
        return rows
    # One flat search and a remainder take half the time of a search in two dimensions.
    columns = np.flatnonzero(places) % (8 * stride)
    return make_csr(values, columns, counts, width=shape.width)


def _read_columns(data: Bytes, shape: RowsShape) -> tuple[Integers, Integers, Bytes]:
    counts, after_counts = _read_counts(data, shape)
    dtype = column_dtype(shape.width)
    written, rest = _cut(after_counts, int(counts.sum()) * dtype.itemsize, "columns")
    columns = written.view(dtype).astype(np.int64)
    if not is_ascending(columns, counts):
        raise RemoteProtocolError("columns are not strictly ascending in every row")
    _check_columns(columns, shape)
    return counts, columns, rest


def _read_gaps(data: Bytes, shape: RowsShape) -> tuple[Integers, Integers, Bytes]:
    counts, after_counts = _read_counts(data, shape)
    gaps, rest = decode_numbers(after_counts, int(counts.sum()))
    reached = np.concatenate(([0], np.cumsum(gaps + 1)))
    row_starts = np.cumsum(counts) - counts
    columns = reached[1:] - np.repeat(reached[row_starts], counts) - 1
    _check_columns(columns, shape)
    return counts, columns, rest


_PositionsReader = Callable[[Bytes, RowsShape], tuple[Integers, Integers, Bytes]]
_POSITIONS: Final[dict[Positions, _PositionsReader]] = {
    Positions.COLUMNS: _read_columns,
    Positions.GAPS: _read_gaps,
}


def _read_counts(data: Bytes, shape: RowsShape) -> tuple[Integers, Bytes]:
    counts, rest = decode_numbers(data, shape.num_rows)
    if counts.max() > shape.width:
        raise RemoteProtocolError(f"a row has {counts.max()} non-zeros, width is {shape.width}")
    _check_memory(counts, shape)
    return counts, rest


def _read_values(mode: Values, data: Bytes, counts: Integers, dtype: str) -> npt.NDArray[Any]:
    if mode is Values.ONES:
        _check_length(data, 0, dtype)
        return np.ones(int(counts.sum()), dtype=dtype)
    num_values = np.count_nonzero(counts) if mode is Values.ROW else counts.sum()
    values = _read_floats(data, int(num_values), dtype)
    if not bits_of(values).all():
        raise RemoteProtocolError("+0.0 stands among the non-zero values")
    return np.repeat(values, counts[counts > 0]) if mode is Values.ROW else values


def _read_floats(data: Bytes, num_values: int, dtype: str) -> npt.NDArray[Any]:
    _check_length(data, num_values, dtype)
    values = data.view(np.dtype(dtype).newbyteorder("<")).astype(dtype)
    if not np.isfinite(values).all():
        raise RemoteProtocolError("rows hold NaN or infinity, expected finite values")
    return values


def _check_length(data: Bytes, num_values: int, dtype: str) -> None:
    expected = num_values * np.dtype(dtype).itemsize
    if data.size != expected:
        raise RemoteProtocolError(f"values take {counted(data.size, 'byte')}, expected {expected}")


def _cut(data: Bytes, size_bytes: int, what: str) -> tuple[Bytes, Bytes]:
    if data.size < size_bytes:
        raise RemoteProtocolError(
            f"{what} take {counted(size_bytes, 'byte')}, the rows have {data.size}"
        )
    return data[:size_bytes], data[size_bytes:]


def _check_columns(columns: Integers, shape: RowsShape) -> None:
    if columns.size and columns.max() >= shape.width:
        raise RemoteProtocolError(f"column {columns.max()} is out of range, width is {shape.width}")


def _check_memory(counts: Integers, shape: RowsShape) -> None:
    sparse_bytes = int(row_costs(counts, width=shape.width, itemsize=shape.itemsize).sum())
    if min(sparse_bytes, shape.dense_bytes) > shape.max_frame_bytes:
        raise RemoteProtocolError(
            f"rows take {counted(sparse_bytes, 'byte')} uncoded, the limit is "
            f"{shape.max_frame_bytes}"
        )


# ---- small whole numbers as bytes ----------------------------------------------------------------

_ESCAPE: Final = 255


def escaped_bytes(numbers: npt.NDArray[np.int64]) -> int:
    """Return the length of :func:`encode_numbers`."""
    return len(numbers) + int((numbers // _ESCAPE).sum())


def encode_numbers(numbers: npt.NDArray[np.int64]) -> bytes:
    """Return whole numbers from 0 as bytes."""
    ends = np.cumsum(numbers // _ESCAPE + 1)
    encoded = np.full(int(ends[-1]) if len(ends) else 0, _ESCAPE, dtype=np.uint8)
    encoded[ends - 1] = numbers % _ESCAPE
    return encoded.tobytes()


def decode_numbers(
    data: npt.NDArray[np.uint8], count: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Read ``count`` numbers from the start of ``data``.

    Returns:
        The numbers, and the bytes after them.

    Raises:
        RemoteProtocolError: The data ends before the last number does.
    """
    ends = np.flatnonzero(data != _ESCAPE)[:count]
    if len(ends) < count:
        raise RemoteProtocolError(f"rows hold {len(ends)} of {counted(count, 'number')}")
    escapes = np.diff(ends, prepend=-1) - 1
    numbers = escapes * _ESCAPE + data[ends]
    return numbers.astype(np.int64), data[int(ends[-1]) + 1 if count else 0 :]
