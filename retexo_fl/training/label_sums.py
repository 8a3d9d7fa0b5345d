"""Columns in place of the features of nodes without any: which train labels are near a node.

Symbols: N nodes, C classes, A (N, N) what edges weigh, both directions added, d neighbours of a
node, S (diagonal) the sum of its edges' squared weights, Y (N, C) a one for the class of each train
node and zeros elsewhere. Clients count walks that do not turn back at once::

    p_0 = Y
    p_1 = A p_0
    p_2 = A p_1 - S p_0
    p_(k+1) = A p_k - S (d - 1) / d p_(k-1)

so that no node's own label comes back to it over one edge; of edges that all weigh 1 these are the
numbers of such walks from a node to train nodes of each class. What a node is known by is, for each
of the K lengths, the share of each class and the logarithm of all.

Source: Alon, Benjamini, Lubetzky and Sodin, Commun. Contemp. Math. 9 (2007), section 2 (the
recursion).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from scipy.sparse import csr_array

from retexo_fl.graph.neighbours import row_sums_of

#: Logarithms of counts are divided by it, so that they are about as large as shares.
_LOGARITHMS: Final = 5.0


def train_labels(labels: np.ndarray, is_train: np.ndarray, classes: int) -> np.ndarray:
    """Return (N, C) Y of (N,) classes and an (N,) mask, float64."""
    rows = np.flatnonzero(is_train)
    found = np.zeros((len(labels), classes))
    found[rows, np.asarray(labels)[rows]] = 1.0
    return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Turns:
    """What is taken off so that walks do not turn back.

    Attributes:
        first: (N, 1) S.
        later: (N, 1) S (d - 1) / d.
    """

    first: np.ndarray
    later: np.ndarray

    @classmethod
    def of(cls, indptr: np.ndarray, weights: np.ndarray | None) -> Self:
        """Take all (E,) or (E, 2) edges of (N,) nodes."""
        neighbours = np.diff(indptr)
        squares: np.ndarray = neighbours.astype(np.float64)
        if weights is not None:
            rows = np.repeat(np.arange(len(neighbours)), neighbours)
            squares = row_sums_of(_both_ways(weights) ** 2, rows, len(neighbours))
        share = np.maximum(neighbours - 1, 0) / np.maximum(neighbours, 1)
        return cls(first=squares[:, None], later=(squares * share)[:, None])


def sums_along(
    indptr: np.ndarray,
    indices: np.ndarray,
    weights: np.ndarray | None,
    own: np.ndarray,
    received: np.ndarray,
) -> np.ndarray:
    """Return (N, C) A p of own (N, C) and received (B, C) rows, float64.

    Args:
        indptr: (N + 1,) places of each node's edges.
        indices: (E,) sources: own nodes, then slots.
        weights: (E,) or (E, 2); None for 1.
        own: p of the client's nodes.
        received: p of slots.
    """
    each = np.ones(len(indices)) if weights is None else _both_ways(weights)
    along = csr_array((each, indices, indptr), shape=(len(own), len(own) + len(received)))
    found: np.ndarray = along @ np.concatenate([own, received]).astype(np.float64)
    return found


def _both_ways(weights: np.ndarray) -> np.ndarray:
    """Return (E,) float64 of (E,) weights, or of both directions' (E, 2) together."""
    found: np.ndarray = weights.reshape(len(weights), -1).sum(axis=1, dtype=np.float64)
    return found


def next_sums(product: np.ndarray, kept: list[np.ndarray], turns: Turns) -> np.ndarray:
    """Return p_(k+1) of A p_k and p_0 to p_(k-1)."""
    if kept:
        product = product - (turns.first if len(kept) == 1 else turns.later) * kept[-1]
    return product


def label_columns(sums: list[np.ndarray]) -> np.ndarray:
    """Return the (N, K (C + 1)) columns of p_1 to p_K, float64."""
    found = []
    for each in sums:
        counts = np.maximum(each, 0.0)
        total = counts.sum(axis=1, keepdims=True)
        found.append(np.divide(counts, total, out=np.zeros_like(counts), where=total > 0))
        found.append(np.log1p(total) / _LOGARITHMS)
    return np.hstack(found)
