"""The edges of a stage from those slots alone that a round's sample filled."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from retexo_fl.graph import BoundaryPlan
from retexo_fl.layers.base import StageInput
from retexo_fl.training.boundary_sampling import BoundaryDraw


def with_slots(inputs: StageInput, plan: BoundaryPlan, draw: BoundaryDraw | None) -> StageInput:
    """Leave out edges from slots that were not drawn, under a plan of rows."""
    assert draw is not None
    nodes = inputs.num_nodes
    present = np.zeros(nodes + len(inputs.slot_hashes), dtype=bool)
    present[:nodes] = True
    for peer in plan.peers:
        present[nodes + peer.receive.slots[draw.mine[peer.peer]]] = True
    kept = present[inputs.indices]
    indptr = np.concatenate(([0], np.cumsum(kept)))[inputs.indptr]
    return replace(inputs, indptr=indptr, indices=inputs.indices[kept], neighbours=np.diff(indptr))
