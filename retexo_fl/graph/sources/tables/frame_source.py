"""Tables that are handed over: DataFrames of pandas or polars, not imported here, and queries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from retexo_fl.errors import TableError
from retexo_fl.graph.sources.tables.plain import plain_cells_of
from retexo_fl.graph.sources.tables.query import Query
from retexo_fl.graph.sources.tables.source import Cells, check_names

#: What nodes and edges of DataFrames are called in errors.
_NAMES: Final = ("nodes", "edges")


class FrameSource:
    """A table whose columns are those of a DataFrame."""

    def __init__(self, frame: Any, name: str) -> None:
        """Read no cell yet; ``name`` is what errors call the table."""
        self.path = Path(name)
        self._frame = frame
        self.names = check_names(self.path, [str(column) for column in frame.columns])

    def batches(self, columns: Sequence[str]) -> Iterator[Mapping[str, Cells]]:
        """Yield all rows of some columns at once."""
        position = {name: place for place, name in enumerate(self.names)}
        there = list(self._frame.columns)
        if len(self._frame):
            yield {name: _cells(self._frame[there[position[name]]]) for name in columns}

    def place(self, row: int) -> str:
        """Return the row's number."""
        return f"row {row}"


class QuerySource(FrameSource):
    """A table of the rows of a query."""

    def __init__(self, query: Query, name: str) -> None:
        """Send the query, if it was not yet; ``name`` is what errors call the table.

        Raises:
            TableError: The database refuses it, or it returns no table.
        """
        self.path = Path(name)
        try:
            columns = query.columns
        # Each driver has its own tree of errors, which nothing but its module names.
        except Exception as error:
            told = (str(error).splitlines() or [""])[0]
            raise TableError(
                f"{name}: the query failed ({type(error).__name__}: {told[:200]}); expected one "
                "that returns rows"
            ) from error
        if not columns:
            raise TableError(f"{name}: the query returns no table; expected one such as SELECT")
        self.names = check_names(self.path, [column for column, _ in columns])
        self._columns = dict(columns)

    def batches(self, columns: Sequence[str]) -> Iterator[Mapping[str, Cells]]:
        """Yield all rows of some columns at once."""
        if len(self._columns[self.names[0]]):
            yield {name: plain_cells_of(self._columns[name]) for name in columns}


#: A table: a file, a DataFrame, or a query.
AnyTable: TypeAlias = "Path | FrameSource"


def tables_of(given: object) -> tuple[AnyTable, AnyTable | None] | None:
    """Return tables of nodes and of edges that were handed over as a pair; None for anything else.

    Each is a DataFrame, a query, or the path of a file; there may be None in the place of edges.
    """
    if not isinstance(given, tuple | list) or len(given) != len(_NAMES):
        return None
    nodes, edges = (_table(one, name) for one, name in zip(given, _NAMES, strict=True))
    return None if nodes is None or (edges is None and given[1] is not None) else (nodes, edges)


def _table(given: object, name: str) -> AnyTable | None:
    if isinstance(given, str | Path):
        return Path(given)
    if isinstance(given, Query):
        return QuerySource(given, name)
    return FrameSource(given, name) if is_frame(given) else None


def is_frame(given: object) -> bool:
    """Return whether an object is a DataFrame, or a query."""
    if isinstance(given, Query):
        return True
    return hasattr(given, "columns") and hasattr(given, "dtypes") and hasattr(given, "to_numpy")


def _cells(series: Any) -> Cells:
    """Return a column as an array of numbers, or as a list."""
    kind = getattr(series.dtype, "kind", "")
    # A type of NumPy's, without pandas' own, which know of absent values.
    if isinstance(series.dtype, np.dtype) and kind in "iufbc":
        return np.asarray(series.to_numpy())
    return plain_cells_of(series.to_list())
