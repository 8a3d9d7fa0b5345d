from __future__ import annotations

import numpy as np
import torch

from retexo_fl.layers.base import GraphLayer, StageInput
from retexo_fl.layers.gcn import GcnLayer
from tests.support.layer_contract import NODES, LayerContract, edge_weights


class TestGcnLayer(LayerContract):
    layer = GcnLayer

    def reference(self, layer: GraphLayer, inputs: StageInput) -> torch.Tensor:
        assert isinstance(layer, GcnLayer)
        assert isinstance(inputs.own, torch.Tensor)
        with_self = torch.from_numpy(edge_weights(inputs)) + torch.eye(NODES, dtype=torch.float64)
        root = with_self.sum(dim=1).rsqrt().diag()
        return root @ with_self @ root @ inputs.own @ layer.weight + layer.bias


def test_message_scale_is_inverse_root_of_degree_with_self() -> None:
    np.testing.assert_allclose(GcnLayer.message_scale(np.array([0, 3, 8])), [1.0, 0.5, 1 / 3])
