"""One whole number of thousands of bits under masks, for sums that must be exact.

Its bits hold many numbers side by side, and carries cross 64 bits, so it is no array of a ring.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Self

from retexo_fl.errors import RemoteProtocolError
from retexo_fl.masking.streams import key_stream


@dataclass(frozen=True, slots=True, kw_only=True)
class LongForm:
    """Whole numbers modulo ``2**(8 size)``.

    Attributes:
        size: Bytes of a number.
    """

    size: int

    def zeros(self) -> LongNumber:
        """Return the sum of nothing."""
        return LongNumber(form=self, value=0)

    @property
    def words(self) -> bytes:
        """The form as bytes, for labels."""
        return b"long/" + str(self.size).encode()


@dataclass(slots=True, kw_only=True)
class LongNumber:
    """A number of a form, masked or not.

    Attributes:
        form: Its width.
        value: From 0, below ``2**(8 size)``.
    """

    form: LongForm
    value: int

    @classmethod
    def of(cls, content: bytes, form: LongForm) -> Self:
        """Read what :attr:`content` was.

        Raises:
            RemoteProtocolError: There are fewer bytes, or more.
        """
        if len(content) != form.size:
            raise RemoteProtocolError(
                f"a masked number has {len(content)} bytes; expected {form.size}"
            )
        return cls(form=form, value=int.from_bytes(content, "little"))

    @property
    def content(self) -> bytes:
        """The number as it travels."""
        return self.value.to_bytes(self.form.size, "little")

    def add(self, other: LongNumber) -> None:
        """Add in place."""
        assert other.form == self.form
        self._add(other.value)

    def copy(self) -> LongNumber:
        """Return a number of its own."""
        return LongNumber(form=self.form, value=self.value)

    def tell(self, update: Callable[[bytes], object]) -> None:
        """Hand over the number as bytes."""
        update(self.content)

    def add_masks(self, added: Iterable[bytes], subtracted: Iterable[bytes]) -> None:
        """Add the masks of some 16-byte seeds and subtract those of others, in place."""
        self._add(sum(map(self._mask, added)) - sum(map(self._mask, subtracted)))

    def _add(self, value: int) -> None:
        self.value = (self.value + value) % (1 << 8 * self.form.size)

    def _mask(self, seed: bytes) -> int:
        """Return the number that a seed stands for; a seed is used for one form only."""
        key = hashlib.sha256(b"retexo long mask 1" + seed).digest()
        return int.from_bytes(key_stream(key, self.form.size), "little")
