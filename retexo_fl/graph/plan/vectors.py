"""What two clients send each other in an exchange: rows, and sums of rows for one destination."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from scipy.sparse import csr_array, vstack

from retexo_fl.graph.features import Features

_DIGEST_BYTES: Final = hashlib.sha256().digest_size


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PartialSums:
    """Sums of inner nodes' rows, each for one node of a peer.

    Attributes:
        indptr: [t + 1] int64: sum i is over ``members[indptr[i]:indptr[i + 1]]``, at least one.
        members: [z] int64 inner nodes, ascending within a sum.
        weights: [z] by which each is multiplied; None for 1.
    """

    indptr: np.ndarray
    members: np.ndarray
    weights: np.ndarray | None = None

    @property
    def count(self) -> int:
        """Number of sums: t."""
        return len(self.indptr) - 1

    @property
    def are_rows(self) -> bool:
        """Whether each sum is of one row, as it is."""
        return len(self.members) == self.count and self.weights is None

    @classmethod
    def joined(cls, sums: Sequence[PartialSums]) -> Self:
        """Return all sums of some, one after the other; all have weights, or none has."""
        starts = np.cumsum([0, *(len(some.members) for some in sums[:-1])])
        weights = [some.weights for some in sums if some.weights is not None]
        return cls(
            indptr=np.concatenate(
                [[0], *(some.indptr[1:] + at for some, at in zip(sums, starts, strict=True))]
            ),
            members=np.concatenate([some.members for some in sums]),
            weights=np.concatenate(weights) if weights else None,
        )

    def gather(self, matrix: Features) -> Features:
        """Return the [t, H] sums of an [n, H] matrix's rows."""
        if self.are_rows:
            return matrix[self.members]
        factors = self._factors(matrix.dtype)
        shape = (self.count, matrix.shape[0])
        chosen = csr_array((factors, self.members, self.indptr), shape=shape)
        sums = chosen @ matrix
        if isinstance(sums, np.ndarray):
            return sums
        # Rows may cancel out; what an exchange carries has no explicit zeros and sorted columns.
        result = csr_array(sums)
        result.eliminate_zeros()
        result.sort_indices()
        return result

    def spread(self, gradients: np.ndarray, into: np.ndarray) -> None:
        """Add each of [t, H] ``gradients`` to the rows of [n, H] ``into`` that its sum is over."""
        rows, places = np.unique(self.members, return_inverse=True)
        sums = np.repeat(np.arange(self.count), np.diff(self.indptr))
        factors = self._factors(gradients.dtype)
        into[rows] += (
            csr_array((factors, (places, sums)), shape=(len(rows), self.count)) @ gradients
        )

    def _factors(self, dtype: np.dtype) -> np.ndarray:
        if self.weights is None:
            return np.ones(len(self.members), dtype=dtype)
        return self.weights.astype(dtype)


def stacked(parts: Sequence[Features]) -> Features:
    """Put matrices of equal width below each other, CSR if the first is."""
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    return csr_array(vstack(parts, format="csr"))


def is_everything(rows: np.ndarray, count: int) -> bool:
    """Return whether rows are all of so many, in order."""
    return len(rows) == count and np.array_equal(rows, np.arange(count))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OutgoingVectors:
    """What a client sends to one peer in every exchange: first rows, then sums.

    A row is that of an inner node which has an edge to a node of the peer; rows ascend by node key,
    sums by the key of the peer's node that they are for.

    Attributes:
        rows: [k] int64 inner nodes.
        sums: None under the plan of rows.
    """

    rows: np.ndarray
    sums: PartialSums | None = None

    @property
    def count(self) -> int:
        """Number of vectors: s."""
        return len(self.rows) + (self.sums.count if self.sums is not None else 0)

    @property
    def targets(self) -> np.ndarray:
        """[s] int64 inner node into which alone the gradient of each vector goes; -1 for a sum."""
        if self.sums is None:
            return self.rows
        return np.concatenate((self.rows, np.full(self.sums.count, -1, dtype=np.int64)))

    def gather(self, matrix: Features) -> Features:
        """Return the [s, H] vectors of an [n, H] matrix of all inner nodes' rows."""
        # A client of one node sends all that it has; choosing from a sparse matrix takes a while.
        rows = matrix if is_everything(self.rows, matrix.shape[0]) else matrix[self.rows]
        if self.sums is None:
            return rows
        return stacked([rows, self.sums.gather(matrix)])

    def spread(self, gradients: np.ndarray, into: np.ndarray) -> None:
        """Carry gradients from the vectors back to the rows: the transpose of :meth:`gather`.

        Sums go in a fixed order: rows first, then sums by their number.

        Args:
            gradients: [s, H] with respect to the vectors.
            into: [n, H] of all inner nodes, same dtype; what is found is added to it in place.
        """
        into[self.rows] += gradients[: len(self.rows)]
        if self.sums is not None:
            self.sums.spread(gradients[len(self.rows) :], into)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IncomingVectors:
    """What a client receives from one peer in every exchange.

    Attributes:
        slots: [r] int64 place of each vector in the received block, ascending.
        targets: [r] int64 inner node that a sum is for, which may be that of other peers' sums,
            too; -1 for a row. None where all are rows.
    """

    slots: np.ndarray
    targets: np.ndarray | None = None

    @property
    def count(self) -> int:
        """Number of vectors: r."""
        return len(self.slots)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerPlan:
    """What goes to and comes from one peer.

    Attributes:
        peer: Client index.
        num_edges: Edges between a node of this client and one of the peer, as this client lists
            them.
        digest: 32 bytes over the plan's kind and those edges. Vectors and their order follow from
            the two, so equal digests prove that both ends mean the same vectors.
        send: What goes to the peer.
        receive: What comes from it.
    """

    peer: int
    num_edges: int
    digest: bytes
    send: OutgoingVectors
    receive: IncomingVectors

    @classmethod
    def of_stranger(cls, peer: int) -> Self:
        """Return the plan for a client with which no edge is shared: nothing is sent."""
        none = np.empty(0, dtype=np.int64)
        return cls(
            peer=peer,
            num_edges=0,
            digest=bytes(_DIGEST_BYTES),
            send=OutgoingVectors(rows=none),
            receive=IncomingVectors(slots=none),
        )


def with_sums(
    matrix: Features, peers: Sequence[PeerPlan]
) -> tuple[Features, dict[int, np.ndarray]]:
    """Return all vectors that any peer gets, and by peer which of them.

    Args:
        matrix: [n, H] rows of all inner nodes.
        peers: Who gets vectors.

    Returns:
        [n + t, H]: the rows, and below them all sums, made at once and to the bit what
        :meth:`OutgoingVectors.gather` makes for each peer; by peer, the [s] places of its vectors.
    """
    places = {peer.peer: peer.send.rows for peer in peers}
    sums = {peer.peer: peer.send.sums for peer in peers if peer.send.sums is not None}
    parts, count = [matrix], matrix.shape[0]
    for are_rows in (True, False):
        group = {peer: some for peer, some in sums.items() if some.are_rows == are_rows}
        if not group:
            continue
        parts.append(PartialSums.joined([*group.values()]).gather(matrix))
        for peer, some in group.items():
            places[peer] = np.append(places[peer], np.arange(count, count + some.count))
            count += some.count
    return stacked(parts), places
