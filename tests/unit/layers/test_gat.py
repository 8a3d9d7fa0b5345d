from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from retexo_fl.layers.base import GraphLayer, StageInput
from retexo_fl.layers.directed import DirGatLayer
from retexo_fl.layers.gat import GatLayer
from tests.support.layer_contract import (
    DROPOUT,
    EDGE_FEATURES,
    NODES,
    OUTPUTS,
    LayerContract,
    built,
    edge_attributes,
    edge_weights,
    run,
)


class TestGatLayer(LayerContract):
    layer = GatLayer

    def reference(self, layer: GraphLayer, inputs: StageInput) -> torch.Tensor:
        assert isinstance(layer, GatLayer)
        assert isinstance(inputs.own, torch.Tensor)
        values = (inputs.own @ layer.weight).view(NODES, 3, OUTPUTS)
        result = torch.zeros(NODES, OUTPUTS, dtype=torch.float64)
        for node in range(NODES):
            sources = [*inputs.indices[inputs.indptr[node] : inputs.indptr[node + 1]], node]
            carried = edge_attributes(inputs)[node][sources[:-1]]
            there = edge_weights(inputs)[node][sources[:-1]] != 0
            mean = carried[there].mean(axis=0) if there.any() else np.zeros(EDGE_FEATURES)
            carried = np.concatenate((carried, [mean]))
            for head in range(3):
                own = values[node, head] @ layer.target_attention[head]
                logits = (
                    torch.stack(
                        [values[v, head] @ layer.source_attention[head] + own for v in sources]
                    )
                    + torch.from_numpy(carried) @ layer.edge_attention[:, head]
                )
                powers = torch.exp(F.leaky_relu(logits, 0.2)) * torch.from_numpy(
                    np.append(edge_weights(inputs)[node][sources[:-1]], 1.0)
                )
                weights = powers / powers.sum()
                for weight, source in zip(weights, sources, strict=True):
                    result[node] += weight * values[source, head] / 3
        return result + layer.bias


class _Directed(LayerContract):
    layer = DirGatLayer


@pytest.mark.parametrize("contract", [TestGatLayer, _Directed])
def test_no_logit_is_so_large_that_others_are_lost(contract: type[LayerContract]) -> None:
    """Not even that of an edge which weighs nothing."""
    made = contract()
    inputs = made.whole(3, "valued")
    assert isinstance(inputs.own, torch.Tensor)
    assert inputs.edge_weights is not None
    weights = inputs.edge_weights.copy()
    weights[::2] = 0
    large = replace(inputs, own=1e6 * inputs.own, edge_weights=weights)
    assert torch.isfinite(run(built(made.layer), large, np.arange(NODES), drop=False)).all()


def test_dropout_knows_an_edge_by_where_it_comes_from_and_leads_to() -> None:
    made = _Directed()
    layer, inputs = built(made.layer), made.whole(3, "plain")
    assert isinstance(layer, DirGatLayer)
    batch = layer.batch(layer.prepare(inputs), np.arange(NODES))
    for attended in (batch.incoming, batch.outgoing):
        ends = attended.hashes[attended.targets.numpy()][attended.edges.rows.numpy()]
        others = attended.hashes[attended.edges.columns.numpy()]
        along = (others, ends) if attended is batch.incoming else (ends, others)
        ones = torch.ones(len(ends), 3)
        assert torch.equal(attended.dropped(ones, DROPOUT), DROPOUT.attention(ones, *along))


def test_gat_hidden_state_is_one_head_wide() -> None:
    assert GatLayer.uses_heads
