"""From cells as a format gives them to arrays; each failure names file, row and column."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from typing import Any, Final, NoReturn

import numpy as np

from retexo_fl.dates import Moment, without_dates
from retexo_fl.graph.labels import LARGEST, MOST_LABEL
from retexo_fl.graph.sources.moments import early_times, read_times, wrong_time
from retexo_fl.graph.sources.number_form import PLAIN_NUMBERS, NumberForm, marks_told
from retexo_fl.graph.sources.tables.source import Column, shown

#: Keys of one table share the width of the longest, so that one long key would widen all of them.
#: Chosen; not tuned.
MOST_KEY_BYTES: Final = 1024
#: The same for other text, in characters of four bytes.
MOST_TEXT: Final = 256
#: A column of whole numbers with gaps is often written with a point: ``3.0``.
_WHOLE: Final = re.compile(r"([+-]?[0-9]{1,18})(?:\.0*)?")
#: Code of a cell that has been reported.
_REPORTED: Final = -2
_BOOLEANS: Final = {
    word: digit
    for word, digit in (("true", "1"), ("false", "0"))
    for word in (word, word.capitalize(), word.upper())
}
_DIRECTIONS: Final = {"in": 0, "out": 1}
_SPLIT_CODES: Final = {"": 0, "train": 1, "val": 2, "test": 3}


def key_array(column: Column) -> np.ndarray:
    """Return keys as bytes: text as UTF-8, whole numbers as decimal text.

    Returns:
        [n] dtype ``S``, none of them empty.

    Raises:
        TableError: A cell is empty, too long, or neither text nor a whole number.
    """
    keys = _encoded(column, _text_list(column))
    longest = max(map(len, keys), default=0)
    # An array of dtype S does not keep a NUL at the end.
    if longest > MOST_KEY_BYTES or b"" in keys or b"\0" in b"".join(keys):
        keys = [_checked_key(column, row, key) for row, key in enumerate(keys)]
        longest = max(map(len, keys))
    return np.array(keys, dtype=f"S{max(longest, 1)}")


def text_array(column: Column) -> np.ndarray:
    """Return text; whole numbers become decimal text, dates ISO 8601, what is absent nothing.

    Returns:
        [n] dtype ``U``.

    Raises:
        TableError: A cell is too long, or neither text nor a whole number nor a date.
    """
    texts = _text_list(replace(column, cells=without_dates(column.cells)))
    if texts and isinstance(texts[0], bytes):
        column.fail_form("text")
    longest = max(map(len, texts), default=0)
    if longest > MOST_TEXT:
        for row, text in enumerate(texts):
            if len(text) > MOST_TEXT:
                column.report(row, f"{len(text)} characters; expected at most {MOST_TEXT}")
        longest = MOST_TEXT
    return np.array(texts, dtype=f"U{max(longest, 1)}")


def without_words(column: Column, words: frozenset[str]) -> Column:
    """Return a column with nothing in place of cells that are one of some words, or numbers."""
    cells = column.cells
    if isinstance(cells, np.ndarray):
        if cells.ndim != 1:
            return column
        cells = cells.tolist()
    kept = [None if _word_of(cell) in words else cell for cell in cells]
    # An array stays one where it can, since others read it as such.
    changed = kept.count(None) != cells.count(None)
    return replace(column, cells=kept) if changed else column


def _word_of(cell: Any) -> str:
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return _as_text(cell).strip()


def label_array(column: Column) -> np.ndarray:
    """Return classes; what is empty, absent or -1 is unlabelled.

    Returns:
        [n] int64, -1 for unlabelled.

    Raises:
        TableError: A cell is no whole number from -1.
    """
    cells = column.cells
    if isinstance(cells, np.ndarray) and cells.dtype.kind not in "iufbUS" and len(cells):
        column.fail_form("whole numbers")
    return _by_value(
        column,
        _label_of,
        "a class: a whole number from 0, or nothing for an unlabelled node (text needs --features "
        "auto, or a recipe)",
        once=True,
    )


def target_array(column: Column) -> np.ndarray:
    """Return numbers to be predicted; what is empty or absent is unknown.

    Returns:
        [n] float64, NaN for unknown.

    Raises:
        TableError: A cell is no finite number.
    """
    cells = column.cells.tolist() if isinstance(column.cells, np.ndarray) else column.cells
    values = np.full(len(cells), np.nan)
    for row, cell in enumerate(cells):
        if cell is None or cell == "" or (isinstance(cell, float) and math.isnan(cell)):
            continue
        number = number_of(cell, column.numbers)
        if number is None or not abs(number) <= LARGEST:
            column.report(
                row,
                f"got {shown(cell)}; expected a number of at most {LARGEST:.2g} in size, which "
                "float32 holds, or nothing"
                f"{number_hint(cell, column.numbers)}",
            )
            number = np.inf
        values[row] = number
    return values


def flag_array(column: Column) -> np.ndarray:
    """Return whether one of several labels applies; what is empty, absent or -1 is unknown.

    Returns:
        [n] int8: 0, 1, or -1 for unknown.

    Raises:
        TableError: A cell is another value.
    """

    def meaning(cell: Any) -> int | None:
        found = _label_of(cell)
        return found if found in {-1, 0, 1} else None

    return _by_value(column, meaning, "0, 1, or nothing for an unknown label").astype(np.int8)


def split_codes(column: Column) -> np.ndarray:
    """Return 0 for the empty text, 1 for ``train``, 2 for ``val``, 3 for ``test``.

    Returns:
        [n] int64.

    Raises:
        TableError: A cell is another word.
    """
    return _by_value(
        column, lambda cell: _SPLIT_CODES.get(_as_text(cell)), "train, val, test or nothing"
    )


def mask_array(column: Column) -> np.ndarray:
    """Return whether a node is in a mask; what is empty or absent is not.

    Returns:
        [n] bool.

    Raises:
        TableError: A cell is another value.
    """

    def meaning(cell: Any) -> int | None:
        found = _label_of(cell)
        if found == -1:
            return 0 if _as_text(cell) in {"", "nan"} else None
        return found if found in {0, 1} else None

    return _by_value(column, meaning, "0, 1, True, False or nothing").astype(bool)


def direction_array(column: Column) -> np.ndarray:
    """Return 1 for ``out``, 0 for ``in``.

    Returns:
        [n] int64.

    Raises:
        TableError: A cell is another word.
    """
    return _by_value(column, lambda cell: _DIRECTIONS.get(_as_text(cell)), "in or out")


class TimeColumn:
    """When edges came, batch by batch: whether that is before another point in time."""

    def __init__(self, before: Moment) -> None:
        """Begin with no cell."""
        self._before = before
        self._found: list[np.ndarray] = []
        #: Cells that a problem of the whole column may name, by row.
        self._odd: dict[int, str] = {}

    def __call__(self, column: Column) -> np.ndarray:
        """Take the next cells: [n, 2] as :func:`.read_times` returns them.

        A cell that is no date, or no number, as the bound is, is reported.
        """
        cells, before = column.cells, self._before
        if isinstance(cells, list) and not before.is_date:
            cells = [
                (column.numbers.plain(cell) or cell) if isinstance(cell, str) else cell
                for cell in cells
            ]
        times = read_times(cells, dates=before.is_date)
        for row in np.flatnonzero(np.isnan(times).all(axis=1)).tolist():
            column.report(row, wrong_time(column.cells[row], before, shown(column.cells[row])))
        for odd in (np.isnan(times[:, 0]), times[:, 0] != times[:, 1]):
            if odd.any():
                row = int(odd.argmax())
                self._odd[column.first_row + row] = str(column.cells[row])
        return times

    def early(self, times: np.ndarray, fail: Callable[[int, str], NoReturn]) -> np.ndarray:
        """Return which of all cells are before the bound.

        Args:
            times: [n, 2] of all cells, none of which was reported.
            fail: Raises the error about a row.

        Returns:
            [n] bool.

        Raises:
            TableError: Dates do not say, or do not agree, whether day or month is first.
        """
        found, wrong = early_times(times, self._before)
        if wrong is not None:
            cell = self._odd[wrong]
            fail(wrong, wrong_time(cell, self._before, shown(cell)))
        return found


def number_array(column: Column) -> np.ndarray:
    """Return numbers, read as float64 and rounded to float32.

    Returns:
        [n] float32, finite; or [n, F] for a column of lists.

    Raises:
        TableError: A cell is no finite number.
    """
    cells = column.cells
    if isinstance(cells, list):
        values = _parsed_numbers(column, cells)
    elif cells.dtype.kind in "iufb":
        values = cells
    else:
        column.fail_form("numbers")
    with np.errstate(over="ignore"):
        narrow: np.ndarray = values.astype(np.float32)
    if not np.isfinite(narrow).all():
        _report_infinite(column, narrow)
    return narrow


def gapped_numbers(column: Column) -> np.ndarray:
    """Return numbers as :func:`number_array` does, and NaN where a cell is empty.

    Raises:
        TableError: A cell is neither empty nor a finite number.
    """
    cells = column.cells
    given = cells if isinstance(cells, list) else cells.tolist()
    lacking = np.array(
        [
            cell is None or cell == "" or (isinstance(cell, float) and math.isnan(cell))
            for cell in given
        ],
        dtype=bool,
    )
    if not lacking.any():
        return number_array(column)
    zero = "0" if any(isinstance(cell, str) for cell in given) else 0.0
    filled = [zero if gap else cell for cell, gap in zip(given, lacking, strict=True)]
    numbers = number_array(replace(column, cells=filled))
    numbers[lacking] = np.nan
    return numbers


def only_plain(texts: Iterable[str]) -> bool:
    """Return whether texts that Python can read as numbers are what others call a number, too."""
    joined = "".join(texts)
    return joined.isascii() and "_" not in joined


def without_booleans(texts: Iterable[str]) -> list[str]:
    """Return texts with 1 and 0 for what libraries write of booleans."""
    return [_BOOLEANS.get(text, text) for text in texts]


def whole_number(text: str) -> int | None:
    """Return the whole number that a text is, such as ``3`` or ``3.0``; None for another text."""
    found = _WHOLE.fullmatch(text)
    return int(found[1]) if found else None


def number_of(cell: Any, form: NumberForm = PLAIN_NUMBERS) -> float | None:
    """Return the number that a cell is, or that its text is; None for anything else."""
    plain = form.plain(cell) if isinstance(cell, str) else cell
    try:
        number = float(plain)  # type: ignore[arg-type]
    except (ValueError, TypeError):
        return None
    if isinstance(plain, str):
        return number if only_plain((plain,)) else None
    return number if isinstance(plain, (int, float)) else None


def is_number(cell: Any, form: NumberForm = PLAIN_NUMBERS) -> bool:
    """Return whether a cell is a number, or text that is one."""
    return number_of(cell, form) is not None


def number_hint(cell: Any, form: NumberForm) -> str:
    """Return what helps with a cell that is no number, since its mark may mean two things."""
    marks = marks_told(cell) if isinstance(cell, str) and not form.decimal else ()
    if not (len(marks) == 2 or (marks and form.point_may_group)):
        return ""
    return "; --decimal point or comma says which mark is the decimal one"


def is_text(column: Column) -> bool:
    """Return whether a column holds text."""
    cells = column.cells
    if isinstance(cells, np.ndarray):
        return cells.ndim == 1 and cells.dtype.kind in "US"
    return all(cell is None or isinstance(cell, str) for cell in cells)


def _text_list(column: Column) -> list[Any]:
    """Return cells as text or bytes, the empty text for what is absent."""
    cells = column.cells
    expected = "text or whole numbers, one for each row"
    if isinstance(cells, np.ndarray):
        if len(cells) and (cells.ndim != 1 or cells.dtype.kind not in "iuUS"):
            column.fail_form(expected)
        cells = cells.tolist()
    kinds = set(map(type, cells))
    if not kinds <= {str, bytes, int, type(None)}:
        column.fail_form(expected)
    if bytes in kinds:
        if kinds - {bytes, type(None)}:
            column.fail_form(expected)
        return [cell or b"" for cell in cells]
    if kinds - {str}:
        return ["" if cell is None else str(cell) for cell in cells]
    return cells


def _checked_key(column: Column, row: int, key: bytes) -> bytes:
    """Return a key, or nothing where it is none and has been reported."""
    if not key:
        column.report(row, "is empty; expected the key of a node")
    elif len(key) > MOST_KEY_BYTES:
        column.report(row, f"a key of {len(key)} bytes; expected at most {MOST_KEY_BYTES}")
    elif b"\0" in key:
        column.report(row, f"{shown(key)} holds a NUL character; expected none in a key")
    else:
        return key
    return b""


def _report_infinite(column: Column, values: np.ndarray) -> None:
    """Report, in each row of values, the first that is not finite as float32."""
    cells = column.cells
    rows = np.unique(np.argwhere(~np.isfinite(values))[:, 0])
    for row in rows.tolist():
        if values.ndim == 1:
            cell = str(cells[row]) if isinstance(cells, np.ndarray) else shown(cells[row])
            column.report(row, f"got {cell}; expected a finite float32 number")
        else:
            place = int(np.argmin(np.isfinite(values[row])))
            cell = cells[row][place]
            column.report(row, f"value {place} is {cell}; expected a finite float32 number")


def _encoded(column: Column, texts: list[Any]) -> list[bytes]:
    if texts and isinstance(texts[0], bytes):
        return texts
    try:
        return [text.encode() for text in texts]
    except UnicodeEncodeError as error:
        row = texts.index(error.object)
        column.fail(row, f"{shown(texts[row])} cannot be encoded as UTF-8; expected text")


def _by_value(
    column: Column, meaning: Callable[[Any], int | None], expected: str, *, once: bool = False
) -> np.ndarray:
    """Return a number for each cell, looking at each different cell once.

    Args:
        column: The cells.
        meaning: Of a cell its number, or None.
        expected: What the error about a cell says after "expected".
        once: Report text in one line, however many rows hold it.
    """
    cells = column.cells.tolist() if isinstance(column.cells, np.ndarray) else column.cells
    form = column.numbers
    if any(not isinstance(cell, Hashable) for cell in cells[:1]):
        column.fail_form(expected)
    # A number of a class may be written as any other.
    numbers = {
        cell: meaning((form.plain(cell) or cell) if isinstance(cell, str) else cell)
        for cell in set(cells)
    }
    if None in numbers.values():
        for row, cell in enumerate(cells):
            if numbers[cell] is None:
                if once and isinstance(cell, (str, bytes)) and not is_number(_as_text(cell), form):
                    column.report_text(row, shown(cell), f"expected {expected}")
                else:
                    column.report(row, f"got {shown(cell)}; expected {expected}")
        numbers = {cell: _REPORTED if value is None else value for cell, value in numbers.items()}
    return np.fromiter(map(numbers.__getitem__, cells), dtype=np.int64, count=len(cells))


def _label_of(cell: Any) -> int | None:
    if isinstance(cell, float) and math.isnan(cell):
        return -1
    if isinstance(cell, float):
        if not cell.is_integer():
            return None
        cell = int(cell)
    text = _as_text(cell)
    label = whole_number(_BOOLEANS.get(text, text)) if text else -1
    return label if label is not None and -1 <= label < MOST_LABEL else None


def _as_text(cell: Any) -> str:
    if isinstance(cell, bytes):
        return cell.decode("utf-8", errors="backslashreplace")
    return "" if cell is None else str(cell)


def _parsed_numbers(column: Column, cells: list[Any]) -> np.ndarray:
    form, given = column.numbers, cells
    if isinstance(cells[0], str) and cells[0] in _BOOLEANS:
        cells = given = [_BOOLEANS.get(cell, cell) for cell in cells]
    if form != PLAIN_NUMBERS and all(type(cell) is str for cell in cells):
        cells = [form.plain(cell) for cell in cells]
    try:
        values = np.fromiter(map(float, cells), dtype=np.float64, count=len(cells))
        readable = isinstance(cells[0], float) or only_plain(cells)
    except (ValueError, TypeError):
        readable = False
    if not readable:
        there = [is_number(cell) for cell in cells]
        for row, cell in enumerate(given):
            if not there[row]:
                column.report(
                    row,
                    f"got {shown(cell or '')}; expected a finite number{number_hint(cell, form)}",
                )
        return np.array([float(c) if read else 0 for c, read in zip(cells, there, strict=True)])
    return values
