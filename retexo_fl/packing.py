"""Small whole numbers in 8, 4, 2 or 1 bits each, the first in the highest bits of a byte."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
_Integer = TypeVar("_Integer", int, npt.NDArray[np.int64])


def packed_bytes(count: _Integer, bits: int) -> _Integer:
    """Return the bytes that so many numbers take."""
    return -(-count * bits // 8)


def pack(numbers: npt.NDArray[Any], bits: int) -> Bytes:
    """Pack each row of (n, w) uint8 numbers below ``2**bits``: (n, packed_bytes(w)) uint8."""
    if bits == 8:
        return numbers
    if bits == 1:
        return np.packbits(numbers, axis=1)
    rows, width = numbers.shape
    each = 8 // bits
    padded = numbers
    if width % each:
        padded = np.zeros((rows, packed_bytes(width, bits) * each), np.uint8)
        padded[:, :width] = numbers
    packed: Bytes = padded[:, 0::each] << np.uint8(8 - bits)
    for place in range(1, each):
        packed |= padded[:, place::each] << np.uint8(8 - bits * (place + 1))
    return packed


def unpack(packed: Bytes, width: int, bits: int) -> Bytes:
    """Return the (n, width) uint8 numbers that :func:`pack` was given."""
    if bits == 8:
        return packed
    if bits == 1:
        return np.unpackbits(packed, axis=1, count=width)
    each, most = 8 // bits, (1 << bits) - 1
    found = np.empty((len(packed), packed.shape[1] * each), np.uint8)
    for place in range(each):
        found[:, place::each] = (packed >> (8 - bits * (place + 1))) & most
    return found[:, :width]
