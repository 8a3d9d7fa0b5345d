"""The name of an array: a digest that thousands of clients of one process make once."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, TypeAlias

import numpy as np

#: An array that was hashed and its bytes; which part of them (address, length, dtype, ``before``);
#: the digest.
_Hashed: TypeAlias = tuple[np.ndarray, bytes, tuple[int, int, str, bytes], bytes]
#: The last four: in a round the weights before it, and its own; clients that train and those that
#: only evaluate are asked in turn.
_LAST: Final[dict[str, tuple[_Hashed, ...]]] = {}


def array_digest(values: np.ndarray, before: bytes = b"") -> bytes:
    """Return the 32 bytes that name an array: SHA-256 of ``before``, dtype and content.

    Clients of one process get the same object of bytes, which nobody can change, and hash it once.
    """
    last = _LAST.get("arrays", ())
    for array, _, (*_, stood_before), digest in last:
        if array is values and stood_before == before:
            return digest
    values = np.ascontiguousarray(values)
    owner: Any = values.base
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if type(owner) is not bytes:
        return _digest(values, before)
    what = values.ctypes.data, values.nbytes, _name(values.dtype), before
    for _, hashed, part, digest in last:
        if hashed is owner and part == what:
            return digest
    digest = _digest(values, before)
    _LAST["arrays"] = (*last[-3:], (values, owner, what, digest))
    return digest


# NumPy makes it anew each time, which takes longer than to find an array that was hashed.
@cache
def _name(dtype: np.dtype[Any]) -> str:
    return str(dtype)


def _digest(values: np.ndarray, before: bytes) -> bytes:
    told = hashlib.sha256(before + _name(values.dtype).encode())
    if values.size:
        told.update(values.data.cast("B"))
    return told.digest()


@dataclass(frozen=True, slots=True)
class DigestedArray:
    """An array as the argument of a function that remembers: equal to others of its digest.

    Attributes:
        digest: As :func:`array_digest` has it.
        values: (P,) array.
    """

    digest: bytes
    values: np.ndarray = field(compare=False)
