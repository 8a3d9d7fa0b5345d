"""Typed reading of JSON objects; a value of the wrong kind is named with its file and key."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from retexo_fl.errors import RunDirectoryError

#: Whole numbers that every count and sum of bytes is below.
_MOST_WHOLE: Final = 2**63 - 1
#: Above it the span of an axis is no float64.
_MOST_NUMBER: Final = 1e300


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """One JSON object and the place it was read from.

    Attributes:
        values: The object.
        place: File, and line or key, as an error names it.
    """

    values: Mapping[str, object]
    place: str

    def text(self, key: str) -> str:
        """Return a text value."""
        value = self._value(key)
        if not isinstance(value, str):
            raise self._wrong(key, "text")
        return value

    def integer(self, key: str) -> int:
        """Return a whole number."""
        value = self.integer_or_none(key)
        if value is None:
            raise self._wrong(key, "a whole number")
        return value

    def integer_or_none(self, key: str) -> int | None:
        """Return a whole number, or None for null."""
        value = self._value(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or abs(value) > _MOST_WHOLE:
            raise self._wrong(key, "a whole number")
        return value

    def number_or_none(self, key: str) -> float | None:
        """Return a number, or None for null and for one that is not finite or beyond all charts."""
        value = self._value(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(key, "a number or null")
        # An int of any length compares with a float; NaN is below nothing.
        return float(value) if abs(value) <= _MOST_NUMBER else None

    def number(self, key: str) -> float:
        """Return a finite number."""
        value = self.number_or_none(key)
        if value is None:
            raise self._wrong(key, "a finite number")
        return value

    def table(self, key: str) -> Fields:
        """Return a nested object."""
        return self._nested(self._value(key), key)

    def table_or_none(self, key: str) -> Fields | None:
        """Return a nested object, or None for null or an absent key."""
        value = self.values.get(key)
        return None if value is None else self._nested(value, key)

    def tables(self, key: str) -> list[Fields]:
        """Return a list of objects."""
        value = self._value(key)
        if not isinstance(value, list):
            raise self._wrong(key, "a list")
        return [self._nested(item, f"{key}[{index}]") for index, item in enumerate(value)]

    def triples(self, key: str) -> list[tuple[int, int, int]]:
        """Return a list of three whole numbers each."""
        value = self._value(key)
        if not isinstance(value, list) or not all(
            isinstance(item, list) and [type(number) for number in item] == [int, int, int]
            for item in value
        ):
            raise self._wrong(key, "a list of three whole numbers each")
        return [(item[0], item[1], item[2]) for item in value]

    def texts(self) -> dict[str, str]:
        """Return every value of this object as text; nulls are left out."""
        return {key: str(value) for key, value in self.values.items() if value is not None}

    def _nested(self, value: object, key: str) -> Fields:
        if not isinstance(value, dict):
            raise self._wrong(key, "an object")
        return Fields(values=value, place=f"{self.place}, {key}")

    def _value(self, key: str) -> object:
        if key not in self.values:
            raise RunDirectoryError(f"{self.place}: key {key!r} is absent")
        return self.values[key]

    def _wrong(self, key: str, expected: str) -> RunDirectoryError:
        found = json.dumps(self.values.get(key), default=str)
        return RunDirectoryError(f"{self.place}: key {key!r} is {found:.60}, expected {expected}")


def parse_object(text: str, place: str) -> Fields:
    """Parse one JSON object; ``NaN`` and ``Infinity`` are read as null.

    Args:
        text: JSON text.
        place: File (and line) for errors.

    Returns:
        The object.

    Raises:
        RunDirectoryError: The text is no JSON, or no object.
    """
    try:
        value = json.loads(text, parse_constant=lambda _: None)
    except (ValueError, RecursionError) as error:
        raise RunDirectoryError(f"{place}: damaged JSON ({error})") from error
    if not isinstance(value, dict):
        raise RunDirectoryError(f"{place}: expected a JSON object, found {text.strip():.40}")
    return Fields(values=value, place=place)
