"""Sums of numbers and of squares without rounding: neither order nor split shows in them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Self

import numpy as np

#: Bits of a float64's significand.
_BITS = 53


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """What a mean and a standard deviation are made from.

    Attributes:
        count: Numbers.
        total: Their exact sum.
        squares: Exact sum of their squares.
    """

    count: int = 0
    total: Fraction = Fraction()
    squares: Fraction = Fraction()

    @classmethod
    def of(cls, values: np.ndarray) -> Self:
        """Add up numbers.

        Args:
            values: [n] float64, finite.
        """
        significands, exponents = np.frexp(values)
        whole = np.ldexp(significands, _BITS).astype(np.int64)
        total, squares = Fraction(), Fraction()
        for exponent in np.unique(exponents).tolist():
            unit = Fraction(2) ** (exponent - _BITS)
            group = whole[exponents == exponent].tolist()
            total += sum(group) * unit
            squares += sum(value * value for value in group) * unit * unit
        return cls(count=len(values), total=total, squares=squares)

    def __add__(self, other: Moments) -> Moments:
        """Return the moments of both sets of numbers together."""
        return Moments(
            count=self.count + other.count,
            total=self.total + other.total,
            squares=self.squares + other.squares,
        )

    @property
    def mean(self) -> float:
        """The exact mean, rounded once; 0 of no numbers."""
        return float(self.total / self.count) if self.count else 0.0

    @property
    def deviation(self) -> float:
        """Standard deviation (of the population); 0 where all numbers are equal."""
        if not self.count:
            return 0.0
        mean = self.total / self.count
        return math.sqrt(float(self.squares / self.count - mean * mean))


def signed_logarithms(values: np.ndarray) -> np.ndarray:
    """Return ``sign(v) log(1 + |v|)``, which is defined for all numbers and keeps 0 and signs.

    Args:
        values: [n] float64.

    Returns:
        [n] float64; the same for a value wherever it is, which NumPy's own does not promise.
    """
    logarithms = np.fromiter(map(math.log1p, np.abs(values).tolist()), np.float64, len(values))
    signed: np.ndarray = np.copysign(logarithms, values)
    return signed
