"""Whole numbers modulo a power of two, in as few bits as their sums need."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from retexo_fl.errors import RemoteProtocolError
from retexo_fl.packing import Bytes, pack, packed_bytes, unpack

#: Whole numbers modulo ``2**bits``, unsigned.
Numbers = npt.NDArray[Any]

_PLANES: Final = (8, 4, 2, 1)


@dataclass(frozen=True, slots=True)
class Ring:
    """The numbers modulo ``2**bits``.

    Attributes:
        bits: 2 to 64.
        most: The largest number that has a negative of its own.
    """

    bits: int
    most: int = field(init=False, repr=False, compare=False)
    #: In which numbers are computed, little-endian.
    dtype: np.dtype[Any] = field(init=False, repr=False, compare=False)
    _fills_words: bool = field(init=False, repr=False, compare=False)
    #: Bits of each plane, and by how many they are shifted.
    _planes: tuple[tuple[int, int], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the width; find its largest number, words and planes."""
        assert 2 <= self.bits <= 64
        item = next(size for size in (1, 2, 4, 8) if self.bits <= 8 * size)
        object.__setattr__(self, "most", (1 << self.bits - 1) - 1)
        object.__setattr__(self, "dtype", np.dtype(f"<u{item}"))
        object.__setattr__(self, "_fills_words", self.bits == 8 * item)
        object.__setattr__(self, "_planes", _planes(self.bits))

    @staticmethod
    @lru_cache(maxsize=64)
    def of_sums(most: int, terms: int) -> Ring:
        """Return the smallest one in which a sum of so many numbers of -most to most has one form.

        Args:
            most: Largest magnitude of a number.
            terms: How many are added.
        """
        return Ring(max(2, (2 * most * terms).bit_length()))

    def wrapped(self, numbers: npt.NDArray[Any]) -> Numbers:
        """Return (n,) whole numbers, of a signed dtype, as numbers of the ring.

        They are a view where the ring has just the bits of the dtype.
        """
        if self._fills_words and numbers.dtype.itemsize == self.dtype.itemsize:
            return numbers.view(self.dtype)
        return self.cut(numbers.astype(self.dtype))

    def signed(self, numbers: Numbers) -> npt.NDArray[np.int64]:
        """Return the (n,) whole numbers of smallest magnitude that these are in the ring."""
        if self._fills_words:
            return numbers.view(self.dtype.str.replace("u", "i")).astype(np.int64)
        found = numbers.astype(np.int64)
        found[found > self.most] -= 1 << self.bits
        return found

    def size(self, count: int) -> int:
        """Return the bytes of so many numbers, packed."""
        if self._fills_words:
            return count * self.dtype.itemsize
        return sum(packed_bytes(count, plane) for plane, _ in self._planes)

    def pack(self, numbers: Numbers) -> Bytes:
        """Return numbers in planes: the lowest 8 bits, the next 8, then 4, 2, 1 of the rest.

        Where a number fills whole words, as those: a view.
        """
        if self._fills_words:
            return numbers.view(np.uint8)
        planes = [
            pack(((numbers >> shift) & ((1 << plane) - 1)).astype(np.uint8)[None], plane)
            for plane, shift in self._planes
        ]
        packed: Bytes = np.concatenate(planes, axis=1)[0]
        return packed

    def unpack(self, packed: bytes | memoryview | Bytes, count: int) -> Numbers:
        """Return the (count,) numbers of :meth:`pack`, maybe as a view that is only to be read.

        Raises:
            RemoteProtocolError: There are fewer bytes, or more.
        """
        if len(packed) != self.size(count):
            raise RemoteProtocolError(
                f"masked numbers have {len(packed)} bytes; expected {self.size(count)}"
            )
        if self._fills_words:
            return np.frombuffer(packed, self.dtype)
        found, at = np.zeros(count, self.dtype), 0
        for plane, shift in self._planes:
            size = packed_bytes(count, plane)
            piece = np.frombuffer(packed, np.uint8, size, at)[None]
            found |= unpack(piece, count, plane)[0].astype(self.dtype) << shift
            at += size
        return found

    def cut(self, numbers: Numbers) -> Numbers:
        """Leave out in place what is above the ring's bits."""
        if not self._fills_words:
            numbers &= (1 << self.bits) - 1
        return numbers


def _planes(bits: int) -> tuple[tuple[int, int], ...]:
    found: list[tuple[int, int]] = []
    shift = 0
    while shift < bits:
        plane = next(plane for plane in _PLANES if shift + plane <= bits)
        found.append((plane, shift))
        shift += plane
    return tuple(found)
