"""Axes: from values to positions, and ticks that a person would have chosen."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from retexo_fl.units import format_bytes

Quantity = Literal["number", "share", "count", "bytes"]

_STEPS: Final = (1.0, 2.0, 2.5, 5.0, 10.0)
_SIZES: Final = (("B", 1.0), ("kB", 1e3), ("MB", 1e6), ("GB", 1e9), ("TB", 1e12), ("PB", 1e15))


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A linear axis from ``low`` to ``high``.

    Attributes:
        low: Value at the start.
        high: Value at the end, above ``low``.
        quantity: What the values are; decides how ticks are written.
        step: Distance of ticks, where the axis was made for one.
    """

    low: float
    high: float
    quantity: Quantity
    step: float | None = None

    def place(self, value: float, start: float, end: float) -> float:
        """Return where ``value`` lies when the axis runs from ``start`` to ``end``."""
        return start + (value - self.low) / (self.high - self.low) * (end - start)

    def ticks(self, most: int) -> list[tuple[float, str]]:
        """Return at most about ``most`` round values inside the axis, with their labels."""
        step = self.step or _step(self.high - self.low, most, whole=self.quantity == "count")
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        values = [number * step for number in range(first, last + 1)]
        if self.quantity == "count" and values and values[0] > self.low:
            if self.place(values[0], 0, 1) < 0.04:
                values = values[1:]
            values = [self.low, *values]
        return [(value, self._label(value, step)) for value in values]

    def _label(self, value: float, step: float) -> str:
        if self.quantity == "count":
            return f"{value:,.0f}"
        if self.quantity == "share":
            return f"{100 * value:.{_digits(100 * step)}f} %"
        if self.quantity == "bytes":
            if abs(value) < step / 2:
                return "0"
            unit, size = max(
                (item for item in _SIZES if item[1] <= max(self.high, 1.0)), key=lambda i: i[1]
            )
            return f"{value / size:.{_digits(step / size)}f} {unit}"
        # A loss near zero: fixed digits would show all its ticks as 0.
        return f"{value:.3g}" if step < 1e-5 else f"{value:.{_digits(step)}f}"


def fitted_axis(values: Iterable[float], quantity: Quantity) -> Axis:
    """Return an axis around ``values``, extended to round numbers.

    That of shares from 0 to 1 stays within 0 and 1; a metric of a plugin may be beyond.
    """
    found = list(values)
    low, high = (min(found), max(found)) if found else (0.0, 1.0)
    if high - low < 1e-9 * max(1.0, abs(high)):
        margin = 0.05 * max(1.0, abs(high)) if quantity == "share" else max(0.5 * abs(high), 0.5)
        low, high = low - margin, high + margin
    step = _step(high - low, 5, whole=False)
    low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    if quantity == "share" and found and min(found) >= 0 and max(found) <= 1:
        low, high = max(low, 0.0), min(high, 1.0)
    return Axis(low=low, high=high, quantity=quantity, step=step)


def tight_axis(low: float, high: float, quantity: Quantity) -> Axis:
    """Return an axis from ``low`` to ``high``, widened when they are equal."""
    return Axis(low=low, high=high if high > low else low + 1, quantity=quantity)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogByteAxis:
    """A logarithmic axis of bytes, over whole powers of ten.

    Attributes:
        low: Exponent of ten at the start.
        high: Exponent of ten at the end.
    """

    low: int
    high: int

    @classmethod
    def around(cls, values: Iterable[float]) -> LogByteAxis:
        """Return the axis that holds all positive ``values``."""
        exponents = [math.log10(value) for value in values if value > 0] or [0.0]
        low, high = math.floor(min(exponents)), math.ceil(max(exponents))
        return cls(low=low, high=max(high, low + 1))

    def place(self, value: float, start: float, end: float) -> float:
        """Return where the positive ``value`` lies when the axis runs from ``start`` to ``end``."""
        return start + (math.log10(value) - self.low) / (self.high - self.low) * (end - start)

    def ticks(self, most: int) -> list[tuple[float, str]]:
        """Return at most ``most`` powers of ten with their labels."""
        step = max(1, math.ceil((self.high - self.low + 1) / most))
        return [
            (10.0**exponent, format_bytes(10.0**exponent).replace(".0", ""))
            for exponent in range(self.low, self.high + 1, step)
        ]


def _step(span: float, most: int, *, whole: bool) -> float:
    rough = span / max(most, 1)
    size = 10.0 ** math.floor(math.log10(rough))
    steps = (base * size for base in _STEPS if base * size >= rough * (1 - 1e-9))
    if not whole:
        return next(steps)
    return next((step for step in steps if step >= 1 and step.is_integer()), max(1.0, 10 * size))


def _digits(step: float) -> int:
    digits = 0
    # Above 2**53 every float64 is a whole number.
    while step < 2**53 and digits < 8 and abs(step * 10**digits - round(step * 10**digits)) > 1e-6:
        digits += 1
    return digits
