"""Whole numbers of the discrete Gaussian distribution, exactly, from a key stream.

Rounded normal numbers would not do: their values in floating point reveal what they were added to
(Mironov, CCS 2012). A draw compares uniform numbers of 64 bits with a probability in float64; where
that is too close to decide, both are computed to 90 digits.

Source: Canonne, Kamath and Steinke (NeurIPS 2020), algorithms 1 to 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Final

import numpy as np

from retexo_fl.masking.streams import key_stream

#: Larger standard deviations would leave float64 too little room.
MOST_VARIANCE: Final = 2**80
_NOISE: Final = b"retexo noise 1"
#: Numbers that are drawn at once: they stay in the cache.
_PIECE: Final = 2**15
#: A proposal is taken about so often; see the source, section 5.3.
_TAKEN: Final = 0.45
#: Float64 decides whether a number is below a probability if they differ by more: an exponent up to
#: 60 has an error below 2**-44.
_DOUBT: Final = 2.0**-40
_WORD: Final = 2.0**64
_MORE_WORDS: Final = 3
_DIGITS: Final = 90

#: Returns, for a place in an array, the exponent there as it is.
_Exact = Callable[[int], Fraction]


def discrete_gaussian(size: int, variance: int, seed: bytes) -> np.ndarray:
    """Return (size,) int64, each x with a probability in proportion to exp(-x**2 / 2 variance).

    Args:
        size: How many.
        variance: From 1 to :data:`MOST_VARIANCE`.
        seed: They follow from it; to whoever does not know it they look random.
    """
    assert 1 <= variance <= MOST_VARIANCE
    words, found = _Words(seed), np.empty(size, np.int64)
    done = 0
    while done < size:
        drawn = _proposed(min(_PIECE, int((size - done) / _TAKEN) + 64), variance, words)
        taken = drawn[: size - done]
        found[done : done + len(taken)] = taken
        done += len(taken)
    return found


class _Words:
    """Uniform numbers of 64 bits."""

    def __init__(self, seed: bytes) -> None:
        self._stream = key_stream(_NOISE, seed)

    def take(self, count: int) -> np.ndarray:
        """Return the next (count,) uint64."""
        return np.frombuffer(self._stream.update(bytes(8 * count)), "<u8")


def _proposed(count: int, variance: int, words: _Words) -> np.ndarray:
    """Return those of so many proposals that are taken (algorithm 3)."""
    scale = math.isqrt(variance) + 1
    drawn = _laplace(count, scale, words)
    sizes = np.abs(drawn)
    exponents = np.square(sizes - variance / scale) / (2.0 * variance)
    kept = _happens(
        exponents,
        lambda at: Fraction((int(sizes[at]) * scale - variance) ** 2, 2 * variance * scale**2),
        words,
    )
    taken: np.ndarray = drawn[kept]
    return taken


def _laplace(count: int, scale: int, words: _Words) -> np.ndarray:
    """Return those of so many draws of a discrete Laplace distribution that count (algorithm 2)."""
    uniform = words.take(count)
    # Of the largest multiple of the scale all remainders are equally frequent.
    below = (2**64 // scale) * scale
    if below < 2**64:
        uniform = uniform[uniform < np.uint64(below)]
    rests = (uniform % np.uint64(scale)).astype(np.int64)
    rests = rests[_happens(rests / scale, lambda at: Fraction(int(rests[at]), scale), words)]
    wholes, going = np.zeros(len(rests), np.int64), np.arange(len(rests))
    while len(going):
        goes_on = _happens(np.ones(len(going)), lambda at: Fraction(1), words)
        going = going[goes_on]
        wholes[going] += 1
    sizes = rests + scale * wholes
    is_negative = (words.take(len(sizes)) & np.uint64(1)).astype(bool)
    # Zero has one sign.
    kept = ~(is_negative & (sizes == 0))
    signed: np.ndarray = np.where(is_negative, -sizes, sizes)[kept]
    return signed


def _happens(exponents: np.ndarray, exact: _Exact, words: _Words) -> np.ndarray:
    """Return (n,) bool, each true with the probability exp(-exponent) (algorithm 1).

    Args:
        exponents: (n,) float64, at least 0, to a relative error of 2**-50.
        exact: Knows them as they are.
        words: Drawn from.
    """
    drawn = words.take(len(exponents))
    distance = drawn.astype(np.float64) / _WORD - np.exp(-exponents)
    found: np.ndarray = distance < 0
    for at in np.flatnonzero(np.abs(distance) < _DOUBT):
        digits = [int(drawn[at]), *map(int, words.take(_MORE_WORDS))]
        found[at] = is_below(digits, exact(int(at)))
    return found


def is_below(words: list[int], exponent: Fraction) -> bool:
    """Return whether a number from 0 to 1, of words after the point, is below exp(-exponent)."""
    number = sum(Fraction(word, 2 ** (64 * place)) for place, word in enumerate(words, start=1))
    with localcontext(prec=_DIGITS):
        chance = (-Decimal(exponent.numerator) / Decimal(exponent.denominator)).exp()
        shown = Decimal(Fraction(number).numerator) / Decimal(Fraction(number).denominator)
        return shown < chance
