"""The graph that samplers read: for each node, in ascending order, whose messages reach it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from scipy.sparse import coo_array

from retexo_fl.additions.devices.locality import near_ranks
from retexo_fl.errors import DatasetError

_INT32_MAX: Final = int(np.iinfo(np.int32).max)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adjacency:
    """N nodes and E directed edges, by target.

    Attributes:
        indptr: (N + 1,) int64: the neighbours of u are ``indices[indptr[u]:indptr[u + 1]]``.
        indices: (E,) int32, or int64 where N is beyond it; ascending in each row, no duplicates.
    """

    indptr: np.ndarray
    indices: np.ndarray

    def __post_init__(self) -> None:
        """Refuse what the kernels cannot read; the order within rows is the caller's word."""
        if self.indptr.dtype != np.int64 or self.indices.dtype not in (np.int32, np.int64):
            raise DatasetError(
                f"adjacency: got indptr of {self.indptr.dtype} and indices of "
                f"{self.indices.dtype}; expected int64, and int32 or int64"
            )
        if self.indptr.ndim != 1 or self.indices.ndim != 1 or not len(self.indptr):
            raise DatasetError("adjacency: expected indptr of (N + 1,) and indices of (E,)")
        if self.indptr[0] != 0 or self.indptr[-1] != len(self.indices):
            raise DatasetError(
                f"adjacency: indptr goes from {self.indptr[0]} to {self.indptr[-1]}; "
                f"expected 0 and {len(self.indices)}, the number of edges"
            )

    @property
    def num_nodes(self) -> int:
        """N."""
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        """E."""
        return len(self.indices)

    @property
    def degrees(self) -> np.ndarray:
        """(N,) int64: how many neighbours each node has."""
        return np.diff(self.indptr)

    @classmethod
    def from_edges(cls, sources: np.ndarray, targets: np.ndarray, *, num_nodes: int) -> Self:
        """Order edges by target; an edge given twice is one.

        Args:
            sources: (M,) integers below ``num_nodes``; messages go from source to target.
            targets: (M,) integers below ``num_nodes``.
            num_nodes: N.

        Raises:
            DatasetError: The arrays differ in length, or an end is no node.
        """
        _check_ends(sources, targets, num_nodes)
        ones = np.ones(len(sources), dtype=np.bool_)
        rows = coo_array((ones, (targets, sources)), shape=(num_nodes, num_nodes)).tocsr()
        rows.sum_duplicates()
        wide = num_nodes - 1 > _INT32_MAX
        return cls(
            indptr=rows.indptr.astype(np.int64),
            indices=rows.indices.astype(np.int64 if wide else np.int32),
        )

    def near_together(self, nodes: np.ndarray) -> np.ndarray:
        """Order (n,) nodes so that neighbours are near each other.

        Cut in contiguous pieces, mini-batches of such nodes share fewer neighbours between pieces.
        """
        ordered: np.ndarray = nodes[np.argsort(near_ranks(self.indptr, self.indices)[nodes])]
        return ordered

    def digest(self) -> bytes:
        """Return the identity of this graph: 32 bytes, SHA-256 of both arrays."""
        digest = hashlib.sha256(f"{self.num_nodes} {self.num_edges} {self.indices.dtype} ".encode())
        for array in (self.indptr, self.indices):
            digest.update(np.ascontiguousarray(array).data)
        return digest.digest()


def _check_ends(sources: np.ndarray, targets: np.ndarray, num_nodes: int) -> None:
    if sources.shape != targets.shape or sources.ndim != 1:
        raise DatasetError(
            f"adjacency: got {sources.shape} sources and {targets.shape} targets; "
            "expected one of each for every edge"
        )
    for name, ends in (("source", sources), ("target", targets)):
        if not len(ends):
            continue
        for end in (int(ends.min()), int(ends.max())):
            if not 0 <= end < num_nodes:
                raise DatasetError(
                    f"adjacency: {name} {end} is not a node; expected 0 to {num_nodes - 1}"
                )
