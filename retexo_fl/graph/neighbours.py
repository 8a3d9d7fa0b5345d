"""Edges with values, by the node that they reach: what each stored edge weighs and carries.

An edge of an undirected graph has one weight and one row of attributes, which both of its ends
hold. Of a directed graph a node's neighbour is whoever an edge comes from or goes to; both
directions are stored side by side, the incoming one first. A weight of 0 is no edge. A typed
graph has as many weights side by side as it has channels (:mod:`retexo_fl.relations`).

Shapes: E edges as they are read, e stored neighbours, A attributes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np

#: Places of the two directions in the values of a directed graph's neighbours.
IN: Final = 0
OUT: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EdgeValues:
    """What edges carry beside their ends.

    Attributes:
        weights: [E] float32, or [E, 2] with both directions side by side, [E, C] of C
            channels; None for 1 each.
        attributes: [E, A] float32, or [E, 2, A]; None for none.
    """

    weights: np.ndarray | None = None
    attributes: np.ndarray | None = None

    @property
    def is_directed(self) -> bool:
        """Whether there are two directions, side by side."""
        return self.weights is not None and self.weights.ndim > 1

    @property
    def num_attributes(self) -> int:
        """A; 0 for none."""
        return 0 if self.attributes is None else int(self.attributes.shape[-1])

    @property
    def is_plain(self) -> bool:
        """Whether all edges weigh 1 and carry nothing."""
        return self.weights is None and self.attributes is None

    def named(self) -> dict[str, np.ndarray]:
        """Return the arrays that are there by the names that they have in a part."""
        arrays = {"edge_weights": self.weights, "edge_attributes": self.attributes}
        return {name: array for name, array in arrays.items() if array is not None}

    def taken(self, places: np.ndarray | slice) -> Self:
        """Return the values of some edges: (n,) places, an [E] mask, or a slice."""
        if self.is_plain:
            return self
        return replace(
            self,
            weights=None if self.weights is None else self.weights[places],
            attributes=None if self.attributes is None else self.attributes[places],
        )

    def as_float32(self) -> Self:
        """Round checked values."""
        return replace(
            self,
            weights=None if self.weights is None else self.weights.astype(np.float32),
            attributes=None if self.attributes is None else self.attributes.astype(np.float32),
        )

    def where(self, chosen: np.ndarray, other: Self) -> Self:
        """Return these values of ``chosen`` ([E] bool) edges, and those of ``other`` elsewhere."""
        found = {}
        for name, array in self.named().items():
            mask = chosen.reshape(-1, *(1,) * (array.ndim - 1))
            found[name.removeprefix("edge_")] = np.where(mask, array, other.named()[name])
        return replace(self, **found)

    def reversed(self) -> Self:
        """Return the values as the edges' other ends hold them."""
        if not self.is_directed:
            return self
        assert self.weights is not None
        return replace(
            self,
            weights=self.weights[:, ::-1],
            attributes=None if self.attributes is None else self.attributes[:, ::-1],
        )


#: All edges weigh 1 and carry nothing.
PLAIN: Final = EdgeValues()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NeighbourLists:
    """Neighbours of each node, ascending.

    Attributes:
        indptr: [n + 1] int64: the neighbours of row u are ``indices[indptr[u]:indptr[u + 1]]``.
        indices: [e] int64 columns.
        values: Of the e entries.
    """

    indptr: np.ndarray
    indices: np.ndarray
    values: EdgeValues = PLAIN


def neighbour_lists(
    rows: np.ndarray,
    columns: np.ndarray,
    *,
    shape: tuple[int, int],
    values: EdgeValues,
    sides: np.ndarray | None,
    channels: int = 2,
) -> NeighbourLists:
    """Order entries by row and column.

    Args:
        rows: [E] integers; each pair of a row and a column once, for each of its sides.
        columns: [E] integers.
        shape: Numbers of rows and of columns.
        values: Of the E entries, undirected.
        sides: [E] :data:`IN` where the edge leads to the row, :data:`OUT` where it goes from it;
            None of an undirected graph. Of a typed graph, the channel of each.
        channels: How many there are side by side.
    """
    codes = rows.astype(np.int64) * shape[1] + columns
    if sides is None:
        order = np.argsort(codes, kind="stable")
        there, found = codes[order], values.taken(order)
    else:
        there, entries = np.unique(codes, return_inverse=True)
        found = _side_by_side(values, entries, sides, shape=(len(there), channels))
    indptr = np.searchsorted(there, np.arange(shape[0] + 1) * shape[1])
    return NeighbourLists(
        indptr=indptr.astype(np.int64, copy=False), indices=there % shape[1], values=found
    )


def weighted_degrees(indptr: np.ndarray, values: EdgeValues) -> np.ndarray:
    """Return how many neighbours each node has, or what its edges weigh together.

    Returns:
        [n] int64; float64 of weighted edges; [n, 2] of both directions.
    """
    if values.weights is None:
        return np.diff(indptr)
    rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    return row_sums_of(values.weights, rows, len(indptr) - 1)


def differing_rows(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the numbers of the rows in which two [E, ...] arrays of one shape differ."""
    differs = one != other
    return np.flatnonzero(differs.any(axis=tuple(range(1, differs.ndim))))


def row_sums_of(weights: np.ndarray, rows: np.ndarray, num_rows: int) -> np.ndarray:
    """Add (E,) or (E, 2) weights up by row, in their order: float64 (R,) or (R, 2)."""
    if weights.ndim == 1:
        return np.bincount(rows, weights=weights, minlength=num_rows)
    return np.column_stack([row_sums_of(column, rows, num_rows) for column in weights.T])


def _side_by_side(
    values: EdgeValues, entries: np.ndarray, sides: np.ndarray, *, shape: tuple[int, int]
) -> EdgeValues:
    weights = np.zeros(shape, dtype=np.float32)
    weights[entries, sides] = 1 if values.weights is None else values.weights
    attributes = None
    if values.attributes is not None:
        attributes = np.zeros((*shape, values.num_attributes), dtype=np.float32)
        attributes[entries, sides] = values.attributes
    return EdgeValues(weights=weights, attributes=attributes)
