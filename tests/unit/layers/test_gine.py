from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F

from retexo_fl.layers.base import GraphLayer, StageInput
from retexo_fl.layers.gine import GineLayer
from tests.support.layer_contract import (
    NODES,
    LayerContract,
    built,
    carrying,
    edge_attributes,
    edge_weights,
    run,
    whole_input,
    with_values,
)


class TestGineLayer(LayerContract):
    layer = GineLayer

    def reference(self, layer: GraphLayer, inputs: StageInput) -> torch.Tensor:
        assert isinstance(layer, GineLayer)
        assert isinstance(inputs.own, torch.Tensor)
        carried = torch.from_numpy(edge_attributes(inputs)) @ layer.edge_weight + layer.edge_bias
        messages = F.relu(inputs.own[None] + carried)
        weights = torch.from_numpy(edge_weights(inputs))
        rows = (1 + layer.epsilon) * inputs.own + torch.einsum("uv,uvd->ud", weights, messages)
        inner = rows @ layer.first_weight + layer.first_bias
        mean, variance = inner.mean(1, keepdim=True), inner.var(1, correction=0, keepdim=True)
        inner = (inner - mean) / (variance + 1e-5).sqrt() * layer.norm.weight + layer.norm.bias
        return F.relu(inner) @ layer.weight + layer.bias


def test_of_directed_edges_what_comes_in_is_read() -> None:
    layer, there = built(GineLayer), np.random.default_rng(1).random((NODES, NODES)) < 0.5
    directed = carrying(with_values(whole_input(3), there.astype(float), directed=True), 3)
    assert directed.edge_attributes is not None
    # The same edges as an undirected input in which only what comes in weighs anything.
    weights = edge_weights(directed, 0)
    incoming = with_values(whole_input(3), weights, directed=False)
    incoming = replace(incoming, edge_attributes=directed.edge_attributes[:, 0])
    expected = run(layer, incoming, np.arange(NODES), drop=True)
    result = run(layer, directed, np.arange(NODES), drop=True)
    torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-12)
