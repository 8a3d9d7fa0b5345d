"""The edges along which a client's stage reads its own rows and the vectors it received."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy.sparse import csr_array

from retexo_fl.errors import PartitionError
from retexo_fl.graph.neighbours import PLAIN, EdgeValues, weighted_degrees
from retexo_fl.graph.parts.partition import GraphPartition


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageEdges:
    """Edges into inner nodes, from inner nodes and from slots of the received block.

    A slot is what one received vector lands in. Under the plan of rows it is a boundary node. A
    slot of a partial sum has one edge, which represents all neighbours in the sum.

    Attributes:
        indptr: [n + 1] int64: edges ``indptr[u]:indptr[u + 1]`` enter inner node u.
        indices: [e] integers, ascending in each row: below n an inner node, n + s slot s.
        neighbours: [e] how many neighbours each edge represents, or what these weigh; None for what
            the edge itself weighs.
        slot_hashes: [B] uint64 hashes of the slots' nodes; 0 for a partial sum, which is no node's.
        values: Weights and attributes of the e edges. A partial sum has its neighbours' weights in
            it, and the weight 1.
    """

    indptr: np.ndarray
    indices: np.ndarray
    neighbours: np.ndarray | None
    slot_hashes: np.ndarray
    values: EdgeValues = PLAIN

    @property
    def num_nodes(self) -> int:
        """Inner nodes: n."""
        return len(self.indptr) - 1

    @property
    def num_slots(self) -> int:
        """Length of the received block: B."""
        return len(self.slot_hashes)

    @property
    def neighbour_counts(self) -> np.ndarray:
        """[n] how many neighbours of each inner node the edges represent, or what these weigh.

        int64; float64 of weighted edges; [n, 2] of directed ones, incoming first.
        """
        if self.neighbours is None:
            return weighted_degrees(self.indptr, self.values)
        if self.values.weights is not None:
            return weighted_degrees(self.indptr, EdgeValues(weights=self.neighbours))
        ends: np.ndarray = np.concatenate(([0], np.cumsum(self.neighbours)))
        return np.diff(ends[self.indptr])

    @classmethod
    def of_rows(cls, partition: GraphPartition) -> Self:
        """Return the partition's own edges: a slot is a boundary node."""
        return cls(
            indptr=np.asarray(partition.indptr),
            indices=np.asarray(partition.indices),
            neighbours=None,
            slot_hashes=np.asarray(partition.boundary_hashes),
            values=partition.edge_values,
        )

    @classmethod
    def joined(
        cls,
        partition: GraphPartition,
        cut: np.ndarray,
        slots: np.ndarray,
        hashes: np.ndarray,
        is_sum: np.ndarray,
    ) -> Self:
        """Let edges to boundary nodes enter from slots; those with equal ends become one.

        Attributes are left out: what crosses in sums is read by no layer that needs them.

        Args:
            partition: The client's part.
            cut: [E] places of the edges to boundary nodes among the partition's edges.
            slots: [E] the slot that each of them is read from.
            hashes: [B] uint64 of the slots.
            is_sum: [B] bool, whether a slot is that of a partial sum.

        Raises:
            PartitionError: Edges have a direction: a node would need a sum for each.
        """
        inner, weights = partition.num_inner, partition.edge_values.weights
        if partition.edge_values.is_directed:
            raise PartitionError(
                f"client {partition.client}: edges have a direction; expected boundary-plan rows"
            )
        indices = np.array(partition.indices, dtype=np.int64)
        indices[cut] = inner + slots
        counts = np.ones(len(indices), dtype=np.int64) if weights is None else weights
        edges = csr_array(
            (counts.astype(np.result_type(counts, np.int64)), indices, np.array(partition.indptr)),
            shape=(inner, inner + len(hashes)),
        )
        edges.sum_duplicates()
        values = PLAIN
        if weights is not None:
            sums = np.concatenate((np.zeros(inner, dtype=bool), is_sum))[edges.indices]
            values = EdgeValues(weights=np.where(sums, 1, edges.data))
        return cls(
            indptr=edges.indptr.astype(np.int64),
            indices=edges.indices.astype(np.int64),
            neighbours=edges.data,
            slot_hashes=hashes,
            values=values,
        )

    def without(self, slots: np.ndarray) -> Self:
        """Leave out all edges from some slots."""
        absent = np.zeros(self.num_nodes + self.num_slots, dtype=bool)
        absent[self.num_nodes + slots] = True
        kept = ~absent[self.indices]
        return type(self)(
            indptr=np.concatenate(([0], np.cumsum(kept)))[self.indptr],
            indices=self.indices[kept],
            neighbours=None if self.neighbours is None else self.neighbours[kept],
            slot_hashes=self.slot_hashes,
            values=self.values.taken(kept),
        )
