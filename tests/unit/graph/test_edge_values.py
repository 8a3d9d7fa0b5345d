"""Weights, attributes and directions of edges, from a graph to parts, files and plans."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retexo_fl.errors import DatasetError, PartitionError, TableError
from retexo_fl.graph import (
    BoundaryPlan,
    Graph,
    GraphPartition,
    check_partition,
    check_partitions,
    cut_graph,
    find_partitions,
    open_partition,
    write_partitions,
)
from retexo_fl.graph.neighbours import EdgeValues
from retexo_fl.graph.parts.local_part import ClientTables, make_local_part
from retexo_fl.graph.parts.peers import peers_of
from retexo_fl.graph.sources.tables import read_boundary_table, read_edge_table, read_node_table
from tests.support.tables import export_part
from tests.unit.graph.graphs import SMALL_EDGES, SMALL_SPLIT, CutCase, cut_cases, small_graph
from tests.unit.graph.parts.test_storage import assert_same

FEW = settings(max_examples=30)
EITHER = st.one_of(
    cut_cases(valued=True), cut_cases(directed=True), cut_cases(valued=True, directed=True)
)
WEIGHTS = np.array([2.0, 3.0, 5.0, 7.0, 11.0])


def small_parts(*, directed: bool = False) -> list[GraphPartition]:
    """Return the small graph cut in two; attributes are ten times the weights."""
    graph = small_graph(
        edge_weights=WEIGHTS, edge_attributes=WEIGHTS[:, None] * 10, directed=directed
    )
    return cut_graph(graph, np.array([0, 0, 1, 1, 1, 0]), SMALL_SPLIT)


def values_by_keys(graph: Graph) -> dict[tuple[bytes, bytes], dict[str, list[object]]]:
    """Return what a graph says of the edge between two nodes, seen from the first."""
    rows = np.repeat(np.arange(graph.num_nodes), graph.degrees)
    keys = zip(graph.node_keys[rows].tolist(), graph.node_keys[graph.indices].tolist(), strict=True)
    named = {name: array.tolist() for name, array in graph.edge_values.named().items()}
    return {pair: {name: rows[at] for name, rows in named.items()} for at, pair in enumerate(keys)}


def test_a_graph_keeps_what_its_edges_have() -> None:
    graph = small_graph(edge_weights=WEIGHTS)
    found = values_by_keys(graph)
    for weight, (one, other) in zip(WEIGHTS, graph.node_keys[SMALL_EDGES].T.tolist(), strict=True):
        assert found[one, other] == found[other, one] == {"edge_weights": weight}
    directed = values_by_keys(small_graph(edge_weights=WEIGHTS, directed=True))
    for weight, (one, other) in zip(WEIGHTS, graph.node_keys[SMALL_EDGES].T.tolist(), strict=True):
        # The edge leads from the first node: it comes to the second.
        assert directed[other, one] == {"edge_weights": [weight, 0]}
        assert directed[one, other] == {"edge_weights": [0, weight]}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"edge_weights": WEIGHTS[:4]}, "edge_weights: got shape (4,); expected (5,)"),
        ({"edge_weights": WEIGHTS * np.nan}, "edge_weights: row 0 holds NaN or infinity"),
        ({"edge_weights": WEIGHTS * 1e300}, "edge_weights: row 0 holds NaN or infinity"),
        ({"edge_weights": np.array(list("abcde"))}, "edge_weights: got text (<U1); expected"),
        ({"edge_attributes": WEIGHTS}, "edge_attributes: got shape (5,); expected (5, A) with A"),
        ({"edge_attributes": WEIGHTS[:, None][:, :0]}, "edge_attributes: got shape (5, 0)"),
    ],
)
def test_values_that_are_none_are_refused(changes: dict[str, np.ndarray], sentence: str) -> None:
    with pytest.raises(DatasetError) as caught:
        small_graph(**changes)
    assert str(caught.value).startswith(f"small: {sentence}")


@given(EITHER)
@FEW
def test_parts_hold_what_the_graph_says_and_both_ends_agree(case: CutCase) -> None:
    expected = values_by_keys(case.graph)
    parts = cut_graph(case.graph, case.assignment, case.split)
    for part in parts:
        check_partition(part, source="part")
        rows = np.repeat(np.arange(part.num_inner), np.diff(part.indptr))
        keys = np.concatenate((part.node_keys.astype(object), part.boundary_keys.astype(object)))
        for at, (row, column) in enumerate(zip(rows, part.indices, strict=True)):
            for name, array in part.edge_values.named().items():
                assert array[at].tolist() == expected[keys[row], keys[column]][name]
    plans = [BoundaryPlan.from_partition(part) for part in parts]
    for plan in plans:
        for item in plan.peers:
            assert plans[item.peer].peer(plan.client).digest == item.digest


@given(EITHER, st.randoms(use_true_random=False))
@FEW
def test_a_changed_value_changes_the_digest(case: CutCase, random: object) -> None:
    del random
    parts = cut_graph(case.graph, case.assignment, case.split)
    part = next((part for part in parts if part.num_boundary), None)
    if part is None:
        return
    crossing = int(np.flatnonzero(part.indices >= part.num_inner)[0])
    peer = int(part.boundary_owners[part.indices[crossing] - part.num_inner])
    before = BoundaryPlan.from_partition(part).peer(peer).digest
    for name, array in part.edge_values.named().items():
        other = array.copy()
        other[crossing] += 1
        field = name.removeprefix("edge_")
        changed = dataclasses.replace(part.edge_values, **{field: other})
        plan = BoundaryPlan.from_partition(dataclasses.replace(part, edge_values=changed))
        assert plan.peer(peer).digest != before


@given(EITHER)
@FEW
def test_storage_returns_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, case: CutCase
) -> None:
    parts = cut_graph(case.graph, case.assignment, case.split)
    out = tmp_path_factory.mktemp("parts") / "out"
    write_partitions(parts, out)
    for folder, part in zip(find_partitions(out), parts, strict=True):
        assert_same(open_partition(folder), part)
        assert json.loads((folder / "manifest.json").read_text())["version"] == 2
    check_partitions(find_partitions(out))


def test_parts_without_values_are_of_the_first_version(tmp_path: Path) -> None:
    write_partitions(cut_graph(small_graph(), np.zeros(6, int), SMALL_SPLIT), tmp_path / "out")
    manifest = json.loads((tmp_path / "out" / "part-0" / "manifest.json").read_text())
    assert manifest["version"] == 1


@pytest.mark.parametrize("name", ["weights", "attributes"])
@pytest.mark.parametrize("directed", [False, True])
def test_a_value_on_which_two_parts_differ_is_named(
    tmp_path: Path, name: str, directed: bool
) -> None:
    parts = small_parts(directed=directed)
    array = getattr(parts[0].edge_values, name).copy()
    array[parts[0].indices >= parts[0].num_inner] *= 2
    other = dataclasses.replace(parts[0].edge_values, **{name: array})
    parts[0] = dataclasses.replace(parts[0], edge_values=other)
    write_partitions(parts, tmp_path / "out")
    with pytest.raises(PartitionError) as caught:
        check_partitions(find_partitions(tmp_path / "out"))
    pattern = f"list the same edges, but {name} of 'a' - 'ab' are .*; expected the same weight"
    assert re.search(pattern, str(caught.value))


def test_parts_of_unequal_width_are_named(tmp_path: Path) -> None:
    parts = small_parts()
    values = parts[1].edge_values
    assert values.attributes is not None
    wider = dataclasses.replace(values, attributes=np.tile(values.attributes, (1, 2)))
    parts[1] = dataclasses.replace(parts[1], edge_values=wider)
    write_partitions(parts, tmp_path / "out")
    with pytest.raises(PartitionError, match="edges undirected, with 2 attributes each, .*1 attri"):
        check_partitions(find_partitions(tmp_path / "out"))


def test_an_inner_edge_that_weighs_two_things_is_refused() -> None:
    part = small_parts()[1]
    assert part.edge_values.weights is not None
    weights = part.edge_values.weights.copy()
    weights[np.flatnonzero(part.indices < part.num_inner)[0]] = 1
    changed = dataclasses.replace(
        part, edge_values=dataclasses.replace(part.edge_values, weights=weights)
    )
    with pytest.raises(PartitionError, match="edge_weights: row .* is not what the edge's other"):
        check_partition(changed, source="part")


@given(cut_cases(valued=True))
@FEW
def test_a_cover_sums_what_neighbours_weigh(case: CutCase) -> None:
    parts = cut_graph(case.graph, case.assignment, case.split)
    plans = [BoundaryPlan.from_partition(part, "cover") for part in parts]
    width = case.graph.num_nodes
    first = np.concatenate(([0], np.cumsum([part.num_inner for part in parts])))
    units = [np.eye(width)[first[p] : first[p + 1]] for p in range(len(parts))]
    for plan, part, own in zip(plans, parts, units, strict=True):
        block = np.zeros((plan.num_slots, width))
        for item in plan.peers:
            sender = plans[item.peer].peer(plan.client).send
            block[item.receive.slots] = sender.gather(units[item.peer])
            back = np.zeros_like(units[item.peer])
            gradients = np.random.default_rng(0).integers(1, 9, (sender.count, width)) / 4
            sender.spread(gradients, back)
            # Spreading is the transpose of gathering.
            matrix = sender.gather(np.eye(len(back)))
            np.testing.assert_array_equal(back, matrix.T @ gradients)
        edges, weights = plan.edges, plan.edges.values.weights
        stacked = np.concatenate((own, block))
        whole = BoundaryPlan.from_partition(part).edges
        for row, (a, b) in enumerate(zip(edges.indptr[:-1], edges.indptr[1:], strict=True)):
            of_edges = np.ones(b - a) if weights is None else weights[a:b]
            found = of_edges @ stacked[edges.indices[a:b]]
            expected = np.zeros(width)
            keys = np.concatenate([p.node_keys.astype(object) for p in parts]).tolist()
            mine = np.concatenate(
                (part.node_keys.astype(object), part.boundary_keys.astype(object))
            )
            for at in range(part.indptr[row], part.indptr[row + 1]):
                w = part.edge_values.weights
                expected[keys.index(mine[part.indices[at]])] += 1 if w is None else w[at]
            np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(edges.neighbour_counts, whole.neighbour_counts)
        np.testing.assert_array_equal(edges.neighbour_counts, part.degrees)


def test_a_cover_of_directed_edges_is_refused() -> None:
    with pytest.raises(PartitionError, match="edges have a direction; expected boundary-plan rows"):
        BoundaryPlan.from_partition(small_parts(directed=True)[0], "cover")


@given(EITHER, st.sampled_from(["csv", "parquet", "npz"]))
@settings(max_examples=20)
def test_local_parts_equal_cut_parts(
    tmp_path_factory: pytest.TempPathFactory, case: CutCase, fmt: str
) -> None:
    keys = np.array([key.hex().encode() for key in case.graph.node_keys.tolist()])
    graph = dataclasses.replace(case.graph, node_keys=keys)
    parts = cut_graph(graph, case.assignment, case.split)
    peers = peers_of(parts)
    for part in parts:
        files = export_part(part, tmp_path_factory.mktemp("tables"), fmt)
        assert files.boundary is not None
        tables = ClientTables(
            nodes=read_node_table(files.nodes, num_features=part.num_features),
            edges=(read_edge_table(files.edges),),
            boundary=(read_boundary_table(files.boundary),),
        )
        made = make_local_part(tables, peers, part.client)
        if len(part.indices):
            assert_same(made, part)


def test_repeated_edges_of_a_client_are_merged(tmp_path: Path) -> None:
    part = small_parts()[0]
    files = export_part(part, tmp_path, "csv")
    assert files.boundary is not None
    lines = files.boundary.read_text().splitlines()
    files.boundary.write_text("\n".join([*lines, *lines[1:]]))
    tables = ClientTables(
        nodes=read_node_table(files.nodes, num_features=2),
        edges=(read_edge_table(files.edges),),
        boundary=(read_boundary_table(files.boundary),),
    )
    peers = peers_of(small_parts())
    with pytest.raises(TableError, match="is already in line .*; expected each undirected edge on"):
        make_local_part(tables, peers, 0)
    merged = make_local_part(tables, peers, 0, merge="sum").edge_values.weights
    assert merged is not None
    assert part.edge_values.weights is not None
    crossing = part.indices >= part.num_inner
    np.testing.assert_array_equal(merged, part.edge_values.weights * np.where(crossing, 2, 1))


def test_tables_of_a_client_that_do_not_fit_are_named(tmp_path: Path) -> None:
    files = export_part(small_parts()[0], tmp_path, "csv")
    assert files.boundary is not None
    text = files.boundary.read_text()
    files.boundary.write_text(text.replace("weight,e_0", "weight,year"))
    tables = ClientTables(
        nodes=read_node_table(files.nodes, num_features=2),
        edges=(read_edge_table(files.edges),),
        boundary=(read_boundary_table(files.boundary),),
    )
    peers = peers_of(small_parts())
    with pytest.raises(
        TableError, match=r"boundary.csv: got 0 columns e_\*; expected 1, the edge-f"
    ):
        make_local_part(tables, peers, 0)
    files.boundary.write_text(text)
    whole = dataclasses.replace(tables, boundary=(read_boundary_table(files.boundary),))
    with pytest.raises(TableError, match="column 'direction' is missing; expected in or out"):
        make_local_part(whole, dataclasses.replace(peers, directed=True), 0)


def test_columns_that_are_not_used_are_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "edges.csv").write_text("source,target,weight,note,day\na,b,1,x,2\n")
    (tmp_path / "nodes.csv").write_text("key,label,x0,age\na,0,1,2\n")
    read_edge_table(tmp_path / "edges.csv")
    read_node_table(tmp_path / "nodes.csv")
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path / 'edges.csv'}: columns not used: 'note', 'day'",
        f"{tmp_path / 'nodes.csv'}: column not used: 'age'",
    ]


@pytest.mark.parametrize("cell", ["nan", "", "much", "inf"])
def test_a_weight_that_is_no_number_is_refused(tmp_path: Path, cell: str) -> None:
    path = tmp_path / "edges.csv"
    path.write_text(f"source,target,weight\na,b,1\nb,c,{cell}\n")
    with pytest.raises(TableError, match=r"edges.csv: line 3: weight: got .*; expected a finite"):
        read_edge_table(path)


def test_values_that_are_reversed_twice_are_themselves() -> None:
    values = small_parts(directed=True)[0].edge_values
    twice = values.reversed().reversed()
    for name, array in values.named().items():
        np.testing.assert_array_equal(twice.named()[name], array)
        assert not np.array_equal(values.reversed().named()[name], array)
    assert EdgeValues().reversed().is_plain
