"""A step that all clients share: real numbers as its multiples, whose sums are in a small ring."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Final, Self

from retexo_fl.errors import RemoteProtocolError
from retexo_fl.masking.ring import Ring

#: Bits of the ring, exponent of the step.
_FORM: Final = struct.Struct("<Bb")
_LEAST_EXPONENT, _MOST_EXPONENT = -100, 100


@dataclass(frozen=True, slots=True)
class SharedStep:
    """A power of two, and the bits of the ring of sums of its multiples."""

    bits: int
    exponent: int

    @classmethod
    def of_sum(cls, largest: float, *, terms: int, bits: int) -> Self:
        """Return the finest step of which a sum does not overflow.

        Args:
            largest: What no sum exceeds in magnitude.
            terms: How many numbers are added, each rounded to the nearest.
            bits: Of the ring.
        """
        room = Ring(bits).most - terms
        least = math.ldexp(1.0, _LEAST_EXPONENT)
        exponent = math.ceil(math.log2(max(largest / room, least)))
        return cls(bits, min(exponent, _MOST_EXPONENT))

    @classmethod
    def read(cls, told: bytes | None) -> Self:
        """Read what :attr:`told` has.

        Raises:
            RemoteProtocolError: It is no step.
        """
        if told is None or len(told) != _FORM.size:
            raise RemoteProtocolError("the step of masked sums is missing")
        bits, exponent = _FORM.unpack(told)
        if not (2 <= bits <= 64 and _LEAST_EXPONENT <= exponent <= _MOST_EXPONENT):
            raise RemoteProtocolError(f"a step of masked sums is of {bits} bits, 2**{exponent}")
        return cls(bits, exponent)

    @property
    def told(self) -> bytes:
        """The step as it travels."""
        return _FORM.pack(self.bits, self.exponent)

    @property
    def ring(self) -> Ring:
        """The ring of sums."""
        return Ring(self.bits)

    @property
    def unit(self) -> float:
        """One step."""
        return math.ldexp(1.0, self.exponent)
