"""A trained model called as PyG calls one: with gradients, and explained by its explainers."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import retexo_fl
from retexo_fl.errors import ConfigurationError
from tests.integration.test_python_model import KEYS, NODES, as_data, write_graph

with warnings.catch_warnings():
    # PyTorch deprecates what PyG does when it is imported.
    warnings.simplefilter("ignore")
    from torch_geometric.explain import Explainer, GNNExplainer
    from torch_geometric.explain.algorithm.utils import clear_masks, set_masks
    from torch_geometric.nn import GCNConv

MODELS: list[dict[str, Any]] = [
    {"model": "gcn"},
    {"model": "sage"},
    {"model": "gcn", "profile": "retexo"},
    {"model": "sage", "profile": "retexo", "feature_normalisation": "l2"},
    {"model": "gcn", "profile": "lean", "basis_rows": "sums"},
    {"model": "gin", "profile": "retexo", "feature_normalisation": "row"},
    {"model": "gat", "profile": "retexo"},
    {"model": "sage-pool", "profile": "retexo"},
    {"model": "gine", "profile": "retexo"},
    {"model": "pyg:GATv2Conv", "profile": "retexo"},
    {"model": "pyg:GCNConv", "profile": "retexo"},
    {"model": "gcn", "profile": "one-shot"},
    {"model": "sage", "algorithm": "standard"},
    {"model": "gcn", "task": "regression"},
    {"model": "gcn", "task": "links"},
    {"model": "gat", "task": "links"},
    *({"model": f"dir-{name}", "edges_are": "directed"} for name in ("gcn", "sage", "gin", "gat")),
    {"model": "pyg:GCNConv", "edges_are": "directed", "profile": "retexo"},
]


def trained(folder: Path, keys: dict[str, Any]) -> tuple[Any, Any]:
    """Return a model and the graph it was trained on, its nodes in an order that keys have not."""
    path = write_graph(folder, task=keys.get("task", "classes"))
    # Wide enough that a head's rows, which are normalised, are more than one number.
    keys = {**KEYS, "hidden": 32, **keys}
    run = retexo_fl.run(data_dir=folder, out=folder / "run", **keys)
    data = as_data(path)
    if "edges_are" in keys:
        count = data.edge_index.shape[1] // 2
        data.edge_index = data.edge_index[:, :count]
        data.edge_weight, data.edge_attr = data.edge_weight[:count], data.edge_attr[:count]
    return run.model(), data


def called(model: Any, data: Any, x: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = model(
        x, data.edge_index, edge_weight=data.edge_weight, edge_attr=data.edge_attr
    )
    return found


@pytest.mark.parametrize("keys", MODELS, ids=lambda keys: "-".join(map(str, keys.values())))
@pytest.mark.each_choice
def test_gradients_and_edge_masks_reach_what_they_are_of(
    tmp_path: Path, keys: dict[str, Any]
) -> None:
    model, data = trained(tmp_path, keys)
    plain = model(data)
    scale = max(1.0, float(plain.abs().max()))
    assert not plain.requires_grad
    assert torch.equal(called(model, data, data.x), plain)
    x = data.x.clone().requires_grad_()
    found = called(model, data, x)
    assert (found - plain).abs().max() < 1e-5 * scale
    (gradient,) = torch.autograd.grad(found[7].square().sum(), x)
    # Of the node itself, and of others; of no node that is too far away to be read.
    assert gradient[7].any()
    assert gradient[torch.arange(NODES) != 7].any()
    # A mask of ones changes nothing, and one of zeros leaves each node alone with itself.
    edges = data.edge_index.shape[1]
    set_masks(model, torch.nn.Parameter(torch.ones(edges)), data.edge_index, apply_sigmoid=False)
    assert (called(model, data, data.x) - plain).abs().max() < 1e-4 * scale
    set_masks(model, torch.nn.Parameter(torch.zeros(edges)), data.edge_index, apply_sigmoid=False)
    (gradient,) = torch.autograd.grad(called(model, data, x)[7].square().sum(), x)
    assert not gradient[torch.arange(NODES) != 7].any()
    # The masks of the edges that lead to a node reach it.
    mask = torch.nn.Parameter(torch.zeros(edges))
    set_masks(model, mask, data.edge_index)
    out = called(model, data, data.x)
    (of_edges,) = torch.autograd.grad(out[7].square().sum(), mask)
    assert of_edges[(data.edge_index == 7).any(dim=0)].any()
    clear_masks(model)
    assert torch.equal(called(model, data, data.x), plain)


@pytest.mark.parametrize("keys", MODELS[:5], ids=lambda keys: "-".join(map(str, keys.values())))
@pytest.mark.each_choice
def test_pyg_explains_a_model(tmp_path: Path, keys: dict[str, Any]) -> None:
    model, data = trained(tmp_path, keys)
    explainer = Explainer(
        model,
        algorithm=GNNExplainer(epochs=5),
        explanation_type="model",
        node_mask_type="attributes",
        edge_mask_type="object",
        model_config={
            "mode": "multiclass_classification",
            "task_level": "node",
            "return_type": "raw",
        },
    )
    explanation = explainer(data.x, data.edge_index, index=7, edge_weight=data.edge_weight)
    assert explanation.validate()
    assert explanation.node_mask.shape == data.x.shape
    # What is not read within two hops has no part in it.
    near, rows = {7}, data.edge_index.T.tolist()
    for _ in range(2):
        near |= {source for source, target in rows if target in near}
    far = sorted({*range(NODES)} - near)
    assert far or near == {*range(NODES)}
    assert not explanation.node_mask[far].any()
    assert explanation.node_mask[sorted(near)].any()
    assert explanation.edge_mask[data.edge_index[1] == 7].any()
    assert not model._messages()[0].explain


def test_edge_masks_do_to_a_layer_what_they_do_in_pyg(tmp_path: Path) -> None:
    model, data = trained(
        tmp_path, {"model": "gcn", "layers": 1, "profile": "retexo", "dtype": "float64"}
    )
    layer = model.stages[0].layer
    conv = GCNConv(data.x.shape[1], layer.weight.shape[1]).double()
    conv.lin.weight.data, conv.bias.data = layer.weight.data.T.clone(), layer.bias.data.clone()
    mask = torch.nn.Parameter(torch.linspace(-1, 1, data.edge_index.shape[1]).double())
    outputs = []
    for one in (conv, model):
        set_masks(one, mask, data.edge_index)
        out = one(data.x.double(), data.edge_index, data.edge_weight.double())
        outputs += [out, *torch.autograd.grad(out.square().sum(), mask)]
    assert torch.allclose(outputs[0], outputs[2], atol=1e-6)
    assert torch.allclose(outputs[1], outputs[3], atol=1e-5)


def test_a_directed_edge_with_a_mask_of_zero_is_as_if_it_were_not_there(tmp_path: Path) -> None:
    model, data = trained(tmp_path, {"model": "dir-gin", "edges_are": "directed"})
    # Between two nodes there may be edges of both directions, and one of them is masked.
    back = data.edge_index[:, :20].flip(0)
    edges = torch.cat([data.edge_index, back], dim=1)
    weights = torch.cat([data.edge_weight, data.edge_weight[:20]])
    kept = torch.arange(edges.shape[1]) % 3 != 0
    without = model(data.x, edges[:, kept], edge_weight=weights[kept])
    mask = torch.nn.Parameter(kept.to(weights.dtype))
    set_masks(model, mask, edges, apply_sigmoid=False)
    masked = model(data.x, edges, edge_weight=weights)
    assert torch.allclose(masked, without, atol=1e-5 * max(1.0, float(without.abs().max())))
    clear_masks(model)
    assert not torch.allclose(model(data.x, edges, edge_weight=weights), without, atol=1e-2)


def test_parameters_can_be_trained_on(tmp_path: Path) -> None:
    model, data = trained(tmp_path, {"model": "gcn", "profile": "lean", "basis_rows": "sums"})
    labels = torch.from_numpy(np.load(tmp_path / "small.npz")["y"])
    model.requires_grad_(True)
    optimizer = torch.optim.Adam(model.stages.parameters(), lr=0.01)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(data), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.95 * losses[0]


def test_other_forms_of_edges_and_masks_of_other_edges(tmp_path: Path) -> None:
    model, data = trained(tmp_path, {"model": "gcn"})
    adjacency = torch.sparse_coo_tensor(
        data.edge_index.flip(0), data.edge_weight, (NODES, NODES), check_invariants=True
    )
    assert torch.allclose(model(data.x, adjacency), model(data), atol=1e-6)
    set_masks(model, torch.nn.Parameter(torch.ones(3)), data.edge_index)
    with pytest.raises(ConfigurationError, match="edge mask: has 3 values; expected one for each"):
        model(data)
    assert np.isfinite(model.state_dict()["stages.0.norm.weight"].numpy()).all()
