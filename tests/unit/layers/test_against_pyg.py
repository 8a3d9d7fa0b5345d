"""One client computes what PyG's own layers compute, on weighted, directed and attributed edges."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch

from retexo_fl.layers.base import GraphLayer, StageInput
from retexo_fl.layers.directed import DirSageLayer
from retexo_fl.layers.gat import GatLayer
from retexo_fl.layers.gcn import GcnLayer
from retexo_fl.layers.gine import GineLayer
from tests.support.layer_contract import (
    EDGE_FEATURES,
    HIDDEN,
    NODES,
    OUTPUTS,
    WIDTH,
    built,
    carrying,
    run,
    valued,
    whole_input,
    with_values,
)

with warnings.catch_warnings():
    # It compiles parts of itself by a function that torch calls outdated.
    warnings.simplefilter("ignore")
    from torch_geometric.nn import DirGNNConv, GATConv, GCNConv, GINEConv, SAGEConv


def edge_index(inputs: StageInput) -> torch.Tensor:
    """Return the edges into each node as PyG has them: sources, then targets."""
    targets = np.repeat(np.arange(NODES), np.diff(inputs.indptr))
    return torch.from_numpy(np.stack((inputs.indices, targets)))


def copied(into: Any, values: torch.Tensor) -> None:
    with torch.no_grad():
        into.copy_(values)


def compare(layer: GraphLayer, inputs: StageInput, theirs: torch.Tensor) -> None:
    ours = run(layer, inputs, np.arange(NODES), drop=False)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def own_rows(inputs: StageInput) -> torch.Tensor:
    assert isinstance(inputs.own, torch.Tensor)
    return inputs.own


def double(conv: Any) -> Any:
    return conv.double()


def test_gcn_with_weights() -> None:
    layer, inputs = built(GcnLayer), valued(whole_input(3), GcnLayer, 3)
    assert isinstance(layer, GcnLayer)
    assert inputs.edge_weights is not None
    conv = double(GCNConv(WIDTH, OUTPUTS))
    copied(conv.lin.weight, layer.weight.T)
    copied(conv.bias, layer.bias)
    weights = torch.from_numpy(inputs.edge_weights)
    compare(layer, inputs, conv(own_rows(inputs), edge_index(inputs), weights))


def test_gat_with_attributes() -> None:
    layer, inputs = built(GatLayer), carrying(whole_input(3), 3)
    assert isinstance(layer, GatLayer)
    assert inputs.edge_attributes is not None
    conv = double(GATConv(WIDTH, OUTPUTS, heads=3, concat=False, edge_dim=EDGE_FEATURES))
    copied(conv.lin.weight, layer.weight.T)
    copied(conv.att_src, layer.source_attention[None])
    copied(conv.att_dst, layer.target_attention[None])
    copied(conv.bias, layer.bias)
    # Two parameters whose product is ours: each head's first column holds it.
    first = torch.zeros(1, 3, OUTPUTS, dtype=torch.float64)
    first[:, :, 0] = 1
    copied(conv.att_edge, first)
    table = torch.zeros(3, OUTPUTS, EDGE_FEATURES, dtype=torch.float64)
    table[:, 0] = layer.edge_attention.T
    copied(conv.lin_edge.weight, table.view(3 * OUTPUTS, EDGE_FEATURES))
    carried = torch.from_numpy(inputs.edge_attributes)
    compare(layer, inputs, conv(own_rows(inputs), edge_index(inputs), carried))


def test_gine() -> None:
    layer, inputs = built(GineLayer), carrying(whole_input(3), 3)
    assert isinstance(layer, GineLayer)
    assert inputs.edge_attributes is not None
    inner = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, HIDDEN),
        torch.nn.LayerNorm(HIDDEN),
        torch.nn.ReLU(),
        torch.nn.Linear(HIDDEN, OUTPUTS),
    )
    conv = double(GINEConv(inner, train_eps=True, edge_dim=EDGE_FEATURES))
    copied(conv.lin.weight, layer.edge_weight.T)
    copied(conv.lin.bias, layer.edge_bias)
    copied(conv.eps, layer.epsilon)
    for module, weight, bias in (
        (inner[0], layer.first_weight.T, layer.first_bias),
        (inner[1], layer.norm.weight, layer.norm.bias),
        (inner[3], layer.weight.T, layer.bias),
    ):
        copied(module.weight, weight)
        copied(module.bias, bias)
    carried = torch.from_numpy(inputs.edge_attributes)
    compare(layer, inputs, conv(own_rows(inputs), edge_index(inputs), carried))


def test_dir_sage() -> None:
    there = np.random.default_rng(2).random((NODES, NODES)) < 0.5
    inputs = with_values(whole_input(3), there.astype(float), directed=True)
    layer = built(DirSageLayer)
    assert isinstance(layer, DirSageLayer)
    assert inputs.edge_weights is not None
    conv = double(DirGNNConv(SAGEConv(WIDTH, OUTPUTS, root_weight=False, bias=False), alpha=0.3))
    own, came, went = torch.split(layer.weight, WIDTH)
    # What comes in is weighed by 1 - alpha, what goes out by alpha.
    copied(conv.conv_in.lin_l.weight, came.T / 0.7)
    copied(conv.conv_out.lin_l.weight, went.T / 0.3)
    copied(conv.lin.weight, own.T)
    copied(conv.lin.bias, layer.bias)
    directed = edge_index(inputs)[:, torch.from_numpy(inputs.edge_weights[:, 0] != 0)]
    compare(layer, inputs, conv(own_rows(inputs), directed))
