from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F

from retexo_fl.layers.base import GraphLayer, LayerShape, StageInput
from retexo_fl.layers.sage_pool import SagePoolLayer
from tests.support.layer_contract import (
    HIDDEN,
    NODES,
    WIDTH,
    LayerContract,
    built,
    cut_input,
    run,
    whole_input,
)


class TestSagePoolLayer(LayerContract):
    layer = SagePoolLayer

    def reference(self, layer: GraphLayer, inputs: StageInput) -> torch.Tensor:
        assert isinstance(layer, SagePoolLayer)
        assert isinstance(inputs.own, torch.Tensor)
        pooled = F.relu(inputs.own @ layer.pool_weight + layer.pool_bias)
        maxima = torch.zeros(NODES, HIDDEN, dtype=torch.float64)
        for node in range(NODES):
            sources = inputs.indices[inputs.indptr[node] : inputs.indptr[node + 1]]
            if len(sources):
                maxima[node] = pooled[torch.from_numpy(sources)].amax(dim=0)
        return torch.cat([inputs.own, maxima], dim=1) @ layer.weight + layer.bias


def test_node_without_neighbours_reads_zeros() -> None:
    layer, inputs = built(SagePoolLayer), whole_input(0)
    assert isinstance(layer, SagePoolLayer)
    assert isinstance(inputs.own, torch.Tensor)
    assert inputs.indptr[1] == 0
    result = run(layer, inputs, np.array([0]), drop=False)
    expected = inputs.own[:1] @ layer.weight[:WIDTH] + layer.bias
    torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-12)


def test_of_equal_neighbours_that_of_the_least_hash_is_trained() -> None:
    """Two neighbours give the maximum; what differs between them has no weight yet."""
    for hashes, winner in (([7, 8, 9], 1), ([7, 9, 8], 2)):
        gradient = _pool_gradient(_star(hashes), np.array([0]))
        assert gradient[0].tolist() == [float(winner)] * 2
        assert gradient[1].tolist() == [10.0, 10.0]


def test_equal_neighbours_train_the_same_weights_anywhere() -> None:
    for hashes in ([7, 8, 9], [7, 9, 8]):
        whole = _star(hashes)
        expected = _pool_gradient(whole, np.array([0]))
        assert isinstance(whole.own, torch.Tensor)
        for received in ([1], [2], [1, 2], [2, 1]):
            order = [0, *(n for n in (1, 2) if n not in received), *received]
            inner = order[: 3 - len(received)]
            part = replace(
                whole,
                own=whole.own[inner],
                received=whole.own[received],
                indptr=np.array([0, 2, *[2] * (len(inner) - 1)]),
                indices=np.array([1, 2]),
                degrees=whole.degrees[inner],
                own_hashes=whole.own_hashes[inner],
                slot_hashes=whole.own_hashes[received],
            )
            torch.testing.assert_close(_pool_gradient(part, np.array([0])), expected)


def test_gradient_of_cut_graph_equals_whole_under_ties() -> None:
    """Rows of small whole numbers tie everywhere."""
    whole = whole_input(7)
    rng = np.random.default_rng(7)
    whole = replace(whole, own=torch.from_numpy(rng.integers(0, 2, (NODES, WIDTH)) * 1.0))
    layer = built(SagePoolLayer)
    assert isinstance(layer, SagePoolLayer)
    with torch.no_grad():
        layer.pool_weight.copy_(torch.from_numpy(rng.integers(0, 2, (WIDTH, HIDDEN)) * 1.0))
    expected = _gradients(layer, whole, np.arange(NODES))
    inner = [np.arange(0, NODES, 2), np.arange(1, NODES, 2)]
    parts = [
        _gradients(layer, cut_input(whole, nodes, SagePoolLayer), np.arange(len(nodes)))
        for nodes in inner
    ]
    for one, other, both in zip(*parts, expected, strict=True):
        torch.testing.assert_close(one + other, both, rtol=1e-12, atol=1e-12)


def _gradients(
    layer: SagePoolLayer, inputs: StageInput, rows: np.ndarray
) -> tuple[torch.Tensor, ...]:
    result = run(layer, inputs, rows, drop=False)
    return torch.autograd.grad((result**2).sum(), list(layer.parameters()))


def _star(hashes: list[int]) -> StageInput:
    """Return node 0 with neighbours 1 and 2, whose rows are [1, 10] and [2, 10]."""
    return StageInput(
        own=torch.tensor([[0.0, 0.0], [1.0, 10.0], [2.0, 10.0]], dtype=torch.float64),
        received=torch.zeros(0, 2, dtype=torch.float64),
        indptr=np.array([0, 2, 2, 2]),
        indices=np.array([1, 2]),
        neighbours=np.array([2, 0, 0]),
        degrees=np.array([2, 1, 1]),
        own_hashes=np.array(hashes, dtype=np.uint64),
        slot_hashes=np.zeros(0, np.uint64),
    )


def _pool_gradient(inputs: StageInput, rows: np.ndarray) -> torch.Tensor:
    """Return the (2, 2) gradient of V, which reads the second column only."""
    layer = SagePoolLayer(LayerShape(inputs=2, outputs=1, hidden=2)).double()
    with torch.no_grad():
        layer.pool_weight.copy_(torch.tensor([[0.0, 0.0], [1.0, 1.0]]))
        for parameter in (layer.pool_bias, layer.bias):
            parameter.zero_()
        layer.weight.fill_(1.0)
    result = run(layer, inputs, rows, drop=False)
    return torch.autograd.grad(result.sum(), layer.pool_weight)[0]
