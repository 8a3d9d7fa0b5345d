"""Dates as people write them: with the year first, or last behind day and month in either order."""

from __future__ import annotations

import re
from collections import Counter
from datetime import date
from typing import Final

import numpy as np

from retexo_fl.graph.recipes.moments import Moments, signed_logarithms

_CLOCK: Final = (
    r"(?:[T ] ?(\d{1,2}):(\d\d)(?::(\d\d)(?:[.,](\d{1,9}))?)?(?: ?(Z|[+-]\d\d:?\d\d))?)?"
)
_YEAR_FIRST: Final = re.compile(rf"(\d{{4}})([-/.])(\d{{1,2}})\2(\d{{1,2}}){_CLOCK}", re.ASCII)
_YEAR_LAST: Final = re.compile(rf"(\d{{1,2}})([-/.])(\d{{1,2}})\2(\d{{4}}){_CLOCK}", re.ASCII)
_EPOCH: Final = date(1970, 1, 1).toordinal()
_DAY_S: Final = 86_400
#: How a column may be read; points stand between day, month and year in that order alone.
DAY_FIRST: Final = "day"
MONTH_FIRST: Final = "month"


def days_of(text: str, order: str) -> float | None:
    """Return a date as days since 1970-01-01, in UTC where it names a zone; None for none.

    Args:
        text: The cell.
        order: :data:`DAY_FIRST` or :data:`MONTH_FIRST`, where the year is last.
    """
    text = text.strip()
    if found := _YEAR_FIRST.fullmatch(text):
        year, _, month, day, *clock = found.groups()
    elif found := _YEAR_LAST.fullmatch(text):
        day, mark, month, year, *clock = found.groups()
        if order == MONTH_FIRST and mark != ".":
            day, month = month, day
    else:
        return None
    try:
        days = date(int(year), int(month), int(day)).toordinal() - _EPOCH
    except ValueError:
        return None
    seconds = _seconds(clock)
    return None if seconds is None else days + seconds / _DAY_S


def is_date(text: str) -> bool:
    """Return whether a text is a date, in whatever order."""
    return any(days_of(text, order) is not None for order in (DAY_FIRST, MONTH_FIRST))


def _seconds(clock: list[str | None]) -> float | None:
    hours, minutes, seconds, part, zone = clock
    if hours is None:
        return 0.0
    if int(hours) > 24 or int(minutes or 0) > 59 or int(seconds or 0) > 60:
        return None
    found = 3600 * int(hours) + 60 * int(minutes or 0) + int(seconds or 0) + float(f"0.{part or 0}")
    if zone is None or zone == "Z":
        return found
    away = 60 * int(zone[1:3]) + int(zone[-2:])
    return found - 60 * (away if zone[0] == "+" else -away)


def unclear_date(text: str) -> str:
    """Return what is wrong with a date whose column does not say which number is the day."""
    return (
        f"got {text!r}, of which no cell of the column says whether day or month is first; "
        "expected dates such as 2024-03-01"
    )


class DateTally:
    """Which order the dates of a column have, and their moments, batch by batch."""

    def __init__(self) -> None:
        """Begin where both orders are possible."""
        self._read = {DAY_FIRST: (Moments(), Moments()), MONTH_FIRST: (Moments(), Moments())}
        self.may_differ: str | None = None

    @property
    def orders(self) -> tuple[str, ...]:
        """In which orders every cell is a date."""
        return tuple(self._read)

    @property
    def is_clear(self) -> bool:
        """Whether the cells say which order they have, or any is right."""
        return len(self._read) == 1 or (bool(self._read) and self.may_differ is None)

    def add(self, counts: Counter[str]) -> None:
        """Take cells that are not missing: how often each text is there."""
        repeats = np.array([*counts.values()], dtype=np.int64)
        found = {order: [days_of(text, order) for text in counts] for order in self._read}
        for order, days in found.items():
            if None in days:
                del self._read[order]
                continue
            values = np.repeat(np.array(days, dtype=np.float64), repeats)
            numbers, logarithms = self._read[order]
            self._read[order] = (
                numbers + Moments.of(values),
                logarithms + Moments.of(signed_logarithms(values)),
            )
        if self.may_differ is None and len(found) == 2:
            pairs = zip(counts, *found.values(), strict=True)
            self.may_differ = next((text for text, one, other in pairs if one != other), None)

    @property
    def moments(self) -> tuple[Moments, Moments]:
        """Of days and of their logarithms, in the order that the cells have."""
        return next(iter(self._read.values()))
