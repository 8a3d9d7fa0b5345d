from __future__ import annotations

import torch

from retexo_fl.layers.base import GraphLayer, StageInput
from retexo_fl.layers.sage import SageLayer
from tests.support.layer_contract import NODES, LayerContract


class TestSageLayer(LayerContract):
    layer = SageLayer

    def reference(self, layer: GraphLayer, inputs: StageInput) -> torch.Tensor:
        assert isinstance(layer, SageLayer)
        assert isinstance(inputs.own, torch.Tensor)
        means = torch.zeros_like(inputs.own)
        for node in range(NODES):
            sources = inputs.indices[inputs.indptr[node] : inputs.indptr[node + 1]]
            if len(sources):
                means[node] = inputs.own[torch.from_numpy(sources)].mean(dim=0)
        return torch.cat([inputs.own, means], dim=1) @ layer.weight + layer.bias
