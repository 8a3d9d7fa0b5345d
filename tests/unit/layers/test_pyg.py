"""PyG's convolutions as layers: the contract of every layer, and what PyG computes itself."""

from __future__ import annotations

import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest
import torch

from retexo_fl.errors import PluginError
from retexo_fl.layers.base import GraphLayer, LayerShape, StageInput
from retexo_fl.layers.named import layer_class, make_layer
from retexo_fl.layers.pyg import PygLayer, pyg_layer
from tests.support.layer_contract import (
    DROPOUT,
    NODES,
    OUTPUTS,
    WIDTH,
    LayerContract,
    built,
    carrying,
    cut_input,
    edge_attributes,
    edge_weights,
    run,
    whole_input,
    with_values,
)

with warnings.catch_warnings():
    # It compiles parts of itself by a function that torch calls outdated.
    warnings.simplefilter("ignore")
    from torch_geometric.nn import GCNConv


def edge_index(inputs: StageInput) -> torch.Tensor:
    """Return the edges into each node as PyG has them: sources, then targets."""
    targets = np.repeat(np.arange(NODES), np.diff(inputs.indptr))
    return torch.from_numpy(np.stack((inputs.indices, targets)))


class PygContract(LayerContract):
    """The reference is PyG's convolution on the whole graph."""

    def reference(self, layer: GraphLayer, inputs: StageInput) -> torch.Tensor:
        assert isinstance(layer, PygLayer)
        assert isinstance(inputs.own, torch.Tensor)
        given: dict[str, Any] = {}
        if inputs.edge_weights is not None and layer.takes_weights != "none":
            given["edge_weight"] = torch.from_numpy(inputs.edge_weights)
        if inputs.edge_attributes is not None:
            given["edge_attr"] = torch.from_numpy(inputs.edge_attributes)
        result: torch.Tensor = self.theirs(layer)(inputs.own, edge_index(inputs), **given)
        return result

    def theirs(self, layer: PygLayer) -> Any:
        """Return PyG's convolution with the layer's parameters."""
        return layer.conv


class TestGcnConv(PygContract):
    layer = pyg_layer("pyg:GCNConv")

    def theirs(self, layer: PygLayer) -> Any:
        conv = GCNConv(WIDTH, OUTPUTS).double()
        conv.load_state_dict(layer.conv.state_dict())
        return conv


class TestSageConv(PygContract):
    layer = pyg_layer("pyg:SAGEConv")


class TestGraphConv(PygContract):
    layer = pyg_layer("pyg:GraphConv")


class TestGatConv(PygContract):
    layer = pyg_layer("pyg:GATConv")


class TestGatv2Conv(PygContract):
    layer = pyg_layer("pyg:GATv2Conv")


class TestTransformerConv(PygContract):
    layer = pyg_layer("pyg:TransformerConv")


class TestGinConv(PygContract):
    layer = pyg_layer("pyg:GINConv")


class TestGineConv(PygContract):
    layer = pyg_layer("pyg:GINEConv")


@pytest.mark.parametrize("name", ["SAGEConv", "GraphConv", "GATv2Conv", "GCNConv"])
def test_of_directed_edges_what_comes_in_is_read(name: str) -> None:
    layer_type = pyg_layer(f"pyg:{name}")
    layer, there = built(layer_type), np.random.default_rng(1).random((NODES, NODES)) < 0.5
    directed = with_values(whole_input(3), there.astype(float), directed=True)
    if layer_type.attributes != "none":
        directed = carrying(directed, 3)
    assert isinstance(layer, PygLayer)
    assert isinstance(directed.own, torch.Tensor)
    sources, targets = edge_weights(directed, 0).T.nonzero()
    index = torch.from_numpy(np.stack((sources, targets)))
    given: dict[str, Any] = {}
    conv: Any = layer.conv
    if name == "GCNConv":
        conv = TestGcnConv().theirs(layer)
    if directed.edge_attributes is not None:
        given["edge_attr"] = torch.from_numpy(edge_attributes(directed, 0)[targets, sources])
    result = run(layer, directed, np.arange(NODES), drop=False)
    torch.testing.assert_close(result, conv(directed.own, index, **given), rtol=1e-9, atol=1e-9)
    # What crosses is scaled by what comes in, too.
    inner = np.arange(0, NODES, 2)
    part = run(layer, cut_input(directed, inner, layer_type), np.arange(len(inner)), drop=False)
    torch.testing.assert_close(part, result[inner], rtol=1e-9, atol=1e-9)


def test_parameters_follow_the_generator_and_leave_the_global_one_alone() -> None:
    first, again, other = (built(pyg_layer("pyg:GATv2Conv"), seed) for seed in (0, 0, 1))
    before = torch.random.get_rng_state()
    first.reset_parameters(torch.Generator().manual_seed(0))
    again.reset_parameters(torch.Generator().manual_seed(0))
    assert torch.equal(torch.random.get_rng_state(), before)
    # Whatever was drawn elsewhere meanwhile.
    torch.rand(1)
    again.reset_parameters(torch.Generator().manual_seed(0))
    one, two, three = (
        torch.cat([item.reshape(-1) for item in layer.parameters()])
        for layer in (first, again, other)
    )
    assert torch.equal(one, two)
    assert not torch.equal(one, three)


def test_weights_are_taken_as_the_convolutions_take_them() -> None:
    """Below zero, too, where nothing is divided by their sum."""
    taken = {name: pyg_layer(f"pyg:{name}").takes_weights for name in ("GCNConv", "GraphConv")}
    assert taken == {"GCNConv": "positive", "GraphConv": "any"}


@pytest.mark.parametrize("name", ["ChebConv", "TAGConv", "SGConv", "APPNP"])
def test_what_needs_the_neighbourhood_of_boundary_nodes_is_refused(name: str) -> None:
    with pytest.raises(PluginError, match=f"model 'pyg:{name}': reads beyond a node's neighbours"):
        layer_class(f"pyg:{name}")


def test_what_is_not_known_is_refused() -> None:
    with pytest.raises(PluginError, match=r"'pyg:EdgeConv': is not known .*; expected one of GCNC"):
        layer_class("pyg:EdgeConv")


def test_without_pyg_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_geometric", None)
    with pytest.raises(PluginError, match=r"pyg:SAGEConv'.*pip install torch_geometric"):
        make_layer("pyg:SAGEConv", LayerShape(inputs=2, outputs=2, hidden=2))


def test_pyg_is_imported_when_it_is_asked_for() -> None:
    code = (
        "import sys; from retexo_fl.layers.named import layer_class; layer_class('sage'); "
        "layer_class('pyg:GATConv'); print('torch_geometric' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=500
    )
    assert done.stdout == "False\n"


def test_dropout_acts_on_input_rows_alone() -> None:
    layer, inputs = built(pyg_layer("pyg:SAGEConv")), whole_input(2)
    assert isinstance(inputs.own, torch.Tensor)
    assert isinstance(layer, PygLayer)
    dropped = DROPOUT.dense(inputs.own, inputs.own_hashes)
    expected = layer.conv(dropped, edge_index(inputs))
    result = run(layer, inputs, np.arange(NODES), drop=True)
    torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-12)
