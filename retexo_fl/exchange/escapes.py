"""Small whole numbers as bytes: 0 to 254 take one, and each 255 stands for "255 more".

Gaps between the columns of sparse features are mostly below 255 (Cora: 96 %), which makes one byte
each: half of what u16 column numbers take. Every number has exactly one spelling.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from retexo_fl.errors import RemoteProtocolError
from retexo_fl.units import counted

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
