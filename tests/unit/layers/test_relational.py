from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from retexo_fl.client.preparation import whole_part
from retexo_fl.client.stage_rows import stage_input, with_coordinates
from retexo_fl.graph import BoundaryPlan, GraphPartition, from_pyg
from retexo_fl.layers.base import LayerShape, StageInput
from retexo_fl.layers.relational import RelSageLayer
from retexo_fl.relations import Relations, TypedStage
from retexo_fl.training.basis import Basis
from tests.support.typed_graphs import CUSTOMERS, bank

WIDTH, OUTPUTS = 6, 4


@pytest.fixture(scope="module")
def part() -> GraphPartition:
    made = bank()
    # PyG's mean is not weighted.
    del made["edges"]["customer", "buys", "shop"]["edge_weight"]
    return whole_part(from_pyg(made))


def inputs_of(part: GraphPartition, rows: Any) -> StageInput:
    plan = BoundaryPlan.from_partition(part)
    width = rows.shape[1]
    return stage_input(part, plan, rows, np.zeros((0, width), rows.dtype), ())


def layer_of(relations: Relations | None, **stage: Any) -> RelSageLayer:
    assert relations is not None
    keys: dict[str, Any] = {"reads_features": False, "hops": 2, "trains_all": True} | stage
    inputs = relations.num_features if keys["reads_features"] else WIDTH
    layer = RelSageLayer(
        LayerShape(
            inputs=inputs,
            outputs=OUTPUTS,
            hidden=OUTPUTS,
            typed=TypedStage(relations=relations, **keys),
        )
    )
    layer.reset_parameters(torch.Generator().manual_seed(1))
    with torch.no_grad():
        for name, item in layer.named_parameters():
            if name.startswith("bias"):
                item.normal_(generator=torch.Generator().manual_seed(2))
    return layer


def of_pyg(layer: RelSageLayer, part: GraphPartition, rows: np.ndarray) -> np.ndarray:
    """Return what PyG's HeteroConv of SAGEConv makes with the weights of a layer."""
    nn = pytest.importorskip("torch_geometric.nn")
    relations = part.relations
    assert relations is not None
    kinds = relations.kinds(part.node_keys)
    weights = part.edge_values.weights
    assert weights is not None
    targets = np.repeat(np.arange(part.num_inner), np.diff(part.indptr))
    number = np.zeros(part.num_inner, np.int64)
    x, reads = {}, layer.shape.typed
    assert reads is not None
    columns = [
        relations.columns(kind) if reads.reads_features else slice(None)
        for kind in range(len(relations.types))
    ]
    for kind, name in enumerate(relations.types):
        there = np.flatnonzero(kinds == kind)
        number[there] = np.arange(len(there))
        x[name] = torch.from_numpy(rows[there][:, columns[kind]])
    convs, edges = {}, {}
    named = dict(layer.named_parameters())
    for kind, name in enumerate(relations.types):
        beyond = "" if kind == relations.labelled else f"_{kind}"
        weight, bias = named[f"weight{beyond}"], named[f"bias{beyond}"]
        own = x[name].shape[1]
        at = own
        for place, channel in enumerate(relations.into(kind)):
            source = relations.types[channel.source]
            width = x[source].shape[1]
            conv = nn.SAGEConv((width, own), OUTPUTS).double()
            with torch.no_grad():
                conv.lin_l.weight.copy_(weight[at : at + width].T)
                conv.lin_l.bias.copy_(bias if not place else torch.zeros(OUTPUTS))
                conv.lin_r.weight.copy_(weight[:own].T if not place else torch.zeros(OUTPUTS, own))
            at += width
            used = weights[:, channel.column] != 0
            key = (source, f"channel{channel.column}", name)
            convs[key] = conv
            ends = np.stack((number[np.asarray(part.indices)[used]], number[targets[used]]))
            edges[key] = torch.from_numpy(ends)
    made = nn.HeteroConv(convs, aggr="sum")(x, edges)
    found = np.zeros((part.num_inner, OUTPUTS))
    for kind, name in enumerate(relations.types):
        found[kinds == kind] = made[name].detach().numpy()
    return found


@pytest.mark.parametrize("reads_features", [True, False])
def test_all_types_are_those_of_pyg(part: GraphPartition, reads_features: bool) -> None:
    layer = layer_of(part.relations, reads_features=reads_features).double()
    if reads_features:
        features = part.features
        rows = np.asarray(features.todense() if not isinstance(features, np.ndarray) else features)
        given = part.features.astype(np.float64)
    else:
        rows = given = np.random.default_rng(3).normal(size=(part.num_inner, WIDTH))
    rows = rows.astype(np.float64)
    inputs, everyone = inputs_of(part, given), np.arange(part.num_inner)
    expected = of_pyg(layer, part, rows)
    found = layer(layer.batch(layer.prepare(inputs), everyone), None)
    np.testing.assert_allclose(found.detach(), expected, atol=1e-10)
    if reads_features:
        return
    stacked = torch.from_numpy(rows)
    again = layer(layer.trained_batches(inputs, everyone)(stacked), None)
    np.testing.assert_allclose(again.detach(), expected, atol=1e-10)


def test_only_the_labelled_type_is_trained_layer_by_layer(part: GraphPartition) -> None:
    layer = layer_of(part.relations, trains_all=False).double()
    assert [name for name, _ in layer.named_parameters()] == ["weight", "bias"]
    rows = np.random.default_rng(3).normal(size=(part.num_inner, WIDTH))
    inputs, everyone = inputs_of(part, rows), np.arange(part.num_inner)
    assert inputs.own_kinds is not None
    prepared = layer.prepare(inputs)
    found = layer(layer.batch(prepared, everyone), None).detach().numpy()
    # Other types make rows of weights that every model has alike.
    other = layer_of(part.relations, trains_all=False).double()
    again = other(other.batch(other.prepare(inputs), everyone), None).detach().numpy()
    np.testing.assert_array_equal(found, again)
    assert np.abs(found[inputs.own_kinds == 1]).max() > 0.1
    own = np.flatnonzero(inputs.own_kinds == 0)
    batch = layer.batch(prepared, own)
    np.testing.assert_allclose(layer(batch, None).detach(), found[own], atol=1e-12)
    assert len(own) == CUSTOMERS


def test_types_that_nobody_reads_make_no_rows(part: GraphPartition) -> None:
    rows = np.random.default_rng(3).normal(size=(part.num_inner, WIDTH))
    inputs, everyone = inputs_of(part, rows), np.arange(part.num_inner)
    layer = layer_of(part.relations, hops=0).double()
    assert len(list(layer.named_parameters())) == 2
    found = layer(layer.batch(layer.prepare(inputs), everyone), None)
    assert not found[inputs.own_kinds != 0].any()


def test_a_relation_changes_rows_of_its_target_alone(part: GraphPartition) -> None:
    layer = layer_of(part.relations).double()
    rows = np.random.default_rng(3).normal(size=(part.num_inner, WIDTH))
    inputs, everyone = inputs_of(part, rows), np.arange(part.num_inner)
    assert inputs.edge_weights is not None
    assert part.relations is not None
    before = layer(layer.batch(layer.prepare(inputs), everyone), None)
    channel = part.relations.into(2)[0]
    weights = inputs.edge_weights.copy()
    weights[:, channel.column] = 0
    other = replace(inputs, edge_weights=weights)
    after = layer(layer.batch(layer.prepare(other), everyone), None)
    changed = (before != after).any(dim=1).numpy()
    assert changed.any()
    assert set(np.asarray(inputs.own_kinds)[changed]) == {2}


def dense_features(part: GraphPartition) -> np.ndarray:
    features = part.features
    found = features if isinstance(features, np.ndarray) else features.toarray()
    return found.astype(np.float64)


def test_a_basis_is_of_own_rows_and_all_means_of_the_labelled_type(part: GraphPartition) -> None:
    relations = part.relations
    assert relations is not None
    layer, rows = layer_of(relations), dense_features(part)
    inputs = inputs_of(part, rows)
    assert inputs.edge_weights is not None
    expected = rows.copy()
    sources = np.asarray(part.indices)
    for channel in relations.into(relations.labelled):
        for node in range(part.num_inner):
            some = slice(part.indptr[node], part.indptr[node + 1])
            there = sources[some][inputs.edge_weights[some, channel.column] != 0]
            if len(there):
                expected[node] += rows[there].mean(axis=0)
    kinds = relations.kinds(part.node_keys)
    expected[kinds != relations.labelled] = 0
    found = layer.feature_sums(inputs)
    assert isinstance(found, torch.Tensor)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)


def test_of_each_type_its_part_of_the_mean_is_subtracted(part: GraphPartition) -> None:
    relations = part.relations
    assert relations is not None
    rows, rng = dense_features(part), np.random.default_rng(4)
    width = rows.shape[1]
    mean, directions = rng.normal(size=(width,)), rng.normal(size=(width, 3))
    basis = Basis(mean=mean, directions=directions)
    found = with_coordinates(basis, inputs_of(part, rows), relations)
    assert found.centre is None
    # Customers' rows are added as own ones and as those whom one knows, devices' by one relation.
    for kind, times in ((0, 2), (1, 1), (2, 1)):
        some = relations.columns(kind)
        there = relations.kinds(part.node_keys) == kind
        moved = rows[there][:, some] - basis.mean[some] / times
        expected = moved @ basis.directions[some]
        assert isinstance(found.own, torch.Tensor)
        np.testing.assert_allclose(found.own.numpy()[there], expected, atol=1e-12)
