from __future__ import annotations

import numpy as np
import pytest
import torch

from retexo_fl.client.preparation import make_parts
from retexo_fl.client.stage_rows import stage_input
from retexo_fl.config import make_config
from retexo_fl.graph import BoundaryPlan
from retexo_fl.layers.base import LayerShape
from retexo_fl.layers.gat import GatLayer
from retexo_fl.training.boundary_sampling import BoundaryDraw, BoundarySampling, with_slots

KEYS = {"dataset": "synthetic:nodes=40,edges=120,classes=3,features=5", "clients": 3}


@pytest.mark.parametrize(
    ("scaled", "vectors", "factor"), [(True, 10, 10 / 3), (False, 10, 1.0), (True, 0, 1.0)]
)
def test_only_what_is_scaled_is_multiplied(scaled: bool, vectors: int, factor: float) -> None:
    sampling = BoundarySampling(rate=0.3, scaled=scaled, seed=1)
    assert sampling.factor(vectors) == pytest.approx(factor)


@pytest.mark.parametrize("rate", [0.1, 0.5, 1.0])
def test_attention_never_sees_what_was_not_drawn(rate: float) -> None:
    part = make_parts(make_config(KEYS))[0]
    plan = BoundaryPlan.from_partition(part)
    rng = np.random.default_rng(0)
    own, received = rng.normal(size=(part.num_inner, 4)), rng.normal(size=(plan.num_slots, 4))
    inputs = stage_input(part, plan, own, received, ())
    sampling = BoundarySampling(rate=rate, scaled=False, seed=1)
    mine = sampling.draw(plan, inputs.slot_hashes, 1)
    drawn = with_slots(inputs, plan, BoundaryDraw(mine=mine, theirs={}))

    slots = {int(s) for p in plan.peers for s in p.receive.slots[mine[p.peer]]}
    assert len(slots) == sum(sampling.size(p.receive.count) for p in plan.peers)
    for node in range(part.num_inner):
        before = inputs.indices[inputs.indptr[node] : inputs.indptr[node + 1]]
        kept = [s for s in before if s < part.num_inner or s - part.num_inner in slots]
        assert drawn.indices[drawn.indptr[node] : drawn.indptr[node + 1]].tolist() == kept
        assert drawn.neighbours[node] == len(kept)

    layer = GatLayer(LayerShape(inputs=4, outputs=2, hidden=4, heads=2)).double()
    layer.reset_parameters(torch.Generator().manual_seed(0))
    make = layer.trained_batches(drawn, np.arange(part.num_inner))
    absent = [s for s in range(plan.num_slots) if s not in slots]
    stacked = torch.from_numpy(np.concatenate([own, received])).requires_grad_()
    rows = layer(make(stacked), None)
    (gradient,) = torch.autograd.grad(rows.sum(), stacked)
    assert not gradient[part.num_inner :][absent].any()
    assert gradient[part.num_inner :][sorted(slots)].any(dim=1).all()
