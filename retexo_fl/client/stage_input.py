"""What a stage reads, from a client's part and what its peers sent."""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse import csr_array

from retexo_fl.errors import PartitionError
from retexo_fl.exchange import Vectors
from retexo_fl.graph import BoundaryPlan, GraphPartition
from retexo_fl.layers.base import StageInput
from retexo_fl.training.layer_trainer import NodeSets
from retexo_fl.units import counted


def node_sets(partition: GraphPartition) -> NodeSets:
    """Return the labelled inner nodes by use."""
    return NodeSets(
        train=np.flatnonzero(partition.train_mask),
        validation=np.flatnonzero(partition.val_mask),
        test=np.flatnonzero(partition.test_mask),
        labels=np.asarray(partition.labels),
    )


def stage_input(
    partition: GraphPartition,
    plan: BoundaryPlan,
    rows: Vectors,
    received: Vectors,
    missing: tuple[int, ...],
) -> StageInput:
    """Join own rows, received vectors and the plan's edges; those to missing slots are left out.

    Args:
        partition: The client's part.
        plan: Its plan.
        rows: (N, H) own rows.
        received: (B, H) vectors of all slots, zero where missing; they become part of the input.
        missing: Peers without whom the exchange was closed.

    Raises:
        PartitionError: There are not as many rows as inner nodes.
    """
    edges = plan.edges
    if missing:
        edges = edges.without(np.concatenate([plan.peer(p).receive.slots for p in missing]))
    if rows.shape[0] != partition.num_inner:
        raise PartitionError(
            f"client {partition.client}: {counted(rows.shape[0], 'kept row')}; "
            f"expected {partition.num_inner}, one for each inner node"
        )
    return StageInput(
        own=_as_rows(rows),
        received=received if isinstance(received, csr_array) else torch.from_numpy(received),
        indptr=edges.indptr,
        indices=np.asarray(edges.indices, np.int64),
        neighbours=edges.neighbour_counts,
        degrees=np.asarray(partition.degrees),
        own_hashes=np.asarray(partition.node_hashes),
        slot_hashes=edges.slot_hashes,
        edge_weights=edges.values.weights,
        edge_attributes=edges.values.attributes,
    )


def _as_rows(vectors: Vectors) -> torch.Tensor | csr_array:
    if isinstance(vectors, np.ndarray):
        return torch.from_numpy(np.array(vectors, copy=True))
    return vectors
