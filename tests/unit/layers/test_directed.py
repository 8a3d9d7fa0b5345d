from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from retexo_fl.layers.aggregate import linear
from retexo_fl.layers.base import GraphLayer, StageInput
from retexo_fl.layers.directed import (
    DirectedSums,
    DirGatLayer,
    DirGcnLayer,
    DirGinLayer,
    DirSageLayer,
)
from retexo_fl.layers.gat import GatAttention
from tests.support.layer_contract import (
    DROPOUT,
    NODES,
    OUTPUTS,
    WIDTH,
    LayerContract,
    built,
    edge_attributes,
    edge_weights,
    run,
)


def sides_of(inputs: StageInput) -> list[torch.Tensor]:
    """Return the weights of what comes to each node, and of what goes from it."""
    return [torch.from_numpy(edge_weights(inputs, side)) for side in (0, 1)]


def inverse_root(degrees: torch.Tensor) -> torch.Tensor:
    return torch.where(degrees > 0, degrees.rsqrt(), 0).diag()


class TestDirGcnLayer(LayerContract):
    layer = DirGcnLayer

    def reference(self, layer: GraphLayer, inputs: StageInput) -> torch.Tensor:
        assert isinstance(layer, DirGcnLayer)
        assert isinstance(inputs.own, torch.Tensor)
        came, went = sides_of(inputs)
        into, out = inverse_root(came.sum(dim=1)), inverse_root(went.sum(dim=1))
        rows = [inputs.own, into @ came @ out @ inputs.own, out @ went @ into @ inputs.own]
        return torch.cat(rows, dim=1) @ layer.weight + layer.bias


class TestDirSageLayer(LayerContract):
    layer = DirSageLayer

    def reference(self, layer: GraphLayer, inputs: StageInput) -> torch.Tensor:
        assert isinstance(layer, DirSageLayer)
        assert isinstance(inputs.own, torch.Tensor)
        rows = [inputs.own]
        for weights in sides_of(inputs):
            total = weights.sum(dim=1, keepdim=True)
            rows.append(torch.where(total > 0, weights @ inputs.own / total, 0))
        return torch.cat(rows, dim=1) @ layer.weight + layer.bias


class TestDirGinLayer(LayerContract):
    layer = DirGinLayer

    def reference(self, layer: GraphLayer, inputs: StageInput) -> torch.Tensor:
        assert isinstance(layer, DirGinLayer)
        assert isinstance(inputs.own, torch.Tensor)
        came, went = sides_of(inputs)
        rows = torch.cat([inputs.own, came @ inputs.own, went @ inputs.own], dim=1)
        inner = rows @ layer.first_weight + layer.first_bias
        mean, variance = inner.mean(1, keepdim=True), inner.var(1, correction=0, keepdim=True)
        inner = (inner - mean) / (variance + 1e-5).sqrt() * layer.norm.weight + layer.norm.bias
        return F.relu(inner) @ layer.weight + layer.bias


class TestDirGatLayer(LayerContract):
    layer = DirGatLayer

    def reference(self, layer: GraphLayer, inputs: StageInput) -> torch.Tensor:
        assert isinstance(layer, DirGatLayer)
        assert isinstance(inputs.own, torch.Tensor)
        result = inputs.own @ layer.weight + layer.bias
        for side, attention in enumerate((layer.incoming, layer.outgoing)):
            result = result + attended(attention, inputs, side)
        return result


def attended(layer: GatAttention, inputs: StageInput, side: int) -> torch.Tensor:
    assert isinstance(inputs.own, torch.Tensor)
    values = (inputs.own @ layer.weight).view(NODES, 3, OUTPUTS)
    weights, carried = edge_weights(inputs, side), edge_attributes(inputs, side)
    result = torch.zeros(NODES, OUTPUTS, dtype=torch.float64)
    for node in range(NODES):
        sources = np.flatnonzero(weights[node])
        for head in range(3):
            own = values[node, head] @ layer.target_attention[head]
            logits = values[sources, head] @ layer.source_attention[head] + own
            logits = (
                logits + torch.from_numpy(carried[node][sources]) @ layer.edge_attention[:, head]
            )
            powers = torch.exp(F.leaky_relu(logits, 0.2)) * torch.from_numpy(weights[node][sources])
            if len(sources):
                result[node] += powers / powers.sum() @ values[sources, head] / 3
    return result


def test_dropout_acts_on_own_rows_and_on_rows_and_attention_of_both_directions() -> None:
    layer, inputs = built(DirGatLayer), TestDirGatLayer().whole(3, "plain")
    assert isinstance(layer, DirGatLayer)
    batch = layer.batch(layer.prepare(inputs), np.arange(NODES))
    expected = linear(batch.rows, batch.hashes, layer.weight, DROPOUT) + layer.bias
    for attention, edges in ((layer.incoming, batch.incoming), (layer.outgoing, batch.outgoing)):
        values = attention.values_of(edges, DROPOUT)
        assert not torch.equal(values, attention.values_of(edges, None))
        parts = (attention.source_attention, attention.target_attention)
        there, here = ((values * part).sum(dim=2) for part in parts)
        ends = there, here.index_select(0, edges.targets)
        dropped = attention.summed(edges, values, ends, DROPOUT)
        assert not torch.equal(dropped, attention.summed(edges, values, ends, None))
        expected = expected + dropped
    torch.testing.assert_close(layer(batch, DROPOUT), expected)


@pytest.mark.parametrize("kind", [DirGcnLayer, DirSageLayer])
def test_a_head_is_applied_to_the_mean_of_own_row_and_both_aggregates(
    kind: type[DirectedSums],
) -> None:
    layer = built(kind)
    assert isinstance(layer, DirectedSums)
    inputs = TestDirGcnLayer().whole(3, "valued")
    head, bias = (torch.randn(WIDTH, OUTPUTS).double(), torch.randn(OUTPUTS).double())
    assert layer.start_as(head, bias)
    rows = layer.aggregated(inputs)
    assert isinstance(rows, torch.Tensor)
    expected = rows.reshape(NODES, 3, WIDTH).mean(dim=1) @ head + bias
    torch.testing.assert_close(run(layer, inputs, np.arange(NODES), drop=False), expected)


def test_a_layer_with_a_hidden_map_does_not_start_as_a_head() -> None:
    layer = built(DirGinLayer)
    before = [parameter.clone() for parameter in layer.parameters()]
    assert not layer.start_as(torch.ones(WIDTH, OUTPUTS), torch.ones(OUTPUTS))
    assert all(map(torch.equal, before, layer.parameters()))


def test_factors_are_inverse_roots_of_both_degrees() -> None:
    found = DirGcnLayer.message_factors(np.array([[4.0, 0.0], [1.0, 16.0]]))
    assert found.tolist() == [[0.5, 0.0], [1.0, 0.25]]
