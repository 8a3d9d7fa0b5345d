from __future__ import annotations

import torch

from retexo_fl.layers.base import GraphLayer, StageInput
from retexo_fl.layers.sage import SageLayer
from tests.support.layer_contract import NODES, LayerContract, edge_weights


class TestSageLayer(LayerContract):
    layer = SageLayer

    def reference(self, layer: GraphLayer, inputs: StageInput) -> torch.Tensor:
        assert isinstance(layer, SageLayer)
        assert isinstance(inputs.own, torch.Tensor)
        means = torch.zeros_like(inputs.own)
        for node in range(NODES):
            weights = torch.from_numpy(edge_weights(inputs)[node])
            if weights.sum():
                means[node] = weights @ inputs.own / weights.sum()
        return torch.cat([inputs.own, means], dim=1) @ layer.weight + layer.bias
