"""Features of a node table: which columns they are, and one matrix of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from scipy.sparse import csr_array, vstack

from retexo_fl.errors import TableError
from retexo_fl.graph.checks import ArrayChecks
from retexo_fl.graph.features import Features
from retexo_fl.graph.sources.tables.cells import gapped_numbers, is_text, number_array
from retexo_fl.graph.sources.tables.npz_source import SPARSE_ARRAYS, NpzSource
from retexo_fl.graph.sources.tables.source import (
    USES_OF_NODES,
    Cells,
    Column,
    Complaints,
    Source,
    require_columns,
)
from retexo_fl.graph.sources.tables.sparse_text import sparse_rows
from retexo_fl.units import counted

#: The column of lists, or of sparse text.
_WHOLE_ROWS: Final = "x"
_NUMBER: Final = r"_?(0|[1-9][0-9]{0,8})"
#: Columns of a stored CSR matrix are numbered by 32 bits.
_MOST_FEATURES: Final = 2**31 - 1


class FeatureReader:
    """Collects the features of a node table, batch by batch.

    Attributes:
        columns: What :meth:`add` needs of each batch; empty where the features are sparse arrays
            of their own.
    """

    def __init__(
        self,
        source: Source,
        *,
        num_features: int | None,
        infer_features: bool = False,
        others: Sequence[str] = (),
        complaints: Complaints | None = None,
        may_lack: bool = False,
    ) -> None:
        """Find the columns of features, which are none of ``others``.

        With ``may_lack`` a cell of a column of numbers may be empty: NaN.
        """
        self._may_lack = may_lack
        self._source = source
        self._complaints = complaints
        self._num_features = num_features
        self._infers = infer_features and num_features is None
        self._parts: list[Features] = []
        self._has_none = num_features == 0 or _has_none(source, others)
        self.columns = () if self._has_none else _feature_columns(source, others)

    def add(self, batch: Mapping[str, Cells], *, first_row: int) -> None:
        """Take the next rows.

        Raises:
            TableError: A cell is no finite number, or no row of features.
        """
        columns = [
            Column(
                source=self._source,
                name=name,
                first_row=first_row,
                cells=batch[name],
                complaints=self._complaints,
            )
            for name in self.columns
        ]
        if self.columns == (_WHOLE_ROWS,):
            self._parts.append(self._rows(columns[0]))
        elif columns:
            self._parts.append(side_by_side(columns, may_lack=self._may_lack))

    @property
    def of_numbers(self) -> tuple[str, ...]:
        """The columns, where each holds the numbers of one feature."""
        return () if self.columns == (_WHOLE_ROWS,) else self.columns

    def finish(self, *, num_nodes: int) -> Features:
        """Return the matrix of all rows.

        Raises:
            TableError: It has another width than it should have, or the parts of a sparse matrix
                do not fit each other.
        """
        if self._has_none:
            return np.empty((num_nodes, 0), dtype=np.float32)
        if isinstance(self._source, NpzSource) and not self.columns:
            features = _sparse_arrays(self._source, num_nodes=num_nodes)
        else:
            features = _joined(self._source, self._parts)
            if self._infers and isinstance(features, csr_array):
                features = trimmed(features)
        width = int(features.shape[1])
        if width == 0 or self._num_features not in (None, width):
            wanted = "at least one" if self._num_features is None else self._num_features
            raise TableError(f"{self._source.path}: {self._named(width)}; expected {wanted}")
        return features

    def _rows(self, column: Column) -> Features:
        if is_text(column):
            if self._infers:
                return sparse_rows(column, num_features=_MOST_FEATURES)
            if self._num_features is None:
                raise TableError(
                    f"{self._source.path}: {column.name}: sparse text without a number of "
                    "features; expected it as num_features"
                )
            return sparse_rows(column, num_features=self._num_features)
        if isinstance(column.cells, list):
            # Single numbers at best, of which none would do: the first that is none says more.
            column = replace(column, complaints=None)
        rows = number_array(column)
        if rows.ndim != 2:
            column.fail_form("lists of numbers, or text; a single feature is called x0")
        return rows

    def _named(self, width: int) -> str:
        if len(self.columns) > 1:
            return f"got {width} columns of features, {self.columns[0]} to {self.columns[-1]}"
        name = self.columns[0] if self.columns else _WHOLE_ROWS
        return f"{name}: got {counted(width, 'feature')}"


def in_order(source: Source, names: Sequence[str], letter: str) -> tuple[str, ...]:
    """Return names by number, or else by name, so that clients' files need no common order.

    Raises:
        TableError: Names have numbers with a gap.
    """
    found = [re.fullmatch(f"{letter}{_NUMBER}", name) for name in names]
    if not all(found):
        return tuple(sorted(names))
    by_number = sorted((int(match[1]), match[0]) for match in found if match)
    first = min(by_number[0][0], 1)
    for want, (number, name) in enumerate(by_number, start=first):
        if number != want:
            raise TableError(
                f"{source.path}: column {letter}{want} is missing before {name}; expected columns "
                "numbered without gaps from 0 or 1"
            )
    return tuple(name for _, name in by_number)


def _has_none(source: Source, others: Sequence[str]) -> bool:
    """Return whether no column could be a feature: all have another use."""
    return {*source.names} <= {*others, *USES_OF_NODES}


def _feature_columns(source: Source, others: Sequence[str]) -> tuple[str, ...]:
    names = [name for name in source.names if name.startswith("x") and name not in others]
    sparse = [name for name in names if name in SPARSE_ARRAYS]
    if isinstance(source, NpzSource) and sparse:
        dense = [name for name in names if name not in SPARSE_ARRAYS]
        if dense:
            _fail_both(source, sparse[0], dense[0])
        require_columns(source, SPARSE_ARRAYS)
        return ()
    if not names:
        raise TableError(
            f"{source.path}: no column of features; expected x0, x1, ... or one column x, or "
            "features auto, which makes them of the other columns, or features none"
        )
    if _WHOLE_ROWS in names:
        if len(names) > 1:
            _fail_both(source, _WHOLE_ROWS, next(name for name in names if name != _WHOLE_ROWS))
        return (_WHOLE_ROWS,)
    return in_order(source, names, "x")


def _fail_both(source: Source, one: str, other: str) -> None:
    raise TableError(f"{source.path}: got both {one} and {other}; expected one form of features")


def side_by_side(columns: list[Column], *, may_lack: bool = False) -> np.ndarray:
    """Return [n, F] float32 of columns of numbers; NaN of empty cells, where these may be so."""
    matrix = np.empty((len(columns), len(columns[0].cells)), dtype=np.float32)
    for row, column in zip(matrix, columns, strict=True):
        numbers = gapped_numbers(column) if may_lack else number_array(column)
        if numbers.ndim != 1:
            column.fail_form("one number for each row")
        row[:] = numbers
    return np.ascontiguousarray(matrix.T)


def _joined(source: Source, parts: list[Features]) -> Features:
    if isinstance(parts[0], csr_array):
        return csr_array(vstack(parts, format="csr"))
    widths = {part.shape[1] for part in parts}
    if len(widths) > 1:
        raise TableError(
            f"{source.path}: x: rows with {min(widths)} and with "
            f"{counted(max(widths), 'value')}; expected the same number in each row"
        )
    return np.concatenate(parts)


def trimmed(features: csr_array) -> csr_array:
    """Return sparse rows as wide as their largest index requires."""
    parts = (features.data, features.indices, features.indptr)
    width = int(features.indices.max(initial=-1)) + 1
    return csr_array(parts, shape=(features.shape[0], width))


def _sparse_arrays(source: NpzSource, *, num_nodes: int) -> csr_array:
    checks = ArrayChecks(source=str(source.path), error=TableError)
    arrays = source.arrays(SPARSE_ARRAYS)
    shape = arrays["x_shape"]
    checks.form("x_shape", shape, kinds="iu", shape=(2,))
    if shape[0] != num_nodes or not 1 <= shape[1] <= _MOST_FEATURES:
        checks.fail("x_shape", f"got {shape.tolist()}; expected [{num_nodes}, F], F at least 1")
    data = arrays["x_data"]
    if data.dtype.kind not in "iufb":
        checks.fail("x_data", f"got {data.dtype}; expected numbers")
    with np.errstate(over="ignore"):
        narrow = data.astype(np.float32)
    parts = {"data": narrow}
    for part in ("indptr", "indices"):
        array = arrays[f"x_{part}"]
        checks.form(f"x_{part}", array, kinds="iu", shape=(None,))
        parts[part] = array.astype(np.int64)
    features = checks.sparse_features("x", parts, num_columns=int(shape[1]), any_order=True)
    checks.features("x", features, num_nodes=num_nodes)
    return features
