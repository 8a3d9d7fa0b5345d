"""What a document says that a program prints, beside what it prints on this machine."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")


def without_numbers(text: str) -> str:
    """Return a text with a mark in the place of each number."""
    return _NUMBER.sub("#", text)


def numbers_of(text: str) -> list[str]:
    """Return the numbers of a text as they stand there, without the commas of thousands."""
    return [number.replace(",", "") for number in _NUMBER.findall(text)]


def units_of(text: str) -> list[str]:
    """Return the word after each number of a text, without what is no letter; may be empty."""
    return [re.match(r" ?([A-Za-z]*)", text[found.end() :])[1] for found in _NUMBER.finditer(text)]  # type: ignore[index]
