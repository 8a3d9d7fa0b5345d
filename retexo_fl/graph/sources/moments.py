"""Points in time of edges: numbers, or dates as ISO 8601 writes them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, Self

import numpy as np

from retexo_fl.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A point in time that edges are compared with.

    Attributes:
        text: As it was given.
        value: The number; of a date seconds since 1970, in UTC where it names no zone.
        is_date: Whether it is a date.
    """

    text: str
    value: float
    is_date: bool

    @classmethod
    def of(cls, text: str) -> Self:
        """Read a number, or a date such as ``2024-03-01`` or ``2024-03-01T12:30``.

        Raises:
            ConfigurationError: It is neither.
        """
        for is_date, read in ((False, _number), (True, _seconds)):
            with suppress(ValueError):
                return cls(text=text, value=read(text), is_date=is_date)
        raise ConfigurationError(
            f"edges-before: got {text[:40]!r}; expected a number, or a date such as 2024-03-01"
        )


def moments(cells: Sequence[Any] | np.ndarray, *, dates: bool) -> tuple[np.ndarray, int | None]:
    """Read points in time.

    Args:
        cells: Numbers, or text.
        dates: Whether they are dates.

    Returns:
        [n] float64, and the first cell that is no such point.
    """
    found = np.full(len(cells), np.nan)
    for row, cell in enumerate(cells):
        try:
            found[row] = _seconds(cell) if dates else _number(cell)
        except (TypeError, ValueError):
            return found, row
    return found, None


def _number(value: Any) -> float:
    number = float(value)
    if not np.isfinite(number):
        raise ValueError(value)
    return number


def date_text(value: Any) -> str | None:
    """Return a date as ISO 8601 writes it; None for what is no date."""
    if isinstance(value, np.datetime64):
        return None if np.isnat(value) else str(np.datetime_as_string(value))
    return value.isoformat() if isinstance(value, date) else None


def _seconds(text: Any) -> float:
    moment = datetime.fromisoformat(date_text(text) or text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
