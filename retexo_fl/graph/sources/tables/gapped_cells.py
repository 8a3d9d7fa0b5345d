"""What is in cells that a recipe takes: numbers with gaps, or texts."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from retexo_fl.graph.recipes.summary import MISSING_WORDS
from retexo_fl.graph.sources.number_form import PLAIN_NUMBERS, NumberForm
from retexo_fl.graph.sources.tables.cells import (
    is_number,
    number_hint,
    number_of,
    only_plain,
    without_booleans,
)
from retexo_fl.graph.sources.tables.source import Column, shown

_MISSING: Final = frozenset(("", *MISSING_WORDS))
_ONE_CELL: Final = (
    "a number or a text in each row, which a recipe needs; leave it out by `retexo features fit "
    "--drop NAME`, whose recipe is then given as features"
)


def plain_cells(column: Column) -> np.ndarray | list[Any]:
    """Return numbers as [n] float64, NaN where one is missing, or anything else as a list.

    Returns:
        The list has texts alone: bytes are decoded, numbers written out, "" is a missing cell.

    Raises:
        TableError: Cells are lists, or of another type.
    """
    cells = column.cells
    if isinstance(cells, np.ndarray):
        if cells.ndim != 1 or cells.dtype.kind not in "iufbUS":
            column.fail_form(_ONE_CELL)
        if cells.dtype.kind in "iufb":
            return cells.astype(np.float64)
        cells = cells.tolist()
    kinds = set(map(type, cells))
    if kinds <= {int, float, bool, type(None)} and kinds - {type(None)}:
        return np.array([np.nan if cell is None else cell for cell in cells], dtype=np.float64)
    if kinds == {str}:
        return cells
    return [_text(column, row, cell) for row, cell in enumerate(cells)]


def texts_of(column: Column) -> list[str]:
    """Return cells as texts, "" for a missing one; whole numbers as decimal text.

    Raises:
        TableError: Cells are lists, or of another type.
    """
    cells = column.cells
    if isinstance(cells, np.ndarray) and cells.dtype.kind in "iub" and cells.ndim == 1:
        return [str(int(cell)) for cell in cells.tolist()]
    found = plain_cells(column)
    return (
        [_number_text(value) for value in found.tolist()]
        if isinstance(found, np.ndarray)
        else found
    )


def numbers_in(texts: list[str], form: NumberForm = PLAIN_NUMBERS) -> np.ndarray | None:
    """Return texts as [n] float64, NaN for missing ones; None where one is no number."""
    given = ["nan" if text in _MISSING else text for text in without_booleans(texts)]
    plain = given if form == PLAIN_NUMBERS else [form.plain(text) for text in given]
    read = [text for text in plain if text is not None]
    try:
        values = np.fromiter(map(float, read), dtype=np.float64, count=len(read))
    except ValueError:
        return None
    return values if len(read) == len(plain) and only_plain(read) else None


def number_cells(column: Column) -> np.ndarray:
    """Return numbers.

    Returns:
        [n] float64, finite as float32, or NaN for a missing one.

    Raises:
        TableError: A cell is anything else.
    """
    found = plain_cells(column)
    if isinstance(found, np.ndarray):
        values = found
    else:
        read = numbers_in(found, column.numbers)
        values = _told_numbers(column, found) if read is None else read
    return checked_range(column, values)


def checked_range(column: Column, values: np.ndarray) -> np.ndarray:
    """Return numbers with NaN for those that are not finite as float32, and have been reported.

    Raises:
        TableError: There is one, and nobody collects problems.
    """
    wrong = _overflows(values)
    for row in np.flatnonzero(wrong).tolist():
        column.report(row, f"got {values[row]:g}; expected a finite float32 number, or nothing")
    return np.where(wrong, np.nan, values)


def is_in_range(values: np.ndarray) -> bool:
    """Return whether :func:`checked_range` finds nothing."""
    return not _overflows(values).any()


def is_missing(text: str) -> bool:
    """Return whether a text marks a missing number."""
    return text in _MISSING


def _overflows(values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.isinf(values.astype(np.float32))


def _told_numbers(column: Column, texts: list[str]) -> np.ndarray:
    for row, text in enumerate(texts):
        if not is_missing(text) and not is_number(text, column.numbers):
            hint = number_hint(text, column.numbers)
            column.report(row, f"got {shown(text)}; expected a number, or nothing{hint}")
    found = [number_of(text, column.numbers) for text in texts]
    return np.array([np.nan if number is None else number for number in found])


def _text(column: Column, row: int, cell: Any) -> str:
    if cell is None:
        return ""
    if isinstance(cell, bytes):
        try:
            return cell.decode()
        except UnicodeDecodeError:
            column.report(row, f"{shown(cell)} is not UTF-8; expected text")
            return ""
    if isinstance(cell, str):
        return cell
    if not isinstance(cell, int | float):
        column.fail_form(_ONE_CELL)
    return _number_text(float(cell))


def _number_text(value: float) -> str:
    if np.isnan(value):
        return ""
    return str(int(value)) if value.is_integer() else repr(value)
