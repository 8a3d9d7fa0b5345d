"""One table file of any format: its columns in batches, and where a row stands."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeAlias

import numpy as np

from retexo_fl.errors import TableError

logger = logging.getLogger(__name__)

#: Cells of a column as a format gives them: numbers or text as an array, or a list of ``str``,
#: ``bytes``, ``int`` or ``float`` with None for what is absent. Lists of numbers are 2-d arrays.
Cells: TypeAlias = np.ndarray | list[Any]

#: Characters of a refused value that an error repeats.
_MOST_SHOWN = 60


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
        """Say where a row (from 0) stands in the file."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Column:
    """Consecutive cells of one column.

    Attributes:
        source: The file.
        name: Of the column.
        first_row: Row of the first cell.
        cells: The cells.
    """

    source: Source
    name: str
    first_row: int
    cells: Cells

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


def require_columns(source: Source, columns: Sequence[str]) -> None:
    """Check that columns exist.

    Raises:
        TableError: One is missing; the message lists what the file has.
    """
    for name in columns:
        if name not in source.names:
            there = ", ".join(map(repr, source.names[:12])) or "none"
            more = ", ..." if len(source.names) > 12 else ""
            raise TableError(
                f"{source.path}: column {name!r} is missing; the file has {shown_text(there, 400)}"
                f"{more}"
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


def tell_unused(source: Source, used: Iterable[str]) -> None:
    """Say in one line which columns of a table are not read."""
    known = set(used)
    if unused := [name for name in source.names if name not in known]:
        logger.warning(
            "%s: %s not used: %s",
            source.path,
            "column" if len(unused) == 1 else "columns",
            shown_text(", ".join(unused), 400),
        )


def shown(value: object) -> str:
    """Return a value as an error repeats it: quoted, on one line, not too long."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", errors="backslashreplace")
    return shown_text(repr(value), _MOST_SHOWN)


def shown_text(text: str, most: int) -> str:
    """Return a text cut to ``most`` characters."""
    return text if len(text) <= most else f"{text[:most]}..."
