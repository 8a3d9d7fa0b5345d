"""Fixed point: whole numbers of a power of two, so that sums do not depend on their order.

A sender rounds all values of an exchange to one grid, ``2 ** -exponent`` apart, on which the
largest of them has at most 24 bits. Such a value is exact in float32, and int32 holds the sum of
127 of them. What is added is whole numbers, so neither order nor grouping changes a bit; the only
error is that of :func:`snap`, at most half a step of the grid for each value.

In bytes (:func:`snap_rows`) each row keeps 8 of the 24 bits: its values are whole numbers of one
byte, with a sign where a value is negative, times ``2 ** shift`` steps. Rows of any shift are added
on the one grid.
"""

from __future__ import annotations

import math
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from retexo_fl.errors import LocalProtocolError, TrainingDiverged
from retexo_fl.exchange.levels import thresholds_of

_Float = TypeVar("_Float", np.float32, np.float64)

#: Bits of a float32 significand: a snapped value's magnitude is at most ``2 ** 24`` steps.
MAX_BITS: Final = 24
MAX_STEPS: Final = 2**MAX_BITS
#: Values that int32 adds without overflow, whatever they are: 127 * 2**24 < 2**31. More
#: contributors to one row are spread over several rows of accumulators.
MAX_CONTRIBUTORS: Final = 127
#: No float32 is larger than 2**24 steps of this grid ...
MIN_EXPONENT: Final = MAX_BITS - 128
#: ... and one step of this grid is the least normal float32, which is multiplied without rounding.
MAX_EXPONENT: Final = 126
_MAX_MAGNITUDE: Final = float(np.finfo(np.float32).max)
#: Of a row in bytes: the largest number with a sign, and without.
_MOST_SIGNED: Final = 127
_MOST_UNSIGNED: Final = 255
#: 2**24 is more than 127 * 2**17.
MAX_SHIFT: Final = 18
#: In the form of a row in bytes: its numbers have a sign.
SIGNED: Final = 0x80


def exponent_for(max_abs: float) -> int:
    """Return the finest grid for values of at most this magnitude; 0 for 0.

    It is the largest exponent at which ``max_abs`` rounds to at most ``2 ** 24`` steps, but never
    more than 126: values that are all below 2**-102 keep fewer bits.

    Raises:
        TrainingDiverged: The magnitude is not finite, or float32 cannot hold it.
    """
    if not 0 <= max_abs <= _MAX_MAGNITUDE:
        raise TrainingDiverged(
            f"largest magnitude to be sent is {max_abs}, expected one that float32 can hold"
        )
    if max_abs == 0:
        return 0
    _, bits = math.frexp(max_abs)
    # 2**23 <= max_abs * 2**exponent < 2**24. The next grid serves 2**24 and what rounds to it.
    exponent = MAX_BITS - bits
    if round(math.ldexp(max_abs, exponent + 1)) <= MAX_STEPS:
        exponent += 1
    return min(exponent, MAX_EXPONENT)


def snap(values: NDArray[_Float], exponent: int) -> NDArray[np.int32]:
    """Round values to the grid, halves to even.

    Args:
        values: float32 or float64 of any shape.
        exponent: What :func:`exponent_for` gave for the largest magnitude, or less.

    Returns:
        Steps, int32 in the same shape: ``values * 2 ** exponent``, rounded.

    Raises:
        LocalProtocolError: The exponent is out of range or too large for a value.
        TrainingDiverged: A value is not finite.
    """
    _check_exponent(exponent)
    # Exact but for what becomes subnormal, and that rounds to 0 anyway.
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        steps = values * values.dtype.type(2.0**exponent)
        np.rint(steps, out=steps)
    # Of NaN, neither end compares.
    if steps.size and not (steps.min() >= -MAX_STEPS and steps.max() <= MAX_STEPS):
        raise _why_not(values, exponent)
    return steps.astype(np.int32)


def snap_rows(rows: NDArray[_Float], exponent: int) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """Round each row of a matrix to numbers of one byte, up or down at random.

    Equal rows are rounded alike, whoever does it, and right in the mean (as in :mod:`.levels`).

    Args:
        rows: (n, w) float32 or float64.
        exponent: What :func:`exponent_for` gave for the largest magnitude, or less.

    Returns:
        Steps, int32 in the same shape, which :func:`byte_rows` writes without loss; and the shifts
        (n,) of the numbers that they were rounded to.

    Raises:
        LocalProtocolError: The exponent is out of range or too large for a value.
        TrainingDiverged: A value is not finite.
    """
    snap(rows, exponent)  # refuses what is not on the grid
    scaled = (rows.astype(np.float64) * 2.0**exponent).clip(-MAX_STEPS, MAX_STEPS)
    shifts, _ = _forms(np.copysign(np.ceil(np.abs(scaled)), scaled).astype(np.int32))
    units = scaled / _powers(shifts)
    # Near the next number, a sum with what is below 1 rounds to one too many.
    numbers = np.minimum(np.floor(units + thresholds_of(rows)), np.ceil(units))
    steps: NDArray[np.int32] = (numbers * _powers(shifts)).astype(np.int32)
    return steps, shifts


def byte_rows(steps: NDArray[np.int32]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]] | None:
    """Return what rows are in bytes; None where that would lose something.

    Args:
        steps: (n, w) int32.

    Returns:
        (n, w) numbers, those of a signed row in two's complement; (n,) forms: a shift from 0 to 18,
        and 128 more for a signed row.
    """
    shifts, is_signed = _forms(steps)
    if (steps & ((1 << shifts.astype(np.int32)) - 1)[:, None]).any():
        return None
    numbers = (steps >> shifts[:, None]).astype(np.uint8)
    return numbers, shifts | np.where(is_signed, SIGNED, 0).astype(np.uint8)


def rows_of_bytes(numbers: NDArray[np.uint8], forms: NDArray[np.uint8]) -> NDArray[np.int32]:
    """Return the steps that :func:`byte_rows` wrote; shifts are at most 18."""
    shifts, is_signed = forms & (SIGNED - 1), forms >= SIGNED
    values = np.where(is_signed[:, None], numbers.view(np.int8), numbers).astype(np.int32)
    return values << shifts[:, None].astype(np.int32)


def _forms(steps: NDArray[np.int32]) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Return the least shift at which each row fits bytes, and whether it is signed."""
    is_signed = steps.min(axis=1, initial=0) < 0
    largest = np.maximum(steps.max(axis=1, initial=0), -steps.min(axis=1, initial=0))
    most = np.where(is_signed, _MOST_SIGNED, _MOST_UNSIGNED)
    _, bits = np.frexp(largest / (most + 1))
    shifts = np.maximum(bits, 0)
    shifts += largest > most << shifts
    return shifts.astype(np.uint8), is_signed


def _powers(shifts: NDArray[np.uint8]) -> NDArray[np.float64]:
    return np.ldexp(1.0, shifts.astype(np.int64))[:, None]


def unsnap(
    steps: NDArray[np.int32] | NDArray[np.int64], exponent: int, dtype: type[_Float]
) -> NDArray[_Float]:
    """Return the values of whole numbers of steps, rounded once to ``dtype``.

    What :func:`snap` made is exact in float32; a sum rounds where it has more than 24 bits.

    Raises:
        LocalProtocolError: The exponent is out of range.
    """
    _check_exponent(exponent)
    # The conversion rounds, the product with a normal power of two does not.
    values = steps.astype(dtype)
    values *= dtype(2.0**-exponent)
    return values


def error_bound(exponent: int, contributors: int = 1) -> float:
    """Return how far a sum of snapped values is from the sum of the values, at most.

    The rounding of the sum to the run's dtype is not part of it.

    Raises:
        LocalProtocolError: The exponent is out of range.
    """
    _check_exponent(exponent)
    return contributors * 2.0 ** -(exponent + 1)


def _check_exponent(exponent: int) -> None:
    if not MIN_EXPONENT <= exponent <= MAX_EXPONENT:
        raise LocalProtocolError(
            f"exponent {exponent} is out of range, expected {MIN_EXPONENT} to {MAX_EXPONENT}"
        )


def _why_not(values: NDArray[_Float], exponent: int) -> TrainingDiverged | LocalProtocolError:
    if not np.isfinite(values).all():
        return TrainingDiverged("a value to be sent is not finite")
    largest = float(np.abs(values).max())
    return LocalProtocolError(
        f"exponent {exponent} is too large for a magnitude of {largest:g}, expected at most "
        f"{exponent_for(largest)}"
    )
