"""Checks of arrays that came from outside; each failure is a line naming array and row."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NoReturn, Protocol

import numpy as np
from scipy.sparse import csr_array

from retexo_fl.errors import InputError
from retexo_fl.units import format_counted

logger = logging.getLogger(__name__)

#: Values looked at in one go, so that scratch arrays stay small. Chosen; not tuned.
_CHUNK_VALUES: Final = 2**22
_KIND_NAMES: Final = {
    "iu": "integers",
    "i": "signed integers",
    "b": "booleans",
    "S": "bytes",
    "f": "floats",
}


class HasForm(Protocol):
    """An array, or the header of one."""

    @property
    def dtype(self) -> np.dtype:
        """Of the array."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the array."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayChecks:
    """Raises ``error`` for the arrays of ``source``.

    Attributes:
        source: The file, folder or data set that the arrays came from.
        error: Class of the error.
    """

    source: str
    error: type[InputError]

    def fail(self, name: str, problem: str) -> NoReturn:
        """Raise the error about one array."""
        raise self.error(f"{self.source}: {name}: {problem}")

    def form(
        self, name: str, values: HasForm, *, kinds: str, shape: tuple[int | None, ...]
    ) -> None:
        """Check the dtype's kind (``iu``, ``i``, ``b``, ``S``) and the shape (None: any length)."""
        if values.dtype.kind not in kinds:
            self.fail(name, f"got {values.dtype}; expected {_KIND_NAMES[kinds]}")
        fits = len(values.shape) == len(shape) and all(
            want is None or have == want for have, want in zip(values.shape, shape, strict=True)
        )
        if not fits:
            wanted = ", ".join("any" if want is None else str(want) for want in shape)
            self.fail(name, f"got shape {values.shape}; expected ({wanted})")

    def offsets(self, name: str, indptr: np.ndarray, *, num_entries: int) -> None:
        """Check row offsets: from 0 to ``num_entries``, never falling."""
        if indptr[0] != 0 or indptr[-1] != num_entries:
            self.fail(
                name, f"runs from {indptr[0]} to {indptr[-1]}; expected 0 to {num_entries} entries"
            )
        falls = np.flatnonzero(indptr[1:] < indptr[:-1])
        if len(falls):
            self.fail(name, f"decreases at row {falls[0]}; expected non-decreasing offsets")

    def columns(
        self, name: str, columns: np.ndarray, indptr: np.ndarray, *, num_columns: int
    ) -> None:
        """Check column numbers: in range, ascending and unique in each row of checked offsets."""
        self._column_range(name, columns, indptr, num_columns=num_columns)
        if not len(columns):
            return
        rises = columns[1:] > columns[:-1]
        starts = indptr[1:-1]
        starts = starts[(starts > 0) & (starts < len(columns))]
        rises[starts - 1] = True
        if not rises.all():
            entry = int(np.argmin(rises)) + 1
            self.fail(
                name,
                f"row {_row_of(indptr, entry)} has columns out of order or twice; "
                "expected ascending columns",
            )

    def _column_range(
        self, name: str, columns: np.ndarray, indptr: np.ndarray, *, num_columns: int
    ) -> None:
        if len(columns) and (columns.min() < 0 or columns.max() >= num_columns):
            entry = int(np.flatnonzero((columns < 0) | (columns >= num_columns))[0])
            self.fail(
                name,
                f"row {_row_of(indptr, entry)} has column {columns[entry]}; "
                f"expected 0 to {num_columns - 1}",
            )

    def feature_form(self, name: str, features: HasForm, *, num_nodes: int) -> None:
        """Check of features, or of what a header says: float32, [num_nodes, F]; F of 0 is none."""
        if features.dtype != np.float32:
            self.fail(name, f"got {features.dtype}; expected float32")
        shape = features.shape
        if len(shape) != 2 or shape[0] != num_nodes:
            self.fail(name, f"got shape {shape}; expected ({num_nodes}, F)")

    def features(self, name: str, features: np.ndarray | csr_array, *, num_nodes: int) -> None:
        """Check features: float32, one row for each node, finite; there may be no column."""
        self.feature_form(name, features, num_nodes=num_nodes)
        if not features.shape[1]:
            return
        if isinstance(features, np.ndarray):
            row = _first_nonfinite_row(features)
        else:
            self.offsets(name, features.indptr, num_entries=len(features.data))
            self.columns(
                name, features.indices, features.indptr, num_columns=int(features.shape[1])
            )
            entry = _first_nonfinite_row(features.data[:, None])
            row = None if entry is None else _row_of(features.indptr, entry)
        if row is not None:
            self.fail(name, f"row {row} holds NaN or infinity; expected finite values")

    def sparse_features(
        self,
        name: str,
        parts: Mapping[str, np.ndarray],
        *,
        num_columns: int,
        any_order: bool = False,
    ) -> csr_array:
        """Join the parts of a CSR matrix, which SciPy would trust.

        Args:
            name: Of the matrix; its parts are called ``NAME_indptr`` and so on.
            parts: ``indptr`` [N + 1] and ``indices`` [Z] integers, ``data`` [Z] float32.
            num_columns: Width of the matrix.
            any_order: Columns of a row may be out of order and there more than once. They are
                sorted, and the values of one column are added up, as SciPy does; a warning says so.
        """
        indptr, indices, data = parts["indptr"], parts["indices"], parts["data"]
        self.form(f"{name}_indptr", indptr, kinds="iu", shape=(None,))
        if not len(indptr):
            self.fail(f"{name}_indptr", "is empty; expected N + 1 offsets")
        if data.dtype != np.float32:
            self.fail(f"{name}_data", f"got {data.dtype}; expected float32")
        self.form(f"{name}_data", data, kinds="f", shape=(None,))
        self.form(f"{name}_indices", indices, kinds="iu", shape=(len(data),))
        self.offsets(f"{name}_indptr", indptr, num_entries=len(data))
        check = self._column_range if any_order else self.columns
        check(f"{name}_indices", indices, indptr, num_columns=num_columns)
        matrix = csr_array((data, indices, indptr), shape=(len(indptr) - 1, num_columns))
        return (
            matrix if not any_order or matrix.has_canonical_format else self._tidied(name, matrix)
        )

    def _tidied(self, name: str, matrix: csr_array) -> csr_array:
        matrix = matrix.copy()  # The parts may be read-only.
        entries = matrix.nnz
        matrix.sum_duplicates()
        logger.warning(
            "%s: %s_indices: columns unsorted or repeated within a row; sorted, and %s added to "
            "another of the same column, as SciPy does",
            self.source,
            name,
            format_counted(entries - matrix.nnz, "value"),
        )
        return matrix

    def labels(self, name: str, labels: np.ndarray, *, num_classes: int) -> None:
        """Check labels: whole numbers from -1 (unlabelled) to ``num_classes - 1``."""
        self.form(name, labels, kinds="iu", shape=(None,))
        wrong = np.flatnonzero((labels.astype(np.int64) < -1) | (labels >= num_classes))
        if len(wrong):
            row = int(wrong[0])
            self.fail(
                name, f"row {row} is {labels[row]}; expected -1 (unlabelled) to {num_classes - 1}"
            )

    def masks(self, masks: Mapping[str, np.ndarray], labelled: np.ndarray) -> None:
        """Check masks: booleans, one for each node, disjoint, on ``labelled`` nodes only."""
        taken = np.zeros(len(labelled), dtype=bool)
        for name, mask in masks.items():
            self.form(name, mask, kinds="b", shape=(len(labelled),))
            unlabelled = np.flatnonzero(mask & ~labelled)
            if len(unlabelled):
                self.fail(name, f"row {unlabelled[0]} is unlabelled; expected labelled nodes only")
            twice = np.flatnonzero(mask & taken)
            if len(twice):
                self.fail(name, f"row {twice[0]} is in another mask too; expected disjoint masks")
            taken |= mask

    def edges(
        self,
        name: str,
        edges: np.ndarray,
        *,
        num_nodes: int,
        directed: bool = False,
        relations: np.ndarray | None = None,
        may_lack: bool = False,
    ) -> None:
        """Check a [2, E] list of edges: in range, each once, no self loop, maybe none at all.

        Args:
            name: Of the list.
            edges: The list.
            num_nodes: N.
            directed: Whether its order says more than which nodes are joined.
            relations: [E] number of each edge's relation, each of which may have an edge once.
            may_lack: Whether there may be none.
        """
        self.form(name, edges, kinds="iu", shape=(2, None))
        if edges.shape[1] == 0 and may_lack:
            return
        if edges.shape[1] == 0:
            self.fail(name, "there are no edges; expected at least one")
        if edges.min() < 0 or edges.max() >= num_nodes:
            at = int(np.flatnonzero(((edges < 0) | (edges >= num_nodes)).any(axis=0))[0])
            self.fail(name, f"column {at} is {_pair(edges, at)}; expected nodes 0..{num_nodes - 1}")
        loops = np.flatnonzero(edges[0] == edges[1])
        if len(loops):
            at = int(loops[0])
            self.fail(
                name,
                f"column {at} is {_pair(edges, at)}, a self loop; expected none, or self-loops "
                "drop",
            )
        kinds = np.int64(0) if relations is None else relations.astype(np.int64)
        self._each_edge_once(name, edges, num_nodes, directed=directed, kinds=kinds)

    def edge_values(
        self, name: str, values: np.ndarray | None, *, num_edges: int, ndim: int
    ) -> None:
        """Check weights (one for each edge) or attributes (a row of at least one number each).

        Args:
            name: Of the array.
            values: [E] numbers that float32 can hold, or [E, A] with ``ndim`` 2; None passes.
            num_edges: E.
            ndim: Of the array.
        """
        if values is None:
            return
        if values.dtype.kind not in "fiub":
            self.fail(name, f"got {values.dtype}; expected numbers")
        if values.ndim != ndim or len(values) != num_edges or 0 in values.shape[1:]:
            wanted = f"({num_edges},)" if ndim == 1 else f"({num_edges}, A) with A at least 1"
            self.fail(name, f"got shape {values.shape}; expected {wanted}")
        with np.errstate(over="ignore"):
            self.finite(name, values.astype(np.float32))

    def finite(self, name: str, values: np.ndarray) -> None:
        """Check that the floats of an [E, ...] array are numbers."""
        finite = np.isfinite(values).all(axis=tuple(range(1, values.ndim)))
        if not finite.all():
            row = int(np.argmin(finite))
            self.fail(name, f"row {row} holds NaN or infinity; expected finite values")

    def _each_edge_once(
        self,
        name: str,
        edges: np.ndarray,
        num_nodes: int,
        *,
        directed: bool,
        kinds: np.ndarray | np.integer,
    ) -> None:
        def numbered() -> np.ndarray:
            numbers = _edge_numbers(edges, num_nodes, directed=directed)
            numbers += kinds * num_nodes**2
            return numbers

        ordered = numbered()
        ordered.sort()
        repeated = np.flatnonzero(ordered[1:] == ordered[:-1])
        if not len(repeated):
            return
        twice = ordered[repeated[0]]
        first, second = np.flatnonzero(numbered() == twice)[:2]
        where = f"columns {first} and {second} are {_pair(edges, first)} and {_pair(edges, second)}"
        if edges[0, first] == edges[0, second]:
            self.fail(
                name, f"{where}: an edge listed twice; expected each edge once, or merge-edges"
            )
        self.fail(
            name,
            f"{where}: a directed edge list; expected an undirected graph, each edge listed once, "
            "or edges-are directed, or merge-edges",
        )


def largest_label(labels: np.ndarray) -> int:
    """Return the largest of [N] labels of any integer dtype, -1 where there are none."""
    return int(labels.max()) if len(labels) else -1


def _edge_numbers(edges: np.ndarray, num_nodes: int, *, directed: bool) -> np.ndarray:
    """Return the [E] int64 numbers that two edges share if they are the same."""
    if directed:
        between: np.ndarray = edges[0].astype(np.int64) * num_nodes
        between += edges[1].astype(np.int64, copy=False)
        return between
    numbers: np.ndarray = np.minimum(edges[0], edges[1]).astype(np.int64)
    numbers *= num_nodes
    numbers += np.maximum(edges[0], edges[1]).astype(np.int64, copy=False)
    return numbers


def _pair(edges: np.ndarray, at: int) -> str:
    return f"({edges[0, at]}, {edges[1, at]})"


def _row_of(indptr: np.ndarray, entry: int) -> int:
    return int(np.searchsorted(indptr, entry, side="right")) - 1


def _first_nonfinite_row(values: np.ndarray) -> int | None:
    step = max(1, _CHUNK_VALUES // values.shape[1])
    for first in range(0, len(values), step):
        finite = np.isfinite(values[first : first + step])
        if not finite.all():
            return first + int(np.argmin(finite.all(axis=1)))
    return None
