"""Tables that are handed over as DataFrames of pandas or polars; neither is imported here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from retexo_fl.graph.sources.tables.plain import plain_cells_of
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


#: A table: a file, or a DataFrame.
AnyTable: TypeAlias = "Path | FrameSource"


def tables_of(given: object) -> tuple[AnyTable, AnyTable | None] | None:
    """Return tables of nodes and of edges that were handed over as a pair; None for anything else.

    Each is a DataFrame, or the path of a file; there may be None in the place of edges.
    """
    if not isinstance(given, tuple | list) or len(given) != len(_NAMES):
        return None
    nodes, edges = (_table(one, name) for one, name in zip(given, _NAMES, strict=True))
    return None if nodes is None or (edges is None and given[1] is not None) else (nodes, edges)


def _table(given: object, name: str) -> AnyTable | None:
    if isinstance(given, str | Path):
        return Path(given)
    return FrameSource(given, name) if is_frame(given) else None


def is_frame(given: object) -> bool:
    """Return whether an object is a DataFrame."""
    return hasattr(given, "columns") and hasattr(given, "dtypes") and hasattr(given, "to_numpy")


def _cells(series: Any) -> Cells:
    """Return a column as an array of numbers, or as a list."""
    kind = getattr(series.dtype, "kind", "")
    # A type of NumPy's, without pandas' own, which know of absent values.
    if isinstance(series.dtype, np.dtype) and kind in "iufbc":
        return np.asarray(series.to_numpy())
    return plain_cells_of(series.to_list())
