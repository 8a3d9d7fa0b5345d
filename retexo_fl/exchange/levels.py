"""Rows in few bits a value: one scale a row, and whole numbers of it.

A row of width w is written as its scale, the upper half of a float32 (2 bytes, little-endian), and
w numbers of ``bits`` bits, packed into ``ceil(w bits / 8)`` bytes, the first in the highest bits. A
row without negative values has the numbers 0 to ``2**bits - 1``, for the values 0 to the scale.
Another row has the numbers 0 to ``2**bits - 2``, of which the middle has the value 0, and the sign
bit of its scale is set.

Values are rounded up or down at random, so that their mean is what they were. What is drawn follows
from the row itself: the same row gives the same bytes, whoever sends it, to whichever peer.

Hidden rows behind a ReLU are zero in many places. Where it is shorter, the numbers of value 0 are
left out: the scales of all rows; per row ``ceil(w / 8)`` bytes, of which bit
``c % 8`` (least first) of byte ``c // 8`` says that column c has a number; then all these
numbers, packed as one row. Either way the same rows are read.

Source: stochastic quantisation as QSGD (Alistarh et al., NeurIPS 2017, section 3.1).
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from retexo_fl.errors import LocalProtocolError, RemoteProtocolError
from retexo_fl.packing import pack, packed_bytes, unpack
from retexo_fl.units import counted

Table = npt.NDArray[np.uint8]
_Integer = TypeVar("_Integer", int, npt.NDArray[np.int64])

#: Widths of a number.
BITS: Final = (8, 4, 2)
_SCALE_BYTES: Final = 2
#: Rows that are rounded in one go: scratch arrays are of eight bytes a value.
_ROWS_PER_BATCH: Final = 1024
_SIGN: Final = np.uint16(0x8000)
#: Odd constants of splitmix64 (Steele, Lea and Flood, OOPSLA 2014, figure 17).
_GAMMA: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX: Final = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def level_bytes(num_rows: _Integer, width: int, bits: int) -> _Integer:
    """Return how many bytes rows take."""
    return num_rows * (_SCALE_BYTES + packed_bytes(width, bits))


def nonzero_level_bytes(num_rows: _Integer, width: int, bits: int, nonzeros: _Integer) -> _Integer:
    """Return what rows take, of which so many numbers in all are not of value 0."""
    return num_rows * (_SCALE_BYTES + packed_bytes(width, 1)) + packed_bytes(nonzeros, bits)


def level_table(rows: npt.NDArray[Any], bits: int) -> Table:
    """Return the bytes of each of (n, w) rows: (n, ``level_bytes(1, w, bits)``).

    A float32 or float64 value is rounded by less than a level.

    Raises:
        LocalProtocolError: A value is too large for float32.
    """
    table: Table = np.empty((len(rows), level_bytes(1, rows.shape[1], bits)), np.uint8)
    for first in range(0, len(rows), _ROWS_PER_BATCH):
        some = rows[first : first + _ROWS_PER_BATCH]
        scales = _scales(some)
        is_signed = (some < 0).any(axis=1)
        most = np.where(is_signed, 2 ** (bits - 1) - 1, 2**bits - 1)
        steps = _steps(scales, most)
        with np.errstate(divide="ignore", invalid="ignore"):
            scaled = np.where(steps[:, None] > 0, some / steps[:, None], 0.0)
        numbers = np.floor(scaled + thresholds_of(some))
        numbers = np.clip(numbers, np.where(is_signed, -most, 0)[:, None], most[:, None])
        codes = (numbers + np.where(is_signed, most, 0)[:, None]).astype(np.uint8)
        marked = scales | np.where(is_signed, _SIGN, np.uint16(0))
        part = table[first : first + _ROWS_PER_BATCH]
        part[:, :_SCALE_BYTES] = marked.astype("<u2")[:, None].view(np.uint8)
        part[:, _SCALE_BYTES:] = pack(codes, bits)
    return table


def count_nonzero_levels(table: Table, *, width: int, bits: int) -> npt.NDArray[np.int64]:
    """Return how many numbers of each row of a :func:`level_table` are not of value 0: (n,)."""
    zeros = _zeros(table[:, :_SCALE_BYTES], bits)
    codes = unpack(table[:, _SCALE_BYTES:], width, bits)
    counts: npt.NDArray[np.int64] = np.count_nonzero(codes != zeros, axis=1).astype(np.int64)
    return counts


def nonzero_levels(table: Table, *, width: int, bits: int) -> bytes:
    """Write a :func:`level_table` without the numbers of value 0."""
    scales = table[:, :_SCALE_BYTES]
    codes = unpack(table[:, _SCALE_BYTES:], width, bits)
    mask = codes != _zeros(scales, bits)
    places = np.packbits(mask, axis=1, bitorder="little")
    return scales.tobytes() + places.tobytes() + pack(codes[mask][None], bits).tobytes()


def decode_nonzero_levels(
    data: Table, *, num_rows: int, width: int, bits: int, dtype: str
) -> npt.NDArray[Any]:
    """Read the (n, w) rows of which :func:`nonzero_levels` wrote the numbers.

    Raises:
        RemoteProtocolError: It is of another length, a place is beyond the last column, a number is
            of value 0 or of none, bits are set behind the last number, or a scale is not finite.
    """
    stride = packed_bytes(width, 1)
    first_place, begin = (num_rows * each for each in (_SCALE_BYTES, _SCALE_BYTES + stride))
    if data.size < begin:
        raise RemoteProtocolError(
            f"levels take {counted(data.size, 'byte')}, expected {begin} at least"
        )
    scales = data[:first_place].reshape(num_rows, _SCALE_BYTES)
    places = data[first_place:begin].reshape(num_rows, stride)
    is_nonzero = np.unpackbits(places, axis=1, bitorder="little").view(np.bool_)
    if is_nonzero[:, width:].any():
        raise RemoteProtocolError(f"bits are set beyond column {width - 1}")
    mask, packed = is_nonzero[:, :width], data[begin:]
    count = int(np.count_nonzero(mask))
    if packed.size != packed_bytes(count, bits):
        raise RemoteProtocolError(
            f"levels take {counted(data.size, 'byte')}, expected "
            f"{nonzero_level_bytes(num_rows, width, bits, count)}"
        )
    numbers = unpack(packed[None], count, bits)
    if not np.array_equal(pack(numbers, bits)[0], packed):
        raise RemoteProtocolError("bits are set behind the last level")
    codes = np.repeat(_zeros(scales, bits), width, axis=1)
    if (codes[mask] == numbers[0]).any():
        raise RemoteProtocolError("a level that stands for 0 is written")
    codes[mask] = numbers[0]
    table = np.concatenate([scales, pack(codes, bits)], axis=1)
    return decode_levels(table.reshape(-1), num_rows=num_rows, width=width, bits=bits, dtype=dtype)


def _zeros(scales: Table, bits: int) -> Table:
    """Return the (n, 1) numbers of value 0, by the bytes of rows' scales."""
    is_signed = scales[:, 1:] & np.uint8(_SIGN >> 8) != 0
    return np.where(is_signed, np.uint8(2 ** (bits - 1) - 1), np.uint8(0))


def decode_levels(
    data: Table, *, num_rows: int, width: int, bits: int, dtype: str
) -> npt.NDArray[Any]:
    """Read the (n, w) rows of a :func:`level_table`.

    Raises:
        RemoteProtocolError: Another length, a scale that is not finite, or a number without value.
    """
    expected = level_bytes(num_rows, width, bits)
    if data.size != expected:
        raise RemoteProtocolError(f"levels take {counted(data.size, 'byte')}, expected {expected}")
    rows = np.empty((num_rows, width), dtype)
    table = data.reshape(num_rows, level_bytes(1, width, bits))
    for first in range(0, num_rows, _ROWS_PER_BATCH):
        some = table[first : first + _ROWS_PER_BATCH]
        marked = np.ascontiguousarray(some[:, :_SCALE_BYTES]).view("<u2")[:, 0].astype(np.uint16)
        is_signed, scales = (marked & _SIGN) != 0, marked & ~_SIGN
        if not np.isfinite(_floats(scales)).all():
            raise RemoteProtocolError("a row's scale is NaN or infinity, expected a finite one")
        most = np.where(is_signed, 2 ** (bits - 1) - 1, 2**bits - 1)
        codes = unpack(some[:, _SCALE_BYTES:], width, bits).astype(np.int64)
        numbers = codes - np.where(is_signed, most, 0)[:, None]
        if (numbers > most[:, None]).any():
            raise RemoteProtocolError("a level is above the highest of its row")
        rows[first : first + _ROWS_PER_BATCH] = numbers * _steps(scales, most)[:, None]
    return rows


def _scales(rows: npt.NDArray[Any]) -> npt.NDArray[np.uint16]:
    """Return the upper halves of float32 numbers that are no smaller than the rows' largest."""
    largest = np.abs(rows).max(axis=1, initial=0.0)
    if largest.size and largest.max() > np.finfo(np.float32).max / 4:
        raise LocalProtocolError(f"a vector holds {largest.max():g}; expected what float32 holds")
    upper = np.nextafter(largest.astype(np.float32), np.float32(np.inf)).view(np.uint32)
    rounded_up: npt.NDArray[np.uint16] = ((upper >> 16) + 1).astype(np.uint16)
    return np.where(largest > 0, rounded_up, 0).astype(np.uint16)


def _floats(scales: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    return (scales.astype(np.uint32) << 16).view(np.float32)


def _steps(scales: npt.NDArray[np.uint16], most: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return the (n,) distance of a row's levels."""
    distances: npt.NDArray[np.float64] = _floats(scales).astype(np.float64) / most
    return distances


def thresholds_of(rows: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return (n, w) numbers from 0 to below 1 that follow from each row and the place in it.

    Added to a row before it is rounded down, they keep its mean, whoever rounds it, and where.
    """
    bits = rows.astype(np.float64).view(np.uint64)
    places = np.arange(1, rows.shape[1] + 1, dtype=np.uint64) * _GAMMA
    keys = _mixed(bits ^ places).sum(axis=1, dtype=np.uint64)
    thresholds: npt.NDArray[np.float64] = (_mixed(keys[:, None] + places) >> np.uint64(11)).astype(
        np.float64
    ) * 2.0**-53
    return thresholds


def _mixed(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    words = (words ^ (words >> np.uint64(30))) * _MIX[0]
    words = (words ^ (words >> np.uint64(27))) * _MIX[1]
    return words ^ (words >> np.uint64(31))
