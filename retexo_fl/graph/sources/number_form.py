"""Numbers as people write them: with a decimal comma or point, and marks between thousands."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

POINT: Final = "."
COMMA: Final = ","
#: What is between thousands beside the mark that is not the decimal one.
_GAPS: Final = "'\u2019 \u00a0\u202f"


def _pattern(decimal: str) -> re.Pattern[str]:
    other = COMMA if decimal == POINT else POINT
    return re.compile(
        rf"([+-]?)([1-9][0-9]{{0,2}}([{other}{_GAPS}])[0-9]{{3}}(?:\3[0-9]{{3}})*|[0-9]+)"
        rf"(?:{re.escape(decimal)}([0-9]*))?([eE][+-]?[0-9]+)?"
    )


_PATTERNS: Final = {POINT: _pattern(POINT), COMMA: _pattern(COMMA)}
#: ``1,234`` or ``1.234``: one and a bit, or over a thousand.
_EITHER: Final = re.compile(r"[+-]?[1-9][0-9]{0,2}[.,][0-9]{3}")
_MARKS: Final = re.compile(rf"[,{_GAPS}]")
#: A unit before or behind a number.
_UNIT: Final = re.compile(r"^\s*(?:[$€£¥%]|[A-Z]{3}\s)\s*|\s*(?:[$€£¥%]|\s[A-Za-z]{1,4}\.?)\s*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberForm:
    """How the numbers of a file are written.

    Attributes:
        decimal: The decimal mark; empty where neither an option nor the file says so. Then a point
            is one, without marks between thousands.
        point_may_group: Of an empty ``decimal``: a point may separate thousands, too, so that
            no number with one can be read.
    """

    decimal: str = ""
    point_may_group: bool = False

    def plain(self, text: str) -> str | None:
        """Return a number as Python writes it; None for what is none in this form.

        A text without any digits comes back as it is.
        """
        if not self.decimal:
            is_unclear = self.point_may_group and POINT in text
            return None if is_unclear and _PATTERNS[POINT].fullmatch(text.strip()) else text
        text = text.strip()
        if self.decimal == POINT and not _MARKS.search(text):
            return text
        found = _PATTERNS[self.decimal].fullmatch(text)
        if found is None:
            return None if any(map(str.isdigit, text)) else text
        sign, whole, gap, part, power = found.groups()
        whole = whole.replace(gap, "") if gap else whole
        return f"{sign}{whole}{POINT}{part or '0'}{power or ''}"


#: Numbers as files of programs have them.
PLAIN_NUMBERS: Final = NumberForm()


def marks_told(text: str) -> frozenset[str]:
    """Return which decimal marks a number can have: both of one that could be either.

    Nothing of what is no number, and of one without any mark.
    """
    text = text.strip()
    if _EITHER.fullmatch(text):
        return frozenset((POINT, COMMA))
    if not (POINT in text or COMMA in text):
        return frozenset()
    return frozenset(mark for mark, form in _PATTERNS.items() if form.fullmatch(text))


def looks_like_number(text: str) -> bool:
    """Return whether a reader would take a text for a number in some form, also with a unit."""
    text = _UNIT.sub("", text.strip().strip("()"))
    return any(form.fullmatch(text.strip()) for form in _PATTERNS.values())


def has_number(texts: Iterable[str]) -> bool:
    """Return whether every text is a number in some form, without a unit; there is at least one."""
    there = [text.strip() for text in texts]
    return bool(there) and all(
        any(form.fullmatch(text) for form in _PATTERNS.values()) for text in there
    )
