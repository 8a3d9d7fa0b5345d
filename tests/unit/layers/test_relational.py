from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from retexo_fl.client.preparation import whole_part
from retexo_fl.client.stage_rows import stage_input, with_coordinates
from retexo_fl.errors import PluginError
from retexo_fl.graph import BoundaryPlan, GraphPartition, from_pyg
from retexo_fl.layers.aggregate import channel_means, channel_operator
from retexo_fl.layers.base import GraphLayer, LayerShape, StageInput
from retexo_fl.layers.pyg import _KINDS, PygLayer, pyg_layer
from retexo_fl.layers.rel_gat import RelGatLayer
from retexo_fl.layers.relational import (
    RelationalBatch,
    RelGcnLayer,
    RelSageLayer,
    kinds_of,
    sums_of_labelled,
    times_added,
)
from retexo_fl.relations import Relations, TypedStage
from retexo_fl.training.basis import Basis
from tests.support.typed_graphs import CUSTOMERS, bank

WIDTH, OUTPUTS = 6, 4
Layer = TypeVar("Layer", bound=GraphLayer)


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


def layer_of(
    relations: Relations | None,
    kind: type[Layer] = RelSageLayer,  # type: ignore[assignment]
    *,
    bases: int = 0,
    heads: int = 1,
    **stage: Any,
) -> Layer:
    assert relations is not None
    keys: dict[str, Any] = {
        **{"with_loss": relations.with_loss(None), "reads_features": False},
        **{"hops": 2, "trains_all": True, **stage},
    }
    inputs = relations.num_features if keys["reads_features"] else WIDTH
    layer = kind(
        LayerShape(
            inputs=inputs,
            outputs=OUTPUTS,
            hidden=OUTPUTS,
            heads=heads,
            typed=TypedStage(relations=relations, num_bases=bases, **keys),
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
        beyond = "" if kind == relations.with_labels[0] else f"_{kind}"
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
    layer: RelSageLayer = layer_of(part.relations, reads_features=reads_features).double()
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
    layer: RelSageLayer = layer_of(part.relations, trains_all=False).double()
    assert [name for name, _ in layer.named_parameters()] == ["weight", "bias"]
    rows = np.random.default_rng(3).normal(size=(part.num_inner, WIDTH))
    inputs, everyone = inputs_of(part, rows), np.arange(part.num_inner)
    assert inputs.own_kinds is not None
    prepared = layer.prepare(inputs)
    found = layer(layer.batch(prepared, everyone), None).detach().numpy()
    # Other types make rows of weights that every model has alike.
    other: RelSageLayer = layer_of(part.relations, trains_all=False).double()
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
    layer: RelSageLayer = layer_of(part.relations, hops=0).double()
    assert len(list(layer.named_parameters())) == 2
    found = layer(layer.batch(layer.prepare(inputs), everyone), None)
    assert not found[inputs.own_kinds != 0].any()


def test_a_relation_changes_rows_of_its_target_alone(part: GraphPartition) -> None:
    layer: RelSageLayer = layer_of(part.relations).double()
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
    rows = dense_features(part)
    inputs = inputs_of(part, rows)
    assert inputs.edge_weights is not None
    expected = rows.copy()
    sources = np.asarray(part.indices)
    (labelled,) = relations.with_loss(None)
    for channel in relations.into(labelled):
        for node in range(part.num_inner):
            some = slice(part.indptr[node], part.indptr[node + 1])
            there = sources[some][inputs.edge_weights[some, channel.column] != 0]
            if len(there):
                expected[node] += rows[there].mean(axis=0)
    kinds = relations.kinds(part.node_keys)
    expected[kinds != relations.with_labels[0]] = 0
    found = sums_of_labelled(inputs, relations)
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


def channel_edges(part: GraphPartition) -> dict[int, np.ndarray]:
    """Return, by channel, the (2, E) sources and targets of its edges."""
    weights, relations = part.edge_values.weights, part.relations
    assert weights is not None
    assert relations is not None
    targets = np.repeat(np.arange(part.num_inner), np.diff(part.indptr))
    ends = np.stack((np.asarray(part.indices), targets))
    return {one.column: ends[:, weights[:, one.column] != 0] for one in relations.channels}


def typed_rows(part: GraphPartition, reads_features: bool) -> np.ndarray:
    """Return (N, D) float64 rows: features, or others."""
    if reads_features:
        return dense_features(part)
    return np.random.default_rng(3).normal(size=(part.num_inner, WIDTH))


def made_by(layer: GraphLayer, inputs: StageInput, *, again: np.ndarray | None) -> torch.Tensor:
    """Return the rows of all nodes, by what is prepared or from rows that are trained."""
    everyone = np.arange(inputs.num_nodes)
    if again is None:
        batch = layer.batch(layer.prepare(inputs), everyone)
    else:
        batch = layer.trained_batches(inputs, everyone)(torch.from_numpy(again))
    found: torch.Tensor = layer(batch, None)
    return found


WAYS = [("features", 0), ("rows", 0), ("rows", 2), ("trained rows", 0), ("trained rows", 2)]


@pytest.mark.parametrize(("way", "bases"), WAYS)
def test_rel_gcn_is_that_of_pyg(part: GraphPartition, way: str, bases: int) -> None:
    nn = pytest.importorskip("torch_geometric.nn")
    relations = part.relations
    assert relations is not None
    reads = way == "features"
    layer = layer_of(relations, RelGcnLayer, bases=bases, reads_features=reads).double()
    rows = typed_rows(part, reads)
    width = rows.shape[1]
    columns = [relations.columns(kind) if reads else slice(0, width) for kind in range(3)]
    channels = relations.channels
    conv = nn.RGCNConv(width, OUTPUTS, len(channels), num_bases=bases or None).double()
    places = {one.column: place for place, one in enumerate(channels)}
    # What stands where in PyG's parameters, by ours.
    pairs: list[tuple[Any, Any, Any]] = [(layer.bias, conv.bias, ...)]
    named = dict(layer.named_parameters())
    if bases:
        order = [
            places[one.column]
            for kind in relations.within(relations.with_labels, 2)
            for one in relations.into(kind)
        ]
        pairs += [(layer.weight, conv.root, ...), (layer.bases, conv.weight, ...)]
        pairs += [(layer.coefficients, conv.comp, order)]
    taken = []
    for kind in relations.within(relations.with_labels, 2) if not bases else ():
        weight = named["weight" if kind == relations.with_labels[0] else f"weight_{kind}"]
        at = 0
        if reads or kind == relations.with_labels[0]:
            own = columns[kind]
            at = own.stop - own.start
            pairs.append((weight[:at], conv.root, own))
        for one in relations.into(kind):
            some = columns[one.source]
            end = at + some.stop - some.start
            pairs.append((weight[at:end], conv.weight, (places[one.column], some)))
            at = end
        taken.append((weight, at))
    assert all(len(weight) == at for weight, at in taken)
    with torch.no_grad():
        for ours, theirs, where in pairs:
            theirs[where] = ours
    edges = channel_edges(part)
    index = np.concatenate([edges[one.column] for one in channels], axis=1)
    kinds = np.repeat(np.arange(len(channels)), [edges[one.column].shape[1] for one in channels])
    expected = conv(torch.from_numpy(rows), torch.from_numpy(index), torch.from_numpy(kinds))
    given = part.features.astype(np.float64) if reads else rows
    again = rows if way == "trained rows" else None
    found = made_by(layer, inputs_of(part, given), again=again)
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=0)
    towards = torch.from_numpy(np.random.default_rng(7).normal(size=found.shape))
    gradients = torch.autograd.grad((found * towards).sum(), list(named.values()))
    torch.autograd.backward((expected * towards).sum())
    by_ours = dict(zip(named, gradients, strict=True))
    for name, item in named.items():
        # Ours in one piece, as PyG's parts of it stand.
        pieces = [t.grad[at] for o, t, at in pairs if o is item or o._base is item]
        joined = torch.cat(pieces) if len(pieces) > 1 else pieces[0]
        torch.testing.assert_close(by_ours[name], joined, atol=1e-10, rtol=0)


@pytest.mark.parametrize("way", ["features", "rows", "trained rows"])
def test_rel_gat_is_that_of_pyg(part: GraphPartition, way: str) -> None:
    nn = pytest.importorskip("torch_geometric.nn")
    relations = part.relations
    assert relations is not None
    reads, heads = way == "features", 3
    layer = layer_of(relations, RelGatLayer, heads=heads, reads_features=reads).double()
    rows = typed_rows(part, reads)
    kinds = relations.kinds(part.node_keys)
    columns = [relations.columns(kind) if reads else slice(None) for kind in range(3)]
    there = [np.flatnonzero(kinds == kind) for kind in range(3)]
    x = {
        name: torch.from_numpy(rows[there[kind]][:, columns[kind]])
        for kind, name in enumerate(relations.types)
    }
    number = np.zeros(len(kinds), np.int64)
    for some in there:
        number[some] = np.arange(len(some))
    convs: dict[Any, Any] = {}
    edges: dict[Any, torch.Tensor] = {}
    pairs: list[tuple[str, Any, Any]] = []
    named = dict(layer.named_parameters())
    for kind, name in enumerate(relations.types):
        beyond = "" if kind == relations.with_labels[0] else f"_{kind}"
        for place, channel in enumerate(relations.into(kind)):
            source = relations.types[channel.source]
            key = (source, f"channel{channel.column}", name)
            widths = (x[source].shape[1], x[name].shape[1])
            conv = nn.GATConv(
                widths,
                OUTPUTS,
                heads=heads,
                concat=False,
                add_self_loops=False,
                residual=not place,
                bias=not place,
            ).double()
            convs[key] = conv
            edges[key] = torch.from_numpy(number[channel_edges(part)[channel.column]])
            into = f"channels.{channel.column}."
            pairs += [
                (f"{into}weight", conv.lin_src.weight, lambda item: item.T),
                (f"{into}source_attention", conv.att_src, lambda item: item[0]),
            ]
            with torch.no_grad():
                by_head = conv.lin_dst.weight.view(heads, OUTPUTS, -1)
                q = torch.einsum("khd,kh->dk", by_head, conv.att_dst[0])
                named[f"{into}target_attention"].copy_(q)
            if not place:
                pairs += [
                    (f"weight{beyond}", conv.res.weight, lambda item: item.T),
                    (f"bias{beyond}", conv.bias, lambda item: item),
                ]
    with torch.no_grad():
        for ours, theirs, form in pairs:
            named[ours].copy_(form(theirs))
    made = nn.HeteroConv(convs, aggr="sum")(x, edges)
    expected = torch.zeros(len(kinds), OUTPUTS, dtype=torch.float64)
    for kind, name in enumerate(relations.types):
        expected = expected.index_copy(0, torch.from_numpy(there[kind]), made[name])
    given = part.features.astype(np.float64) if reads else rows
    again = rows if way == "trained rows" else None
    found = made_by(layer, inputs_of(part, given), again=again)
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=0)
    towards = torch.from_numpy(np.random.default_rng(7).normal(size=found.shape))
    for made_rows in (found, expected):
        torch.autograd.backward((made_rows * towards).sum())
    for ours, theirs, form in pairs:
        torch.testing.assert_close(named[ours].grad, form(theirs.grad), atol=1e-10, rtol=0)
    for (_, along, _), conv in convs.items():
        # q is a product of two of theirs.
        of_q = named[f"channels.{along.removeprefix('channel')}.target_attention"].grad
        by_head = conv.lin_dst.weight.view(heads, OUTPUTS, -1)
        of_product = torch.einsum("khd,dk->kh", by_head, of_q)
        torch.testing.assert_close(of_product, conv.att_dst.grad[0], atol=1e-10, rtol=0)


JOINING = sorted(name for name, kind in _KINDS.items() if kind.joins_types)


@pytest.mark.parametrize("name", JOINING)
@pytest.mark.parametrize("way", ["features", "rows", "trained rows"])
def test_a_convolution_of_pyg_is_that_of_each_relation(
    part: GraphPartition, name: str, way: str
) -> None:
    nn = pytest.importorskip("torch_geometric.nn")
    relations = part.relations
    assert relations is not None
    reads = way == "features"
    layer = layer_of(relations, pyg_layer(f"pyg:{name}"), heads=2, reads_features=reads).double()
    assert isinstance(layer, PygLayer)
    assert layer.relations is not None
    rows = typed_rows(part, reads)
    kinds = relations.kinds(part.node_keys)
    there = [np.flatnonzero(kinds == kind) for kind in range(3)]
    number = np.zeros(len(kinds), np.int64)
    for some in there:
        number[some] = np.arange(len(some))
    x = {
        of_type: torch.from_numpy(rows[some][:, relations.columns(kind) if reads else slice(None)])
        for kind, (of_type, some) in enumerate(zip(relations.types, there, strict=True))
    }
    convs, edges = {}, {}
    for one in relations.channels:
        key = (relations.types[one.source], f"channel{one.column}", relations.types[one.target])
        of_relation = layer.relations.channels[str(one.column)]
        assert isinstance(of_relation, PygLayer)
        convs[key] = of_relation.conv
        edges[key] = torch.from_numpy(number[channel_edges(part)[one.column]])
    made = nn.HeteroConv(convs, aggr="sum")(x, edges)
    given = part.features.astype(np.float64) if reads else rows
    again = rows if way == "trained rows" else None
    found = made_by(layer, inputs_of(part, given), again=again)
    for of_type, some in zip(relations.types, there, strict=True):
        torch.testing.assert_close(found[some], made[of_type], atol=1e-10, rtol=0)


@pytest.mark.parametrize("bases", [0, 2])
def test_types_without_labels_read_own_rows_by_what_labels_taught(
    part: GraphPartition, bases: int
) -> None:
    layer: RelSageLayer = layer_of(
        part.relations, RelGcnLayer, bases=bases, trains_all=False
    ).double()
    assert {name for name, _ in layer.named_parameters()} <= {
        *("weight", "bias", "bases", "coefficients")
    }
    inputs = inputs_of(part, typed_rows(part, False))
    before = made_by(layer, inputs, again=None)
    with torch.no_grad():
        layer.weight[:WIDTH] += 1
    after = made_by(layer, inputs, again=None)
    moved = torch.from_numpy(typed_rows(part, False).sum(axis=1, keepdims=True))
    torch.testing.assert_close(after - before, moved.expand_as(after), atol=1e-10, rtol=0)


def test_a_layer_of_each_relation_draws_what_nothing_trains_as_others(part: GraphPartition) -> None:
    drawn = {"trains_all": False}
    inputs = inputs_of(part, typed_rows(part, False))
    assert inputs.own_kinds is not None
    some = inputs.own_kinds != 0
    rows = [
        made_by(layer_of(part.relations, one, **drawn).double(), inputs, again=None)
        for one in (RelSageLayer, RelGatLayer)
    ]
    np.testing.assert_array_equal(rows[0].detach()[some], rows[1].detach()[some])
    assert (rows[0] != rows[1]).any(dim=1).numpy()[~some].all()
    names = [name for name, _ in layer_of(part.relations, RelGatLayer, **drawn).named_parameters()]
    channels = {name.split(".")[1] for name in names if "." in name}
    assert part.relations is not None
    assert channels == {str(one.column) for one in part.relations.into(0)}


@pytest.mark.parametrize("bases", [0, 2])
def test_rel_gcn_starts_as_the_head_before_it(part: GraphPartition, bases: int) -> None:
    layer: RelSageLayer = layer_of(
        part.relations, RelGcnLayer, bases=bases, trains_all=False
    ).double()
    rng = np.random.default_rng(9)
    weight, bias = (torch.from_numpy(rng.normal(size=size)) for size in ((WIDTH, OUTPUTS), OUTPUTS))
    assert layer.start_as(weight, bias)
    rows = typed_rows(part, False)
    inputs = inputs_of(part, rows)
    found = made_by(layer, inputs, again=None).detach().numpy()
    assert part.relations is not None
    blocks = RelSageLayer.prepare(layer, inputs).parts[0].view(CUSTOMERS, -1, WIDTH).mean(dim=1)
    expected = blocks @ weight + bias
    np.testing.assert_allclose(found[inputs.own_kinds == 0], expected, atol=1e-12)


@pytest.mark.parametrize("kind", [RelSageLayer, RelGcnLayer, RelGatLayer])
@pytest.mark.parametrize("bases", [0, 2])
def test_weights_of_own_rows_and_of_the_last_columns_are_told_apart(
    part: GraphPartition, kind: type[GraphLayer], bases: int
) -> None:
    layer = layer_of(part.relations, kind, bases=bases, trains_all=False).double()
    ((own, value),) = layer.own_weights()
    assert value == 0
    weight = dict(layer.named_parameters())["weight"]
    assert own.data_ptr() == weight.data_ptr()
    assert own.shape == (WIDTH, OUTPUTS)
    beyond = list(layer.weights_beyond(4))
    assert bool(beyond) == (kind is not RelGatLayer)
    if not beyond:
        return
    with torch.no_grad():
        for some in beyond:
            some.zero_()
    rows = typed_rows(part, False)
    before = made_by(layer, inputs_of(part, rows), again=None)
    rows[:, 4:] += 1
    after = made_by(layer, inputs_of(part, rows), again=None)
    labelled = part.relations.kinds(part.node_keys) == 0 if part.relations else None
    torch.testing.assert_close(before[labelled], after[labelled], atol=1e-12, rtol=0)


def _taught(part: GraphPartition, kind: type[RelSageLayer]) -> tuple[RelSageLayer, StageInput]:
    """Return a layer that teaches devices and shops, and its input with what all nodes read."""
    relations = part.relations
    assert relations is not None
    found: dict[str, Any] = {
        "trains_all": False,
        "taught": relations.read_by(relations.with_labels),
        "hops": 1,
    }
    layer = layer_of(relations, kind, **found)
    rows = np.random.default_rng(3).normal(size=(part.num_inner, WIDTH)).astype(np.float32)
    inputs = inputs_of(part, rows)
    read = layer.crossing_rows(inputs)
    assert isinstance(read, torch.Tensor)
    return layer, replace(inputs, read=replace(inputs, own=read, received=read[:0]))


@pytest.mark.parametrize("kind", [RelSageLayer, RelGcnLayer])
def test_a_type_is_taught_by_means_of_what_its_weights_make(
    part: GraphPartition, kind: type[RelSageLayer]
) -> None:
    layer, inputs = _taught(part, kind)
    prepared = layer.prepare(inputs)
    everyone = layer(layer.batch(prepared, np.arange(part.num_inner)), None).double()
    customers = np.flatnonzero(kinds_of(inputs) == 0)
    batch, of = layer.examples(prepared, customers)
    made = layer(batch, None).double()
    torch.testing.assert_close(made[: len(customers)], everyone[customers])
    relations, start = part.relations, len(customers)
    assert relations is not None
    for taught in layer.shape.typed.taught if layer.shape.typed else ():
        (channel,) = (one for one in relations.into(0) if one.source == taught)
        means = channel_operator(channel_means(inputs, channel.column), inputs)[customers]
        has = np.flatnonzero(np.diff(csr_array(means).indptr))
        assert 0 < len(has) < len(customers)
        np.testing.assert_array_equal(of[start : start + len(has)], has)
        expected = torch.from_numpy(means[has] @ everyone.detach().numpy())
        torch.testing.assert_close(made[start : start + len(has)], expected, atol=1e-6, rtol=1e-6)
        start += len(has)
    assert start == len(of) == len(made)


def test_what_teaches_a_type_is_dropped_by_itself(part: GraphPartition) -> None:
    layer, inputs = _taught(part, RelSageLayer)
    batch, _ = layer.examples(layer.prepare(inputs), np.flatnonzero(kinds_of(inputs) == 0))
    assert isinstance(batch, RelationalBatch)
    hashes = np.concatenate([one.hashes for one in batch.parts])
    assert len(np.unique(hashes)) == len(hashes)


def test_a_type_is_not_taught_without_what_it_reads(part: GraphPartition) -> None:
    layer, inputs = _taught(part, RelSageLayer)
    prepared = layer.prepare(replace(inputs, read=None))
    with pytest.raises(PluginError, match="columns; expected .*what types without labels read"):
        layer.examples(prepared, np.flatnonzero(kinds_of(inputs) == 0))


def test_rows_of_a_type_that_was_taught_stand_beside_those_as_drawn(part: GraphPartition) -> None:
    relations = part.relations
    assert relations is not None
    layer: RelSageLayer = layer_of(
        relations, trains_all=False, doubled=relations.read_by((0,)), hops=0
    )
    widths = [some.stop - some.start for _, some in layer.slices(0)]
    assert sorted(widths) == [WIDTH // 2, WIDTH // 2, WIDTH, WIDTH]
    (own,) = layer.own_weights()
    assert len(own[0]) == WIDTH // 2
    with torch.no_grad():
        layer.weight.fill_(1.0)
        for weights, value in layer.taught_weights():
            weights.fill_(value)
        assert float(layer.weight[:, 0].sum()) == sum(widths) - 2 * WIDTH // 2
        head, bias = torch.ones(WIDTH // 2, OUTPUTS), torch.zeros(OUTPUTS)
        assert layer.start_as(head, bias)
    # What was taught was taught by the head; what was drawn was not.
    assert float(layer.weight[:, 0].detach().sum()) == pytest.approx(WIDTH // 2)


@pytest.fixture(scope="module")
def judged(part: GraphPartition) -> Relations:
    """Return relations of which customers and devices have labels."""
    assert part.relations is not None
    return replace(part.relations, with_labels=(0, 1))


@pytest.mark.parametrize(("kind", "bases"), [(RelSageLayer, 0), (RelGcnLayer, 0), (RelGcnLayer, 2)])
def test_all_types_with_labels_start_as_the_head(
    part: GraphPartition, judged: Relations, kind: type[RelSageLayer], bases: int
) -> None:
    layer = layer_of(judged, kind, bases=bases, trains_all=False).double()
    rng = np.random.default_rng(9)
    weight, bias = (torch.from_numpy(rng.normal(size=size)) for size in ((WIDTH, OUTPUTS), OUTPUTS))
    assert layer.start_as(weight, bias)
    inputs = inputs_of(part, typed_rows(part, False))
    found = made_by(layer, inputs, again=None).detach().numpy()
    for place in judged.with_labels:
        rows = layer.prepare(inputs).parts[place]
        blocks = rows.view(len(rows), -1, WIDTH)
        means = blocks.mean(dim=1)
        if kind is RelGcnLayer:
            # An own row counts in each type as in the first, which has three relations.
            means = blocks[:, 0] / 4 + 3 / 4 * blocks[:, 1:].mean(dim=1)
        expected = means @ weight + bias
        np.testing.assert_allclose(found[inputs.own_kinds == place], expected, atol=1e-12)


@pytest.mark.parametrize(
    ("kind", "bases"), [(RelSageLayer, 0), (RelGcnLayer, 0), (RelGcnLayer, 2), (RelGatLayer, 0)]
)
def test_own_rows_and_last_columns_are_told_apart_in_all_types_with_labels(
    part: GraphPartition, judged: Relations, kind: type[GraphLayer], bases: int
) -> None:
    layer = layer_of(judged, kind, bases=bases, trains_all=False).double()
    rows = typed_rows(part, False)
    kinds = judged.kinds(part.node_keys)
    with torch.no_grad():
        for weight, value in layer.own_weights():
            weight.fill_(value)
        if kind is RelGatLayer:
            # Attention looks at own rows, too.
            for item in layer.parameters():
                if item.shape == (WIDTH, 1):
                    item.zero_()
    for node in (np.flatnonzero(kinds == 0)[0], np.flatnonzero(kinds == 1)[0]):
        other = rows.copy()
        other[node] += 1
        before, after = (made_by(layer, inputs_of(part, one), again=None) for one in (rows, other))
        torch.testing.assert_close(before[node], after[node], atol=1e-12, rtol=0)
    if kind is RelGatLayer:
        return
    with torch.no_grad():
        for some in layer.weights_beyond(4):
            some.zero_()
    other = rows.copy()
    other[:, 4:] += 1
    before, after = (made_by(layer, inputs_of(part, one), again=None) for one in (rows, other))
    has_label = np.isin(kinds, judged.with_labels)
    torch.testing.assert_close(before[has_label], after[has_label], atol=1e-12, rtol=0)


def test_a_basis_of_two_types_is_of_the_rows_of_both(
    part: GraphPartition, judged: Relations
) -> None:
    rows, rng = dense_features(part), np.random.default_rng(4)
    inputs, kinds = inputs_of(part, rows), judged.kinds(part.node_keys)
    both = sums_of_labelled(inputs, judged)
    each = [sums_of_labelled(inputs, replace(judged, with_labels=(one,))) for one in (0, 1)]
    assert isinstance(both, torch.Tensor)
    for place, alone in enumerate(each):
        assert isinstance(alone, torch.Tensor)
        torch.testing.assert_close(both[kinds == place], alone[kinds == place])
    assert not both[kinds == 2].any()
    mean, directions = rng.normal(size=(rows.shape[1],)), rng.normal(size=(rows.shape[1], 3))
    found = with_coordinates(Basis(mean=mean, directions=directions), inputs, judged)
    assert isinstance(found.own, torch.Tensor)
    # To a row of either type, customers' rows are added 3 times in two, others' 2 times.
    for place, times in ((0, 1.5), (1, 1), (2, 1)):
        some = judged.columns(place)
        moved = rows[kinds == place][:, some] - mean[some] / times
        expected = moved @ directions[some]
        np.testing.assert_allclose(found.own.numpy()[kinds == place], expected, atol=1e-12)


@pytest.mark.parametrize("far", [(), (2,), (0, 1, 2)])
def test_rows_are_added_as_often_as_there_are_ways_along_edges(
    part: GraphPartition, far: tuple[int, ...]
) -> None:
    relations = part.relations
    assert relations is not None
    ways = np.zeros((len(relations.types),) * 2, np.int64)
    for channel in relations.channels:
        ways[channel.target, channel.source] += 1
    labelled = np.isin(np.arange(len(ways)), relations.with_labels)
    is_far = np.isin(np.arange(len(ways)), far)
    expected = labelled + labelled @ ways + (labelled @ ways @ ways) * is_far
    assert times_added(relations, far).tolist() == expected.tolist()
