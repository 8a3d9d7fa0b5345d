from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F

from retexo_fl.layers.base import GraphLayer, LayerShape, StageInput
from retexo_fl.layers.gin import GinLayer
from tests.support.layer_contract import (
    DROPOUT,
    HIDDEN,
    NODES,
    OUTPUTS,
    WIDTH,
    LayerContract,
    built,
    edge_weights,
    run,
    whole_input,
)


class TestGinLayer(LayerContract):
    layer = GinLayer

    def reference(self, layer: GraphLayer, inputs: StageInput) -> torch.Tensor:
        assert isinstance(layer, GinLayer)
        assert isinstance(inputs.own, torch.Tensor)
        rows = (1 + layer.epsilon) * inputs.own
        rows = rows + torch.from_numpy(edge_weights(inputs)) @ inputs.own
        inner = rows @ layer.first_weight + layer.first_bias
        mean, variance = inner.mean(1, keepdim=True), inner.var(1, correction=0, keepdim=True)
        inner = (inner - mean) / (variance + 1e-5).sqrt() * layer.norm.weight + layer.norm.bias
        return F.relu(inner) @ layer.weight + layer.bias


def test_epsilon_starts_at_zero_and_is_trained() -> None:
    layer = GinLayer(LayerShape(inputs=WIDTH, outputs=OUTPUTS, hidden=HIDDEN)).double()
    layer.reset_parameters(torch.Generator().manual_seed(0))
    assert layer.epsilon.tolist() == [0.0]
    result = run(layer, whole_input(0), np.arange(NODES), drop=False)
    (gradient,) = torch.autograd.grad(result[:, 0].sum(), layer.epsilon)
    assert gradient.item() != 0.0


def test_dropout_masks_the_input_and_the_rows_inside_separately() -> None:
    layer = GinLayer(LayerShape(inputs=WIDTH, outputs=HIDDEN, hidden=HIDDEN)).double()
    layer.reset_parameters(torch.Generator().manual_seed(0))
    with torch.no_grad():
        layer.weight.copy_(torch.eye(HIDDEN))
    inputs = whole_input(2)
    prepared = layer.prepare(inputs)
    assert isinstance(prepared.rows, torch.Tensor)
    mask = DROPOUT.dense(torch.ones_like(prepared.rows), inputs.own_hashes)
    own, sums = torch.split(prepared.rows * mask, WIDTH, dim=1)
    inner = F.relu(layer.norm((own + sums) @ layer.first_weight))
    inner_mask = (run(layer, inputs, np.arange(NODES), drop=True) / inner)[inner > 0]
    kept = inner_mask > 0
    torch.testing.assert_close(inner_mask[kept], torch.full_like(inner_mask[kept], 1 / 0.7))
    assert 0.5 < kept.double().mean() < 0.9
    assert not torch.equal(inner_mask, mask[:, :HIDDEN][inner > 0])


def test_neighbours_are_counted_though_rows_are_normalised() -> None:
    """Nodes whose neighbours are all alike differ by how many there are."""
    whole = whole_input(3)
    alike = replace(whole, own=torch.ones_like(torch.as_tensor(whole.own)))
    result = run(built(GinLayer), alike, np.arange(NODES), drop=False)
    degrees = np.diff(whole.indptr)
    for one in range(NODES):
        for other in range(one):
            same = torch.allclose(result[one], result[other], atol=1e-9)
            assert same == (degrees[one] == degrees[other])


def test_rows_of_a_hub_stay_of_the_size_of_others() -> None:
    """A sum over 10,000 neighbours does not become logits of that size."""
    neighbours = 10_000
    rows = np.random.default_rng(0).random((neighbours + 1, 7))
    inputs = replace(
        whole_input(0),
        own=torch.from_numpy(rows),
        indptr=np.concatenate(([0], np.arange(neighbours, 2 * neighbours + 1))),
        indices=np.concatenate((np.arange(1, neighbours + 1), np.zeros(neighbours, np.int64))),
        degrees=np.concatenate(([neighbours], np.ones(neighbours, np.int64))),
        own_hashes=np.arange(neighbours + 1, dtype=np.uint64),
    )
    result = run(built(GinLayer), inputs, np.array([0, 1]), drop=False).abs().amax(dim=1)
    assert result[0] < 10 * result[1]
