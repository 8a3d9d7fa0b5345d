"""Tables of numbers without a header, comma separated, maybe compressed."""

from __future__ import annotations

import gzip
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

import numpy as np

from retexo_fl.errors import TableError
from retexo_fl.graph.sources.tables.source import MOST_PROBLEMS, shown
from retexo_fl.units import counted

_DAMAGE: Final = (OSError, EOFError, zlib.error, UnicodeDecodeError)
_KINDS: Final = {"i": "whole numbers", "f": "numbers"}


class Problems:
    """What is wrong with several files, collected so that one error says all."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._more = 0

    def add(self, line: str) -> None:
        """Note one problem."""
        if len(self._lines) < MOST_PROBLEMS:
            self._lines.append(line)
        else:
            self._more += 1

    def add_rows(self, path: Path, rows: np.ndarray, problem: str, values: np.ndarray) -> None:
        """Note a problem of each of [k] rows: ``problem`` with the row's value for ``{}``."""
        for row in rows[:MOST_PROBLEMS].tolist():
            told = ",".join(map(str, np.atleast_1d(values[row]).tolist()))
            self.add(f"{path}: line {row + 1}: {problem.format(told)}")
        self._more += max(0, len(rows) - MOST_PROBLEMS)

    def check(self) -> None:
        """Raise what was collected.

        Raises:
            TableError: There is a problem.
        """
        if self._lines:
            more = [f"{counted(self._more, 'problem')} more"] if self._more else []
            raise TableError(*self._lines, *more)


def read_rows(
    path: Path, problems: Problems, *, dtype: type[np.generic], width: int | None = None
) -> np.ndarray | None:
    """Read a table of numbers.

    Args:
        path: Text, or gzip of it where the name ends in ``.gz``.
        problems: Takes what is wrong with it.
        dtype: Of the result; a floating one takes ``nan``, too.
        width: How many columns there must be; None for any number, the same in all lines.

    Returns:
        [n, w]; None where something is wrong.
    """
    kind = _KINDS[np.dtype(dtype).kind]
    try:
        with _opened(path) as file, warnings.catch_warnings():
            # An empty file is a table of no rows here.
            warnings.simplefilter("ignore", UserWarning)
            rows = np.loadtxt(file, dtype=dtype, delimiter=",", ndmin=2, comments=None)
    except _DAMAGE as error:
        problems.add(f"{path}: cannot be read, or damaged ({_reason(error)})")
        return None
    except (ValueError, OverflowError):
        for line in _wrong_lines(path, dtype, width):
            problems.add(f"{path}: {line}; expected {kind} with commas between them")
        return None
    if not rows.size:
        return np.empty((0, width or 1), dtype=dtype)
    if width is not None and rows.shape[1] != width:
        got = counted(rows.shape[1], "column")
        problems.add(f"{path}: has {got}; expected {width}")
        return None
    return rows


def _wrong_lines(path: Path, dtype: type[np.generic], width: int | None) -> Iterator[str]:
    """Yield what is wrong with lines of a table that NumPy refused."""
    with _opened(path) as file:
        for number, line in enumerate(file, start=1):
            fields = line.strip().split(",")
            width = len(fields) if width is None else width
            if not line.strip():
                continue
            if len(fields) != width:
                yield f"line {number}: got {counted(len(fields), 'field')}, not {width}"
                continue
            for column, field in enumerate(fields):
                try:
                    np.array(field.strip()).astype(dtype)
                except (ValueError, OverflowError):
                    yield f"line {number}: column {column}: got {shown(field)}"


@contextmanager
def _opened(path: Path) -> Iterator[IO[str]]:
    if path.suffix == ".gz":
        with gzip.open(path, "rt", encoding="utf-8") as file:
            yield file
    else:
        with path.open(encoding="utf-8") as file:
            yield file


def _reason(error: BaseException) -> str:
    return str(getattr(error, "strerror", None) or error)
