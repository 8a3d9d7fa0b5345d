"""Rows of sparse features as text: ``3:1 17:0.5`` is 1 in column 3, 0.5 in column 17, else 0."""

from __future__ import annotations

import re
from itertools import chain
from typing import Final

import numpy as np
from scipy.sparse import csr_array

from retexo_fl.graph.sources.tables.cells import is_number, only_plain
from retexo_fl.graph.sources.tables.source import Column, shown

#: More digits than 18 would not fit into 64 bits, and no matrix is so wide.
_ITEM: Final = re.compile(r"[+-]?[0-9]{1,18}:[^:]+", re.ASCII)
_EXPECTED: Final = "items INDEX:VALUE with spaces between them, such as 3:1 17:0.5"


def sparse_rows(column: Column, *, num_features: int) -> csr_array:
    """Read a column of sparse rows; items may come in any order, an empty cell is a row of zeros.

    Args:
        column: Text, None for an empty cell.
        num_features: F; indices are below it, each at most once in a row.

    Returns:
        [n, F] float32 with sorted columns; values that are written as 0 are kept.

    Raises:
        TableError: A cell is anything else; it names file, row and column.
    """
    rows = [[] if cell is None else cell.split() for cell in column.cells]
    lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    items = _items(column, rows, total=int(lengths.sum()))
    if items is None:
        return csr_array((len(rows), num_features), dtype=np.float32)
    indices, values = items
    row_of = np.repeat(np.arange(len(rows)), lengths)
    outside = (indices < 0) | (indices >= num_features)
    for item in np.flatnonzero(outside).tolist():
        problem = f"has index {indices[item]}; expected 0 to {num_features - 1}"
        column.report(int(row_of[item]), problem)
    # What has been reported is never used, but must be a matrix until all has been read.
    indices[outside] = 0
    with np.errstate(over="ignore"):
        data = values.astype(np.float32)
    for item in np.flatnonzero(~np.isfinite(data)).tolist():
        problem = f"index {indices[item]} is {values[item]}; expected a finite float32 number"
        column.report(int(row_of[item]), problem)
    order = np.lexsort((indices, row_of))
    ordered = indices[order]
    twice = (ordered[1:] == ordered[:-1]) & (row_of[1:] == row_of[:-1])
    twice &= ~outside[order][1:] & ~outside[order][:-1]
    for item in np.flatnonzero(twice).tolist():
        column.report(int(row_of[item]), f"has index {ordered[item]} twice; expected it once")
    indptr = np.concatenate(([0], np.cumsum(lengths)))
    return csr_array(
        (data[order], ordered.astype(np.int32), indptr), shape=(len(rows), num_features)
    )


def _items(
    column: Column, rows: list[list[str]], total: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return [z] int64 indices and [z] float64 values of all items; None if one was reported."""
    pairs = [item.partition(":") for item in chain.from_iterable(rows)]
    indices, values = np.empty(total, dtype=np.int64), np.empty(total)
    try:
        indices[:] = [int(pair[0]) for pair in pairs]
        values[:] = [float(pair[2]) for pair in pairs]
        readable = only_plain(chain.from_iterable(pairs))
    except (ValueError, OverflowError):
        readable = False
    if not readable:
        for row, items in enumerate(rows):
            for item in items:
                if not _ITEM.fullmatch(item) or not is_number(item.partition(":")[2]):
                    column.report(row, f"got {shown(item)}; expected {_EXPECTED}")
        return None
    return indices, values
