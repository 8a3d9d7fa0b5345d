"""Which cases of a test run by day, where CI has each night for the others.

With the mark ``each_choice`` they are a few that have each value of each parameter between them:
each-choice coverage (Ammann and Offutt, Introduction to Software Testing, 2008).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Final

import pytest

MARK: Final = "each_choice"


def each_choice(cases: Sequence[Mapping[str, object]]) -> set[int]:
    """Return the places of the cases that are kept: a few with all values that any of them has.

    Of a parameter that is a mapping, each of its entries is a value. The case with most values that
    no earlier one has comes next, the first of several; so all processes choose the same.
    """
    values = [_values(case) for case in cases]
    missing = set().union(*values)
    kept: set[int] = set()
    while missing:
        most = max(range(len(cases)), key=lambda at: (len(values[at] & missing), -at))
        kept.add(most)
        missing -= values[most]
    return kept


def by_day(cases: Iterable[object], *kept: object, others: pytest.MarkDecorator) -> list[object]:
    """Return the cases of a test, some as they are and the others with a mark.

    Args:
        cases: Values of one parameter.
        kept: Those without the mark.
        others: The mark.
    """
    cases = list(cases)
    assert all(case in cases for case in kept), kept
    return [case if case in kept else pytest.param(case, marks=others) for case in cases]


def leave_to_the_night(items: Sequence[pytest.Item], apart: frozenset[str]) -> None:
    """Mark as slow the cases of tests with the mark ``each_choice`` that need not run by day.

    Args:
        items: All that were collected.
        apart: Marks by which tests are left out: a case with one takes no other's place.
    """
    families: dict[Hashable, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker(MARK):
            marks = frozenset(mark.name for mark in item.iter_markers()) & apart
            if "slow" not in marks:
                families[item.parent, item.originalname, marks].append(item)
    for family in families.values():
        kept = each_choice([item.callspec.params for item in family])
        for at, item in enumerate(family):
            if at not in kept:
                item.add_marker("slow")


def _values(case: Mapping[str, object]) -> set[Hashable]:
    """Return what a case has; since some have no hash, values are compared as they are written."""
    found: set[Hashable] = set()
    for name, value in case.items():
        entries = value.items() if isinstance(value, Mapping) else ()
        found.update((name, key, repr(one)) for key, one in entries)
        if not entries:
            found.add((name, repr(value)))
    return found
