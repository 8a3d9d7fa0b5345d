"""One whole number of thousands of bits under masks, for sums that must be exact.

Its bits hold many numbers side by side, and carries cross 64 bits, so it is no array of a ring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Self

from retexo_fl.errors import RemoteProtocolError
from retexo_fl.masking.streams import key_stream


@dataclass(slots=True, kw_only=True)
class LongNumber:
    """A whole number modulo ``2**(8 size)``, masked or not.

    Attributes:
        size: Its bytes.
        value: From 0; the sum of nothing if none is given.
    """

    size: int
    value: int = 0

    @classmethod
    def of(cls, content: bytes, size: int) -> Self:
        """Read what :attr:`content` was.

        Raises:
            RemoteProtocolError: There are fewer bytes, or more.
        """
        if len(content) != size:
            raise RemoteProtocolError(f"a masked number has {len(content)} bytes; expected {size}")
        return cls(size=size, value=int.from_bytes(content, "little"))

    @property
    def words(self) -> bytes:
        """Its form as bytes, for labels."""
        return b"long/" + str(self.size).encode()

    @property
    def content(self) -> bytes:
        """The number as it travels."""
        return self.value.to_bytes(self.size, "little")

    def add(self, other: LongNumber) -> None:
        """Add in place."""
        assert other.size == self.size
        self._add(other.value)

    def copy(self) -> LongNumber:
        """Return a number of its own."""
        return replace(self)

    def tell(self, update: Callable[[bytes], object]) -> None:
        """Hand over the number as bytes."""
        update(self.content)

    def add_masks(self, added: Iterable[bytes], subtracted: Iterable[bytes]) -> None:
        """Add the masks of some 16-byte seeds and subtract those of others, in place."""
        self._add(sum(map(self._mask, added)) - sum(map(self._mask, subtracted)))

    def _add(self, value: int) -> None:
        self.value = (self.value + value) % (1 << 8 * self.size)

    def _mask(self, seed: bytes) -> int:
        """Return the mask that follows from a seed; a seed is used for one form only."""
        stream = key_stream(b"retexo long mask 1", seed)
        return int.from_bytes(stream.update(bytes(self.size)), "little")
