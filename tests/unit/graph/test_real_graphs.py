"""Real graphs: every file loads, partitioners and splits behave as published."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from retexo_fl.graph import (
    BoundaryPlan,
    assign_nodes,
    check_partition,
    check_partitions,
    cut_graph,
    find_partitions,
    list_datasets,
    load_dataset,
    make_split,
    write_partitions,
)
from tests.support.data import data_dir

pytestmark = pytest.mark.real_graphs

#: Nodes, edges, features, classes, published split: from the documentation of the files.
_SIZES = {
    "amazon_computers": (13752, 245861, 767, 10, "none"),
    "citeseer": (3327, 4552, 3703, 6, "120/500/1000"),
    "coauthor_physics": (34493, 247962, 8415, 5, "none"),
    "cora": (2708, 5278, 1433, 7, "140/500/1000"),
    "facebook_page_page": (22470, 170823, 128, 4, "none"),
    "fb100_berkeley13": (22937, 852444, 437, 6, "none"),
    "fb100_union8": (162955, 6492339, 1289, 6, "none"),
    "github": (37700, 289003, 128, 2, "none"),
    "pubmed": (19717, 44324, 500, 3, "60/500/1000"),
    "tolokers": (11758, 519000, 10, 2, "5879/2939/2940"),
}


@pytest.mark.parametrize("name", sorted(set(_SIZES) - {"fb100_union8"}))
def test_real_graph_has_its_documented_size(name: str) -> None:
    graph = load_dataset(name, data_dir=data_dir())
    nodes, edges, features, classes, split = _SIZES[name]
    assert (graph.num_nodes, graph.num_edges) == (nodes, edges)
    assert (graph.num_features, graph.num_classes) == (features, classes)
    published = graph.published_split
    masks = [] if published is None else published.named().values()
    assert ("/".join(str(mask.sum()) for mask in masks) or "none") == split


def test_list_datasets_gives_the_documented_sizes() -> None:
    found = {
        info.name: (info.nodes, info.edges, info.features, info.classes, info.split)
        for info in list_datasets(data_dir())
        if info.place == "here"
    }
    # Others may lie beside them.
    assert {name: found[name] for name in _SIZES} == _SIZES


def test_citeseer_has_fifteen_unlabelled_nodes_and_keeps_them() -> None:
    graph = load_dataset("citeseer", data_dir=data_dir())
    unlabelled = np.flatnonzero(graph.labels < 0)
    assert len(unlabelled) == 15
    assert graph.num_nodes == 3327
    assert np.count_nonzero(graph.degrees == 0) == 48
    split = make_split(graph, np.zeros(3327, dtype=int), split="random:0.2/0.1/0.7", seed=0)
    used = split.train | split.val | split.test
    assert not used[unlabelled].any()
    assert used.sum() == 3327 - 15


@pytest.mark.parametrize(
    ("partitioner", "least", "most"),
    [("random", 0.88, 0.92), ("metis", 0.08, 0.14), ("louvain", 0.10, 0.20)],
)
def test_cora_loses_the_expected_share_of_edges(
    partitioner: str, least: float, most: float
) -> None:
    graph = load_dataset("cora", data_dir=data_dir())
    edges = graph.edge_list()
    for seed in (0, 1):
        owners = assign_nodes(graph, partitioner=partitioner, clients=10, seed=seed)
        assert least < np.mean(owners[edges[0]] != owners[edges[1]]) < most
        assert np.bincount(owners).max() <= 1.05 * 270.8 + 1


def test_cora_split_per_client_and_class_has_openfgl_counts() -> None:
    graph = load_dataset("cora", data_dir=data_dir())
    owners = assign_nodes(graph, partitioner="louvain", clients=10, seed=0)
    split = make_split(graph, owners, split="per-client-class:0.2/0.4/0.4", seed=0)
    # OpenFGL 1.1.0 has 515, 1079 and 1114 on its own Louvain partition.
    assert int(split.train.sum()) == pytest.approx(515, abs=12)
    assert int(split.val.sum()) == pytest.approx(1079, abs=12)
    assert int((split.train | split.val | split.test).sum()) == 2708
    for client in range(10):
        for label in range(7):
            cell = (owners == client) & (graph.labels == label)
            size = int(cell.sum())
            assert int((split.train & cell).sum()) == size * 2 // 10
            assert int(((split.train | split.val) & cell).sum()) == size * 6 // 10


@pytest.mark.slow
def test_cora_with_one_node_per_client_can_be_cut_and_stored(tmp_path: Path) -> None:
    graph = load_dataset("cora", data_dir=data_dir())
    owners = assign_nodes(graph, partitioner="one-node", clients=2708, seed=0)
    split = make_split(graph, owners, split="published", seed=0)
    parts = cut_graph(graph, owners, split)
    assert len(parts) == 2708
    assert sum(BoundaryPlan.from_partition(part).num_send for part in parts) == 2 * 5278
    for part in parts[::97]:
        check_partition(part, source="part")
    write_partitions(parts, tmp_path / "out")
    report = check_partitions(find_partitions(tmp_path / "out"))
    assert report.num_cut_edges == report.num_edges == 5278
    assert sum(part.train for part in report.parts) == 140


@pytest.mark.parametrize("partitioner", ["random", "metis", "louvain"])
def test_real_partitions_agree_after_a_trip_to_disk(tmp_path: Path, partitioner: str) -> None:
    graph = load_dataset("citeseer", data_dir=data_dir())
    owners = assign_nodes(graph, partitioner=partitioner, clients=5, seed=3)
    split = make_split(graph, owners, split="random:0.2/0.1/0.7", seed=3)
    write_partitions(cut_graph(graph, owners, split), tmp_path / "out")
    report = check_partitions(find_partitions(tmp_path / "out"))
    assert (report.num_nodes, report.num_edges) == (3327, 4552)
    assert sum(part.train for part in report.parts) == int(split.train.sum()) == 663


@pytest.mark.parametrize(
    ("kind", "vectors", "added"), [("rows", 216_791, 0), ("cover", 140_584, 48_554)]
)
def test_vectors_of_a_large_graph_that_can_be_added(kind: str, vectors: int, added: int) -> None:
    graph = load_dataset("github", data_dir=data_dir())
    owners = assign_nodes(graph, partitioner="random", clients=16, seed=0)
    split = make_split(graph, owners, split="random:0.2/0.1/0.7", seed=0)
    plans = [BoundaryPlan.from_partition(part, kind) for part in cut_graph(graph, owners, split)]
    assert sum(plan.num_receive for plan in plans) == vectors
    assert sum(plan.num_added for plan in plans) == added


@pytest.mark.slow
def test_largest_graph_can_be_cut() -> None:
    graph = load_dataset("fb100_union8", data_dir=data_dir())
    nodes, edges, _, classes, _ = _SIZES["fb100_union8"]
    assert (graph.num_nodes, graph.num_edges, graph.num_classes) == (nodes, edges, classes)
    owners = assign_nodes(graph, partitioner="random", clients=8, seed=0)
    split = make_split(graph, owners, split="random:0.2/0.1/0.7", seed=0)
    parts = cut_graph(graph, owners, split)
    plans = [BoundaryPlan.from_partition(part) for part in parts]
    assert sum(len(part.indices) for part in parts) == 2 * edges
    assert sum(plan.num_send for plan in plans) == sum(plan.num_receive for plan in plans)
