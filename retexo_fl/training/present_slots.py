"""The edges of a stage from those slots alone that a round's sample filled."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from retexo_fl.graph import BoundaryPlan
from retexo_fl.layers.base import StageInput
from retexo_fl.training.boundary_sampling import BoundaryDraw


def with_slots(inputs: StageInput, plan: BoundaryPlan, draw: BoundaryDraw) -> StageInput:
    """Leave out the plan's edges from slots that were not drawn."""
    absent = np.ones(plan.num_slots, dtype=bool)
    for peer in plan.peers:
        absent[peer.receive.slots[draw.mine[peer.peer]]] = False
    edges = plan.edges.without(absent.nonzero()[0])
    return replace(
        inputs,
        indptr=edges.indptr,
        indices=np.asarray(edges.indices, np.int64),
        neighbours=edges.neighbour_counts,
        edge_weights=edges.values.weights,
        edge_attributes=edges.values.attributes,
    )
