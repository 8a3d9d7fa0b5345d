"""Small whole numbers in 8, 4, 2 or 1 bits each, the first in the highest bits of a byte."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


def packed_bytes(count: int, bits: int) -> int:
    """Return the bytes that so many numbers take."""
    return -(-count * bits // 8)


def pack(numbers: npt.NDArray[Any], bits: int) -> Bytes:
    """Pack each row of (n, w) uint8 numbers below ``2**bits``: (n, packed_bytes(w)) uint8."""
    if bits == 8:
        return numbers
    each = np.unpackbits(numbers[:, :, None], axis=2)[:, :, 8 - bits :]
    return np.packbits(each.reshape(len(numbers), -1), axis=1)


def unpack(packed: Bytes, width: int, bits: int) -> Bytes:
    """Return the (n, width) uint8 numbers that :func:`pack` was given."""
    if bits == 8:
        return packed
    each = np.unpackbits(packed, axis=1)[:, : width * bits].reshape(len(packed), width, bits)
    found: Bytes = each @ (1 << np.arange(bits - 1, -1, -1)).astype(np.uint8)
    return found
