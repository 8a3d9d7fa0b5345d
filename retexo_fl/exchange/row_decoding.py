"""How the bytes of one frame become rows again: nothing is believed, everything is checked.

Lengths are checked before arrays of that length are made, so a frame costs its receiver memory in
proportion to the frame limit, whatever its sender writes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from retexo_fl.errors import RemoteProtocolError
from retexo_fl.exchange.codecs import (
    CODINGS,
    LEVELS,
    Coding,
    Positions,
    Values,
    column_dtype,
    row_costs,
)
from retexo_fl.exchange.escapes import decode_numbers
from retexo_fl.exchange.frames import Buffer
from retexo_fl.exchange.levels import decode_levels
from retexo_fl.exchange.vectors import (
    VALUES_PER_NONZERO,
    Integers,
    Vectors,
    bits_of,
    is_ascending,
    make_csr,
)
from retexo_fl.units import counted

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
        An array for DENSE and LEVELS, and for BITS of many values; else CSR with sorted int32
        columns.

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
    if coding.positions is Positions.LEVELS:
        return _read_levels(coding.values, data, shape)
    if coding.positions is Positions.BITS:
        return _read_bits(coding.values, data, shape)
    counts, columns, rest = _POSITIONS[coding.positions](data, shape)
    values = _read_values(coding.values, rest, counts, shape.dtype)
    return make_csr(values, columns, counts, width=shape.width)


def _read_levels(values: Values, data: Bytes, shape: RowsShape) -> npt.NDArray[Any]:
    if shape.dense_bytes > shape.max_frame_bytes:
        raise RemoteProtocolError(
            f"rows take {counted(shape.dense_bytes, 'byte')} uncoded, the limit is "
            f"{shape.max_frame_bytes}"
        )
    bits = next(bits for bits, name in LEVELS.items() if name is values)
    return decode_levels(
        data, num_rows=shape.num_rows, width=shape.width, bits=bits, dtype=shape.dtype
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
    found, rest = _cut(after_counts, int(counts.sum()) * dtype.itemsize, "columns")
    columns = found.view(dtype).astype(np.int64)
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
