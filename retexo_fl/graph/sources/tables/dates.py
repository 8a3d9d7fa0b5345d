"""Which order the dates of a column have, by all of its cells."""

from __future__ import annotations

from collections import Counter

import numpy as np

from retexo_fl.dates import readings_of
from retexo_fl.graph.recipes.moments import Moments, signed_logarithms

#: How a column may be read where the year is last: places among the readings of a date.
DAY_FIRST, MONTH_FIRST = 0, 1


def days_of(text: str, order: int) -> float | None:
    """Return a date as days since 1970-01-01, in UTC where it names a zone; None for none.

    Args:
        text: The cell.
        order: :data:`DAY_FIRST` or :data:`MONTH_FIRST`.
    """
    found = readings_of(text)[order]
    return None if found is None else found.in_days


class DateTally:
    """Which order the dates of a column have, and their moments, batch by batch."""

    def __init__(self) -> None:
        """Begin where both orders are possible."""
        self._read = {DAY_FIRST: (Moments(), Moments()), MONTH_FIRST: (Moments(), Moments())}
        self.may_differ: str | None = None

    @property
    def orders(self) -> tuple[int, ...]:
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
