"""Points in time of edges: numbers, or dates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from retexo_fl.dates import Moment, date_text, finite_number, readings_of, unclear_date


def read_times(cells: Sequence[Any] | np.ndarray, *, dates: bool) -> np.ndarray:
    """Read points in time.

    Args:
        cells: Numbers, or text, or dates.
        dates: Whether they are dates.

    Returns:
        [n, 2] float64: numbers, or seconds since 1970 with the day first, and with the month first
        where a date does not say; NaN for what is no such point.
    """
    found = np.full((len(cells), 2), np.nan)
    seconds: dict[str, list[float]] = {}  # Days repeat.
    for row, cell in enumerate(cells):
        if not dates:
            try:
                found[row] = finite_number(cell)
            except (TypeError, ValueError):
                continue
        elif isinstance(text := date_text(cell) or cell, str):
            if text not in seconds:
                readings = readings_of(text)
                seconds[text] = [np.nan if each is None else each.in_seconds for each in readings]
            found[row] = seconds[text]
    return found


def in_one_order(times: np.ndarray) -> tuple[np.ndarray, int | None]:
    """Choose the order of day and month that every point in time of a list can have.

    Args:
        times: [n, 2] as :func:`read_times` returns them, of a whole list.

    Returns:
        [n] float64 in that order; and the first that has none, or is another point in either of
        both; None for none.
    """
    possible = [order for order in (0, 1) if not np.isnan(times[:, order]).any()]
    differ = times[:, 0] != times[:, 1]
    wrong = None
    if not possible:
        no_date = np.isnan(times).all(axis=1)
        wrong = int((no_date if no_date.any() else np.isnan(times[:, 0])).argmax())
    elif len(possible) == 2 and differ.any():
        wrong = int(differ.argmax())
    return times[:, (possible or [0])[0]], wrong


def early_times(times: np.ndarray, before: Moment) -> tuple[np.ndarray, int | None]:
    """Compare points in time with a bound.

    Args:
        times: As in :func:`in_one_order`.
        before: The bound.

    Returns:
        [n] bool, whether they are before it; and the wrong one as there.
    """
    found, wrong = in_one_order(times)
    return found < before.value, wrong


def wrong_time(cell: Any, before: Moment, shown: str, key: str = "edges-before") -> str:
    """Return what is wrong with a cell that :func:`early_times` names.

    Args:
        cell: As it was read.
        before: The bound.
        shown: How an error shows the cell.
        key: What names the bound.
    """
    one, other = readings_of(cell) if before.is_date and isinstance(cell, str) else (None, None)
    if one and other and one != other:
        return unclear_date(cell)
    kind = "a date such as 2024-03-01" if before.is_date else "a number"
    return f"got {shown}; expected {kind}, as {key} {before.text}"
