from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from retexo_fl.layers.base import GraphLayer, StageInput
from retexo_fl.layers.gat import GatLayer
from tests.support.layer_contract import (
    EDGE_FEATURES,
    NODES,
    OUTPUTS,
    LayerContract,
    edge_attributes,
    edge_weights,
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


def test_gat_hidden_state_is_one_head_wide() -> None:
    assert GatLayer.uses_heads
