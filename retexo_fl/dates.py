"""Dates as people write them: with the year first, or last behind day and month in either order."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from itertools import pairwise
from typing import Any, Final, Self

from retexo_fl.errors import ConfigurationError

_CLOCK: Final = (
    r"(?:[T ] ?(\d{1,2}):(\d\d)(?::(\d\d)(?:[.,](\d{1,9}))?)?(?: ?(Z|[+-]\d\d:?\d\d))?)?"
)
_YEAR_FIRST: Final = re.compile(rf"(\d{{4}})([-/.])(\d{{1,2}})\2(\d{{1,2}}){_CLOCK}", re.ASCII)
_YEAR_LAST: Final = re.compile(rf"(\d{{1,2}})([-/.])(\d{{1,2}})\2(\d{{4}}){_CLOCK}", re.ASCII)
_EPOCH: Final = date(1970, 1, 1).toordinal()
_DAY_S: Final = 86_400
#: The texts that are a point in time, for errors and help.
MOMENT: Final = (
    "a number, or a date such as 2024-03-01, 2024-03-01T12:30 or 01.03.2024 (not 03/01/2024, which "
    "may be two)"
)
#: The texts that are a point in time for each use of nodes.
THREE: Final = "three that ascend, with / between them: of train, validation and test nodes"
_USES: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Instant:
    """A point in time.

    Attributes:
        days: Whole days since 1970-01-01.
        seconds: What is to be added, in UTC where the text names a zone.
    """

    days: int
    seconds: float

    @property
    def in_days(self) -> float:
        """Days since 1970."""
        return self.days + self.seconds / _DAY_S

    @property
    def in_seconds(self) -> float:
        """Seconds since 1970."""
        return self.days * _DAY_S + self.seconds


#: How a date may be read: with the day before the month, and with the month before the day. With
#: points the order is always day, month, year. None is no date.
Readings = tuple[Instant | None, Instant | None]


def readings_of(text: str) -> Readings:
    """Return what a date may say: the same twice, but for ``03/01/2024`` and its kind.

    Other texts than those of ISO 8601 (in any form that Python reads, but for years with signs) may
    have ``/`` or ``.`` between year, month and day, and one digit for each of the last two.
    """
    text = text.strip()
    if found := _YEAR_FIRST.fullmatch(text):
        year, _, month, day, *clock = found.groups()
        return _alike(_instant(year, month, day, clock))
    if found := _YEAR_LAST.fullmatch(text):
        day, mark, month, year, *clock = found.groups()
        with_day = _instant(year, month, day, clock)
        return _alike(with_day) if mark == "." else (with_day, _instant(year, day, month, clock))
    with suppress(ValueError, OverflowError):
        moment = datetime.fromisoformat(text)
        moment = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
        midnight = moment.replace(hour=0, minute=0, second=0, microsecond=0)
        seconds = (moment - midnight).total_seconds()
        return _alike(Instant(days=moment.toordinal() - _EPOCH, seconds=seconds))
    return None, None


def is_date(text: str) -> bool:
    """Return whether a text is a date, in whatever order, and no number."""
    return not text.strip().isdigit() and any(readings_of(text))


def day_of(text: str) -> date | None:
    """Return the day that a text names without a clock, in one way; None for another text."""
    one, other = readings_of(text)
    if one is None or one != other or ":" in text or one.seconds:
        return None
    return date.fromordinal(one.days + _EPOCH)


def unclear_date(text: str) -> str:
    """Return what is wrong with a date whose column does not say which number is the day."""
    return (
        f"got {text!r}, of which no cell of the column says whether day or month is first; "
        "expected dates such as 2024-03-01"
    )


def date_text(value: Any) -> str | None:
    """Return a date as ISO 8601 writes it; None for what is no date."""
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, str):
        return None
    # Words about the command need no numpy.
    import numpy as np

    is_time = isinstance(value, np.datetime64) and not np.isnat(value)
    return str(np.datetime_as_string(value)) if is_time else None


def without_dates(cells: Any) -> Any:
    """Return cells with text, as :func:`date_text` writes it, in place of dates."""
    # Words about the command need no numpy.
    import numpy as np

    if isinstance(cells, np.ndarray):
        return [date_text(cell) for cell in cells] if cells.dtype.kind == "M" else cells
    return [date_text(cell) or cell for cell in cells]


def moment_text(value: object) -> object:
    """Return the text of a point in time: of a date, or a number; another value as it is."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return repr(value)
    return date_text(value) or value


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A point in time that others are compared with.

    Attributes:
        text: As it was given.
        value: The number; of a date seconds since 1970, in UTC where it names no zone.
        is_date: Whether it is a date.
    """

    text: str
    value: float
    is_date: bool

    @classmethod
    def of(cls, text: str, key: str = "edges-before") -> Self:
        """Read :data:`MOMENT`; ``key`` names its key in an error.

        Raises:
            ConfigurationError: It is none, or may be two.
        """
        with suppress(ValueError):
            return cls(text=text, value=finite_number(text), is_date=False)
        found = {each for each in readings_of(text) if each}
        if len(found) == 1:
            return cls(text=text, value=found.pop().in_seconds, is_date=True)
        raise ConfigurationError(f"{key}: got {text[:40]!r}; expected {MOMENT}")


def moments_of(text: str, key: str = "edges-before") -> tuple[Moment, ...]:
    """Read a point in time, or :data:`THREE`; none of an empty text.

    Raises:
        ConfigurationError: It is something else.
    """
    if not text:
        return ()
    if text.count("/") < 2 or is_moment(text):
        return (Moment.of(text, key=key),)
    texts = text.split("/")
    if len(texts) != _USES or not all(texts):
        raise ConfigurationError(f"{key}: got {text[:60]!r}; expected {MOMENT}; or {THREE}")
    found = tuple(Moment.of(each, key=key) for each in texts)
    check_order(found, key=key, text=text)
    return found


def check_order(cuts: Sequence[Moment], *, key: str, text: str) -> None:
    """Check that points in time are of one kind, and ascend.

    Raises:
        ConfigurationError: They are not, or do not.
    """
    if len({cut.is_date for cut in cuts}) > 1:
        raise ConfigurationError(
            f"{key}: got {text[:60]!r}, numbers and dates; expected one of the two"
        )
    for one, other in pairwise(cuts):
        if one.value >= other.value:
            raise ConfigurationError(
                f"{key}: {other.text} is after {one.text}; expected ascending points in time"
            )


def are_moments(text: str) -> bool:
    """Return whether :func:`moments_of` reads a text."""
    with suppress(ConfigurationError):
        moments_of(text)
        return True
    return False


def is_moment(text: str) -> bool:
    """Return whether :meth:`Moment.of` reads a text; an empty one means no point in time."""
    with suppress(ConfigurationError):
        return not text or bool(Moment.of(text).text)
    return False


def finite_number(value: Any) -> float:
    """Return a number.

    Raises:
        ValueError: It is none, or not finite, or a text that only Python calls a number.
        TypeError: It is none.
    """
    number = float(value)
    is_odd = isinstance(value, str) and ("_" in value or not value.isascii())
    if is_odd or not math.isfinite(number):
        raise ValueError(value)
    return number


def _alike(found: Instant | None) -> Readings:
    return found, found


def _instant(year: str, month: str, day: str, clock: list[str | None]) -> Instant | None:
    try:
        days = date(int(year), int(month), int(day)).toordinal() - _EPOCH
    except ValueError:
        return None
    seconds = _seconds(clock)
    return None if seconds is None else Instant(days=days, seconds=seconds)


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
