"""One table file of any format: its columns in batches, and where a row is."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NoReturn, Protocol, TypeAlias

import numpy as np

from retexo_fl.errors import TableError
from retexo_fl.graph.sources.number_form import PLAIN_NUMBERS, NumberForm
from retexo_fl.units import counted

logger = logging.getLogger(__name__)

#: Cells of a column as a format gives them: numbers or text as an array, or a list of ``str``,
#: ``bytes``, ``int`` or ``float`` with None for what is absent. Lists of numbers are 2-d arrays.
Cells: TypeAlias = np.ndarray | list[Any]

#: Names of columns of nodes, where no others are given.
KEY_COLUMN: Final = "key"
LABEL_COLUMN: Final = "label"
SPLIT_COLUMN: Final = "split"
#: Of nodes their type, of edges their relation.
TYPE_COLUMN: Final = "type"
#: Where there is no such column: a column for each use, by the use.
MASK_COLUMNS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "train": ("train_mask",),
        "val": ("val_mask", "validation_mask"),
        "test": ("test_mask",),
    }
)
#: What no features are made of.
USES_OF_NODES: Final = frozenset((SPLIT_COLUMN, *chain.from_iterable(MASK_COLUMNS.values())))
#: A bound on numbers, so that a name does not decide how much memory is taken.
_NUMBER: Final = r"(0|[1-9][0-9]{0,3})"
#: Characters of a refused value that an error repeats.
_MOST_SHOWN = 60
#: Problems of one table that are listed in full; the others are counted.
MOST_PROBLEMS: Final = 20
#: Rows of one problem that are listed in full; if more have it, one line counts them.
_MOST_ALIKE: Final = 3
_NONE: Final[Mapping[str, str]] = MappingProxyType({})


class Source(Protocol):
    """A table file."""

    @property
    def path(self) -> Path:
        """The file, as it was named."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns, each once, in the order of the file."""

    def batches(self, columns: Sequence[str]) -> Iterator[Mapping[str, Cells]]:
        """Yield some columns, a bounded number of rows at a time.

        Raises:
            TableError: The file cannot be read, or is damaged.
        """

    def place(self, row: int) -> str:
        """Say where a row (from 0) is in the file."""


class Complaints:
    """Problems of one table, collected so that its owner learns of all of them at once."""

    def __init__(self, path: object, place: Callable[[int], str]) -> None:
        """Collect problems of the table at ``path``; ``place`` says where a row is."""
        self._path = path
        self._place = place
        self._found: list[tuple[int, str]] = []
        self._count = 0
        #: By what many rows may have in common, and what was expected: the first of them, with
        #: their cells, and how many there are.
        self._alike: dict[tuple[str, str], tuple[list[tuple[int, str]], int]] = {}

    def add(self, row: int, problem: str) -> None:
        """Note a problem of a row (from 0)."""
        self._count += 1
        if len(self._found) < MOST_PROBLEMS:
            self._found.append((row, problem))

    def add_alike(self, row: int, cell: str, *, what: str, expected: str) -> None:
        """Note a problem that all rows of a table may have; many of them become one line.

        Args:
            row: The row (from 0).
            cell: Its cell, as an error repeats it.
            what: The problem of them all, such as ``label: text``.
            expected: The rest of the error.
        """
        first, count = self._alike.get((what, expected), ([], 0))
        if count < _MOST_ALIKE:
            first.append((row, cell))
        self._alike[what, expected] = (first, count + 1)

    def add_rows(self, rows: np.ndarray, problem: Callable[[int], str]) -> None:
        """Note a problem of each of [k] rows; ``problem`` says what is wrong with one."""
        told = max(0, MOST_PROBLEMS - len(self._found))
        self._found += [(row, problem(row)) for row in rows[:told].tolist()]
        self._count += len(rows)

    def are_gaps(self, columns: Sequence[str]) -> bool:
        """Return whether one that is listed is an empty cell of some columns."""
        beginnings = tuple(f"{name}: got ''" for name in columns)
        return any(problem.startswith(beginnings) for _, problem in self._found)

    def check(self, hint: str = "") -> None:
        """Raise what was collected, in the order of the rows; a hint in the last line.

        Raises:
            TableError: There is a problem; one line for each, the first :data:`MOST_PROBLEMS`. What
                many rows have alike is one line, before the others.
        """
        alike = self._alike.items()
        many = [
            f"{self._path}: {what} in {count:,} rows ({self._first_of(first)}, ...); {expected}"
            for (what, expected), (first, count) in alike
            if count > _MOST_ALIKE
        ]
        few = [
            (row, f"{what.partition(': ')[0]}: got {cell}; {expected}")
            for (what, expected), (first, count) in alike
            if count <= _MOST_ALIKE
            for row, cell in first
        ]
        if not (self._count or many or few):
            return
        told = sorted([*self._found, *few], key=lambda found: found[0])[:MOST_PROBLEMS]
        lines = many + [f"{self._path}: {self._place(row)}: {problem}" for row, problem in told]
        if more := self._count + len(few) - len(told):
            lines.append(f"{self._path}: {counted(more, 'problem')} more")
        if hint:
            lines.append(f"{self._path}: {hint}")
        raise TableError(*lines)

    def _first_of(self, rows: Iterable[tuple[int, str]]) -> str:
        return ", ".join(f"{self._place(row)}: {cell}" for row, cell in rows)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Column:
    """Consecutive cells of one column.

    Attributes:
        source: The file.
        name: Of the column.
        first_row: Row of the first cell.
        cells: The cells.
        complaints: Collects problems of cells; without, the first is an error.
    """

    source: Source
    name: str
    first_row: int
    cells: Cells
    complaints: Complaints | None = None

    @property
    def numbers(self) -> NumberForm:
        """How numbers are written that are text."""
        # Formats other than text hold numbers, or text of programs.
        form: NumberForm = getattr(self.source, "numbers", PLAIN_NUMBERS)
        return form

    def report(self, offset: int, problem: str) -> None:
        """Note the problem of one cell; who reads the table raises all of them together.

        Raises:
            TableError: Nobody collects them.
        """
        if self.complaints is None:
            self.fail(offset, problem)
        self.complaints.add(self.first_row + offset, f"{self.name}: {problem}")

    def report_text(self, offset: int, cell: str, expected: str) -> None:
        """Note a cell of text where a number was expected; many of them become one line.

        Raises:
            TableError: Nobody collects them.
        """
        if self.complaints is None:
            self.fail(offset, f"got {cell}; {expected}")
        self.complaints.add_alike(
            self.first_row + offset, cell, what=f"{self.name}: text", expected=expected
        )

    def fail(self, offset: int, problem: str) -> NoReturn:
        """Raise the error about one cell.

        Raises:
            TableError: Always; it names file, row and column.
        """
        place = self.source.place(self.first_row + offset)
        raise TableError(f"{self.source.path}: {place}: {self.name}: {problem}")

    def fail_form(self, expected: str) -> NoReturn:
        """Raise the error about a column whose type is not one of those that its name allows.

        Raises:
            TableError: Always; it names file and column.
        """
        cells = self.cells
        if isinstance(cells, np.ndarray):
            got = f"{cells.dtype} of shape {cells.shape}" if cells.ndim > 1 else f"{cells.dtype}"
        else:
            got = next((type(cell).__name__ for cell in cells if cell is not None), "nothing")
        raise TableError(f"{self.source.path}: {self.name}: got {got}; expected {expected}")


def numbered_columns(source: Source, name: str) -> tuple[str, ...]:
    """Return ``NAME_0``, ``NAME_1``, ... up to the largest number that a table has; or nothing."""
    numbered = re.compile(rf"{re.escape(name)}_{_NUMBER}")
    numbers = [int(found[1]) for each in source.names if (found := numbered.fullmatch(each))]
    # One between others that is missing is reported by who reads it.
    return tuple(f"{name}_{number}" for number in range(max(numbers, default=-1) + 1))


def require_columns(source: Source, columns: Sequence[str]) -> None:
    """Check that columns exist.

    Raises:
        TableError: One is missing; the message lists all that are, and what the file has.
    """
    missing = dict.fromkeys(name for name in columns if name not in source.names)
    if missing:
        there = ", ".join(map(repr, source.names[:12])) or "none"
        more = ", ..." if len(source.names) > 12 else ""
        named = ", ".join(map(shown, missing))
        are = "column {} is missing" if len(missing) == 1 else "columns {} are missing"
        raise TableError(
            f"{source.path}: {are.format(shown_text(named, 400))}; the file has "
            f"{shown_text(there, 400)}{more}"
        )


def check_names(path: Path, names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the columns of a file after a check that none is there twice.

    Raises:
        TableError: One is.
    """
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise TableError(f"{path}: column {shown(name)} appears twice; expected each name once")
        seen.add(name)
    return tuple(names)


def tell_unused(source: Source, used: Iterable[str], readers: Mapping[str, str] = _NONE) -> None:
    """Say in one line which columns of a table are not read.

    Args:
        source: The table.
        used: Names of columns that are read.
        readers: By name of a column, which option would read it.
    """
    known = set(used)
    if unused := [name for name in source.names if name not in known]:
        named = [
            f"{shown(name)} ({readers[name]} uses it)" if name in readers else shown(name)
            for name in unused
        ]
        logger.warning(
            "%s: %s not used: %s",
            source.path,
            "column" if len(unused) == 1 else "columns",
            shown_text(", ".join(named), 400),
        )


def shown(value: object) -> str:
    """Return a value as an error repeats it: quoted, on one line, not too long."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", errors="backslashreplace")
    return shown_text(repr(value), _MOST_SHOWN)


def shown_text(text: str, most: int) -> str:
    """Return a text cut to ``most`` characters."""
    return text if len(text) <= most else f"{text[:most]}..."
