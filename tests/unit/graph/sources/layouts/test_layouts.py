"""Folders and files of known layouts: the graph that they hold, and all that is wrong with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array

from retexo_fl.errors import ConfigurationError, DatasetError, TableError
from retexo_fl.graph import Graph, load_dataset
from retexo_fl.graph.labels import labels_for
from retexo_fl.graph.sources.dataset_list import list_datasets
from retexo_fl.graph.sources.edge_rules import EdgeRules
from retexo_fl.graph.sources.reading import Reading
from tests.support.layouts import (
    ENDS,
    FEATURES,
    LABELS,
    NODES,
    uses,
    write_gnn_benchmark,
    write_heterophilous,
    write_musae,
    write_ogb,
    write_rows,
)


def pairs(graph: Graph) -> set[tuple[int, int]]:
    rows = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    return {(int(min(ends)), int(max(ends))) for ends in zip(rows, graph.indices, strict=True)}


RING = {(int(min(ends)), int(max(ends))) for ends in ENDS.T}


@pytest.mark.parametrize("kind", ["ogb", "heterophilous", "gnn-benchmark", "dense"])
def test_a_layout_of_numbers_is_the_graph_it_holds(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = {
        "ogb": lambda: write_ogb(tmp_path / "ring"),
        "heterophilous": lambda: write_heterophilous(tmp_path / "ring.npz"),
        "gnn-benchmark": lambda: write_gnn_benchmark(tmp_path / "ring.npz"),
        "dense": lambda: write_gnn_benchmark(tmp_path / "ring.npz", dense=True),
    }[kind]()
    graph = load_dataset(str(path), data_dir=None)
    by_name = load_dataset("ring", data_dir=tmp_path)
    for found in (graph, by_name):
        assert found.name == "ring"
        assert pairs(found) == RING
        np.testing.assert_array_equal(found.labels, LABELS)
        features = found.features
        dense = features.toarray() if isinstance(features, csr_array) else features
        np.testing.assert_array_equal(dense, FEATURES)
    assert "self loops left out: 1, repetitions merged (max): 3" in caplog.text
    split = graph.published_split
    if kind in {"ogb", "heterophilous"}:
        assert split is not None
        for use, mask in enumerate(split.named().values()):
            np.testing.assert_array_equal(mask, uses() == use)
    else:
        assert split is None


def test_several_splits_of_a_layout_are_several_published_splits(tmp_path: Path) -> None:
    folder = write_ogb(tmp_path / "ring", splits=("a", "b"))
    assert load_dataset(str(folder), data_dir=None).masks.columns == 2
    path = write_heterophilous(tmp_path / "three.npz")
    assert load_dataset(str(path), data_dir=None).masks.columns == 3


def test_direction_and_rules_that_are_chosen_hold(tmp_path: Path) -> None:
    folder = write_ogb(tmp_path / "ring")
    directed = EdgeRules(directed=True, self_loops="drop")
    graph = load_dataset(str(folder), data_dir=None, reading=Reading(rules=directed))
    assert graph.is_directed
    assert pairs(graph) == RING
    with pytest.raises(DatasetError, match="a self loop"):
        load_dataset(str(folder), data_dir=None, reading=Reading(rules=EdgeRules(merge="sum")))


def test_ogb_has_attributes_several_labels_and_values_of_edges(tmp_path: Path) -> None:
    folder = write_ogb(tmp_path / "ring")
    graph = load_dataset(str(folder), data_dir=None, attributes=("node_year",))
    assert graph.attributes["node_year"].tolist() == [
        b"%d" % (2010 + node % 3) for node in range(NODES)
    ]
    write_rows(folder / "raw" / "edge.csv.gz", ENDS.T)
    write_rows(folder / "raw" / "node-label.csv.gz", np.stack((LABELS, 1 - LABELS), axis=1))
    write_rows(folder / "raw" / "edge-feat.csv.gz", np.arange(2 * NODES).reshape(-1, 2))
    write_rows(folder / "raw" / "edge_weight.csv.gz", np.arange(NODES) + 1)
    reading = Reading(labels=labels_for("multi-label"))
    graph = load_dataset(str(folder), data_dir=None, reading=reading)
    assert graph.labels.tolist() == np.stack((LABELS, 1 - LABELS), axis=1).tolist()
    weights, carried = graph.edge_values.weights, graph.edge_values.attributes
    assert weights is not None
    assert carried is not None
    # Each edge is there from both of its ends.
    assert sorted(weights.tolist()) == sorted([*range(1, NODES + 1)] * 2)
    assert carried.shape[1] == 2


def test_a_label_that_is_not_a_number_is_unlabelled(tmp_path: Path) -> None:
    folder = write_ogb(tmp_path / "ring", splits=())
    write_rows(folder / "raw" / "node-label.csv.gz", [np.nan, *LABELS[1:].astype(float)])
    graph = load_dataset(str(folder), data_dir=None)
    assert graph.labels.tolist() == [-1, *LABELS[1:].tolist()]


def test_all_problems_of_an_ogb_folder_are_told_together(tmp_path: Path) -> None:
    folder = write_ogb(tmp_path / "ring")
    raw = folder / "raw"
    write_rows(raw / "edge.csv.gz", [[0, 1], [2, NODES], [-1, 3]])
    write_rows(raw / "node-label.csv.gz", LABELS[1:])
    write_rows(raw / "node-feat.csv.gz", np.array([["1", "2"], ["x", "3"], ["4", ""]]))
    write_rows(folder / "split" / "time" / "valid.csv.gz", [*np.flatnonzero(uses() == 1), 99])
    first = int(np.flatnonzero(uses() == 0)[0])
    write_rows(folder / "split" / "time" / "test.csv.gz", [first])
    with pytest.raises(TableError) as refused:
        load_dataset(str(folder), data_dir=None)
    split = folder / "split" / "time"
    numbers = "expected numbers with commas between them"
    assert refused.value.problems == (
        f"{raw / 'edge.csv.gz'}: line 2: got 2,30; expected nodes 0 to 29",
        f"{raw / 'edge.csv.gz'}: line 3: got -1,3; expected nodes 0 to 29",
        f"{raw / 'node-feat.csv.gz'}: line 2: column 0: got 'x'; {numbers}",
        f"{raw / 'node-feat.csv.gz'}: line 3: column 1: got ''; {numbers}",
        f"{raw / 'node-label.csv.gz'}: has 29 rows; expected 30, one for each node",
        f"{split / 'valid.csv.gz'}: line 11: got 99; expected nodes 0 to 29",
        f"{split / 'test.csv.gz'}: line 1: {first} is in train, too",
    )


def test_a_typed_ogb_folder_and_one_of_several_graphs_are_refused(tmp_path: Path) -> None:
    folder = write_ogb(tmp_path / "ring")
    write_rows(folder / "raw" / "num-node-list.csv.gz", [10, 20])
    with pytest.raises(TableError, match=r"num-node-list.csv.gz: has 2 graphs; expected one"):
        load_dataset(str(folder), data_dir=None)
    write_rows(folder / "raw" / "triplet-type-list.csv.gz", [1])
    with pytest.raises(DatasetError, match="a graph of several types of nodes or edges"):
        load_dataset(str(folder), data_dir=None)
    (folder / "raw" / "triplet-type-list.csv.gz").unlink()
    (folder / "raw" / "edge.csv.gz").write_bytes(b"\x1f\x8bno")
    with pytest.raises(TableError, match=r"edge.csv.gz: cannot be read, or damaged"):
        load_dataset(str(folder), data_dir=None)


def test_a_musae_folder_is_the_graph_it_holds(tmp_path: Path) -> None:
    graph = load_dataset(str(write_musae(tmp_path / "ring")), data_dir=None, attributes=("name",))
    assert pairs(graph) == RING
    # Classes are in the order of their names.
    assert (graph.num_classes, graph.recipe is not None and graph.recipe.classes) == (
        2,
        ("ml", "web"),
    )
    assert graph.labels.tolist() == [1 - label for label in LABELS.tolist()]
    assert isinstance(graph.features, csr_array)
    assert graph.features.shape == (NODES, 7)
    assert graph.features.toarray()[7].tolist() == [0, 0, 1, 0, 0, 0, 1]
    assert graph.node_keys[7] == b"7"
    assert graph.attributes["name"][7] == b"n7"


def test_all_problems_of_a_musae_folder_are_told_together(tmp_path: Path) -> None:
    folder = write_musae(tmp_path / "ring")
    edges, targets = folder / "musae_ring_edges.csv", folder / "musae_ring_target.csv"
    edges.write_text(edges.read_text() + "0,77\n88,1\n")
    lines = len(edges.read_text().splitlines())
    with pytest.raises(TableError) as refused:
        load_dataset(str(folder), data_dir=None)
    assert [problem.partition(";")[0] for problem in refused.value.problems] == [
        f"{edges}: line {lines - 1}: id_2: '77' is not a key of {targets}",
        f"{edges}: line {lines}: id_1: '88' is not a key of {targets}",
    ]
    write_musae(folder)
    targets.write_text(targets.read_text() + "3,again,ml\n40,new,web\n")
    with pytest.raises(TableError) as refused:
        load_dataset(str(folder), data_dir=None)
    features = folder / "musae_ring_features.json"
    assert refused.value.problems == (
        f"{targets}: line 32: id: '3' is in line 5, too; expected each id once",
        f"{features}: node '40' is missing; expected its columns",
    )


def test_features_may_be_missing(tmp_path: Path) -> None:
    ogb, musae = write_ogb(tmp_path / "ogb"), write_musae(tmp_path / "musae")
    (ogb / "raw" / "node-feat.csv.gz").unlink()
    (musae / "musae_ring_features.json").unlink()
    for folder in (ogb, musae):
        graph = load_dataset(str(folder), data_dir=None)
        assert (graph.num_nodes, graph.num_features) == (NODES, 0)


def test_a_path_is_a_file_or_a_folder_of_a_layout(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "table.csv").write_text("key\n")
    cases = {
        tmp_path / "empty": (DatasetError, "is a folder of no known layout"),
        tmp_path / "table.csv": (ConfigurationError, "is neither a .npz file nor a folder"),
        tmp_path / "gone.npz": (ConfigurationError, "is not there"),
        tmp_path / "digits.npz": (ConfigurationError, "cannot be the name of a file or folder"),
    }
    for path, (error, told) in cases.items():
        with pytest.raises(error, match=f"^dataset: .*{told}"):
            load_dataset(str(path), data_dir=None)
    path = write_heterophilous(tmp_path / "ring.npz")
    with pytest.raises(ConfigurationError, match="^data-dir: cannot be given with the path"):
        load_dataset(str(path), data_dir=tmp_path)


def test_files_of_other_layouts_are_listed(tmp_path: Path) -> None:
    write_heterophilous(tmp_path / "ring.npz")
    (info,) = (one for one in list_datasets(tmp_path) if one.name == "ring")
    assert (info.nodes, info.edges, info.features, info.classes, info.split) == (
        *(NODES, NODES, 4, 2),
        "several",
    )


def test_a_damaged_file_of_a_layout_is_refused_by_array(tmp_path: Path) -> None:
    path = write_gnn_benchmark(tmp_path / "ring.npz")
    with np.load(path, allow_pickle=True) as file:
        arrays = {name: file[name] for name in file.files}
    np.savez(path, **{**arrays, "labels": LABELS[1:]})
    with pytest.raises(DatasetError, match=r"labels: got shape \(29,\); expected 30 rows"):
        load_dataset(str(path), data_dir=None)
    np.savez(path, **{**arrays, "adj_indices": arrays["adj_indices"] + NODES})
    with pytest.raises(DatasetError, match="adj: indices: runs to 59; expected 0 to 29"):
        load_dataset(str(path), data_dir=None)
