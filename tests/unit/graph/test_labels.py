"""Labels of every task, from every source."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import networkx
import numpy as np
import pytest

from retexo_fl.errors import ConfigurationError, DatasetError, PartitionError, TableError
from retexo_fl.graph import (
    Graph,
    check_partitions,
    cut_graph,
    find_partitions,
    load_dataset,
    make_split,
    open_partition,
    write_partitions,
)
from retexo_fl.graph.checks import ArrayChecks
from retexo_fl.graph.labels import counted_from_zero, labels_for
from retexo_fl.graph.parts.local_part import ClientTables, make_local_part
from retexo_fl.graph.parts.partition import check_partition
from retexo_fl.graph.parts.peers import peers_of, read_peers
from retexo_fl.graph.sources.from_networkx import from_networkx
from retexo_fl.graph.sources.from_pyg import from_pyg
from retexo_fl.graph.sources.npz_graph import describe_npz_graph
from retexo_fl.graph.sources.reading import Reading
from retexo_fl.graph.sources.table_graph import read_table_graph
from retexo_fl.graph.sources.tables import read_edge_table, read_node_table
from tests.support.goals import NODES, goal_arrays, write_goals

FEATURES, EDGES, NUMBERS, LABELS = goal_arrays()
OF = {"regression": NUMBERS, "multi-label": LABELS}
TASKS = tuple(OF)


def graph_of(task: str) -> Graph:
    return Graph.from_edges(EDGES, name=task, features=FEATURES, labels=OF[task])


@pytest.mark.parametrize("task", TASKS)
def test_a_graph_knows_its_task_and_its_labelled_nodes(task: str) -> None:
    graph = graph_of(task)
    assert graph.task == task
    assert graph.num_classes == {"regression": 1, "multi-label": 3}[task]
    unlabelled = np.isnan(NUMBERS) if task == "regression" else (LABELS < 0).all(axis=1)
    assert unlabelled.any()
    np.testing.assert_array_equal(graph.labelled, ~unlabelled)
    np.testing.assert_array_equal(graph.labels, OF[task])


@pytest.mark.parametrize("task", TASKS)
def test_splits_are_of_labelled_nodes(task: str) -> None:
    graph, nobody = graph_of(task), np.zeros(NODES, dtype=int)
    split = make_split(graph, nobody, split="random:0.4/0.3/0.3", seed=0)
    taken = split.train | split.val | split.test
    np.testing.assert_array_equal(taken, graph.labelled)
    assert int(split.train.sum()) == round(0.4 * graph.labelled.sum())
    with pytest.raises(ConfigurationError, match=f"does not fit the labels of data set '{task}'"):
        make_split(graph, nobody, split="per-client-class:0.4/0.3/0.3", seed=0)


@pytest.mark.parametrize("task", TASKS)
def test_parts_keep_their_labels_on_disk(tmp_path: Path, task: str) -> None:
    graph, owners = graph_of(task), np.arange(NODES) % 3
    split = make_split(graph, owners, split="random:0.4/0.3/0.3", seed=0)
    parts = cut_graph(graph, owners, split)
    write_partitions(parts, tmp_path / "parts")
    check_partitions(find_partitions(tmp_path / "parts"))
    for part, path in zip(parts, find_partitions(tmp_path / "parts"), strict=True):
        found = open_partition(path)
        assert found.task == task
        assert found.labels.dtype == part.labels.dtype
        np.testing.assert_array_equal(found.labels, part.labels)
        nodes = found.node_keys.astype(int)
        np.testing.assert_array_equal(found.labels, OF[task][nodes])


@pytest.mark.parametrize("task", TASKS)
def test_npz_files_tell_their_task_by_the_form_of_y(tmp_path: Path, task: str) -> None:
    folder = write_goals(tmp_path)
    graph = load_dataset(task, data_dir=folder)
    assert graph.task == task
    np.testing.assert_array_equal(graph.labels, OF[task])
    assert describe_npz_graph(folder / f"{task}.npz")["classes"] == graph.num_classes


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("ending", ["csv", "npz", "parquet"])
def test_tables_hold_numbers_and_several_labels(tmp_path: Path, task: str, ending: str) -> None:
    nodes, edges = tmp_path / f"nodes.{ending}", tmp_path / "edges.csv"
    _write_nodes(nodes, task)
    edges.write_text("source,target\n" + "".join(f"{a},{b}\n" for a, b in EDGES.T))
    graph = read_table_graph(nodes, edges, reading=Reading(labels=labels_for(task)))
    assert graph.task == task
    np.testing.assert_array_equal(graph.labels, OF[task])


@pytest.mark.parametrize("task", TASKS)
def test_a_local_part_is_the_part_of_the_whole_graph(tmp_path: Path, task: str) -> None:
    graph, owners = graph_of(task), np.zeros(NODES, dtype=int)
    split = make_split(graph, owners, split="random:0.4/0.3/0.3", seed=0)
    (whole,) = cut_graph(graph, owners, split)
    (tmp_path / "peers.toml").write_text(peers_of([whole]).to_toml())
    peers = read_peers(tmp_path / "peers.toml")
    assert peers.labels.name == task
    nodes, edges = tmp_path / "nodes.csv", tmp_path / "edges.csv"
    _write_nodes(nodes, task, split=[whole.train_mask, whole.val_mask, whole.test_mask])
    edges.write_text("source,target\n" + "".join(f"{a},{b}\n" for a, b in EDGES.T))
    tables = ClientTables(
        nodes=read_node_table(nodes, num_features=5, kind=peers.labels),
        edges=(read_edge_table(edges),),
    )
    part = make_local_part(tables, peers, 0)
    np.testing.assert_array_equal(part.labels, whole.labels)
    np.testing.assert_array_equal(part.train_mask, whole.train_mask)
    by_key = replace(tables, nodes=replace(tables.nodes, split=None))
    drawn = make_local_part(by_key, peers, 0, split="by-key:0.4/0.3/0.3")
    taken = drawn.train_mask | drawn.val_mask | drawn.test_mask
    np.testing.assert_array_equal(taken, graph.labelled[drawn.node_keys.astype(int)])


def test_peers_of_classes_are_named_as_ever(tmp_path: Path) -> None:
    graph = load_dataset("digits", data_dir=None)
    owners = np.zeros(graph.num_nodes, dtype=int)
    split = make_split(graph, owners, split="random:0.4/0.3/0.3", seed=0)
    assert "task" not in peers_of(cut_graph(graph, owners, split)).to_toml()


@pytest.mark.parametrize("task", TASKS)
def test_pyg_and_networkx_give_labels_of_every_task(task: str) -> None:
    labels = OF[task].astype(np.float64)
    labels = np.where(labels < 0, np.nan, labels) if task == "multi-label" else labels
    given = labels if task == "multi-label" else labels[:, None]
    data = SimpleNamespace(edge_index=EDGES, x=FEATURES, y=given)
    graph = from_pyg(data, task=task)
    assert graph.task == task
    np.testing.assert_array_equal(graph.labels, OF[task])
    made = networkx.Graph()
    for node in range(NODES):
        known = ~np.isnan(labels[node]).all()
        value = {"y": labels[node].tolist()} if known else {}
        made.add_node(node, x=FEATURES[node].tolist(), **value)
    made.add_edges_from(EDGES.T.tolist())
    again = from_networkx(made, task=task)
    np.testing.assert_array_equal(again.labels, OF[task])


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        (np.full(NODES, np.nan), "labels: no node is labelled; expected floats, one for each node"),
        (np.full((NODES, 2), -1), "labels: no node is labelled; expected integers 0, 1 or -1"),
        (np.where(np.arange(NODES) == 4, np.inf, 1.0), "labels: row 4 is infinite"),
        (np.where(np.arange(NODES) == 4, -3.5e38, 1.0), "labels: row 4 is -3.5e\\+38"),
        (np.full((NODES, 2), 2), "labels: row 0 has 2; expected 0, 1, or -1 for unknown"),
        (np.zeros((NODES, 0), int), r"labels: got int64 of shape \(60, 0\); expected integers"),
        (np.zeros((NODES, 2, 2), int), r"labels: got int64 of shape \(60, 2, 2\); expected"),
        (np.zeros((NODES, 2)), r"labels: got float64 of shape \(60, 2\); expected integers, one"),
    ],
)
def test_labels_that_are_none_are_refused(labels: np.ndarray, told: str) -> None:
    with pytest.raises(DatasetError, match=f"^g: {told}"):
        Graph.from_edges(EDGES, name="g", features=FEATURES, labels=labels)


@pytest.mark.parametrize(
    ("column", "task", "value", "told"),
    [
        (
            "label",
            "regression",
            "high",
            "got 'high'; expected a number of at most 3.4e+38 in size",
        ),
        (
            "label",
            "regression",
            "inf",
            "got 'inf'; expected a number of at most 3.4e+38 in size",
        ),
        ("label_1", "multi-label", "2", "got '2'; expected 0, 1, or nothing"),
    ],
)
def test_cells_that_are_no_labels_are_named(
    tmp_path: Path, column: str, task: str, value: str, told: str
) -> None:
    _write_nodes(tmp_path / "nodes.csv", task)
    lines = (tmp_path / "nodes.csv").read_text().splitlines()
    fields = lines[3].split(",")
    fields[lines[0].split(",").index(column)] = value
    lines[3] = ",".join(fields)
    (tmp_path / "nodes.csv").write_text("\n".join(lines))
    with pytest.raises(TableError) as raised:
        read_node_table(tmp_path / "nodes.csv", infer_features=True, kind=labels_for(task))
    assert "line 4" in str(raised.value)
    assert column in str(raised.value)
    assert told in str(raised.value)


def test_a_label_without_a_column_is_named(tmp_path: Path) -> None:
    (tmp_path / "nodes.csv").write_text("key,label_0,label_2,x_0\na,1,0,1\n")
    with pytest.raises(TableError, match="label_1"):
        read_node_table(tmp_path / "nodes.csv", infer_features=True, kind=labels_for("multi-label"))
    with pytest.raises(TableError, match="label"):
        read_node_table(tmp_path / "nodes.csv", infer_features=True)


@pytest.mark.parametrize("task", TASKS)
def test_a_part_is_checked_by_its_task(task: str) -> None:
    graph, owners = graph_of(task), np.zeros(NODES, dtype=int)
    split = make_split(graph, owners, split="random:0.4/0.3/0.3", seed=0)
    (part,) = cut_graph(graph, owners, split)
    with pytest.raises(PartitionError, match="labels: there are 7 outputs"):
        check_partition(replace(part, num_classes=7), source="part")
    with pytest.raises(PartitionError, match="labels: has 59 rows; expected 60"):
        check_partition(replace(part, labels=part.labels[1:]), source="part")
    with pytest.raises(ConfigurationError, match=f"^task: classes .* its part, .*expected {task}$"):
        labels_for("classes").check_fit(part.labels, source="its part")


def _write_nodes(path: Path, task: str, split: list[np.ndarray] | None = None) -> None:
    labels = OF[task] if task == "multi-label" else NUMBERS[:, None]
    names = ["label"] if task == "regression" else ["label_0", "label_1", "label_2"]
    if path.suffix == ".npz":
        columns = dict(zip(names, labels.T, strict=True))
        np.savez(path, key=np.arange(NODES), x=FEATURES, **columns)
        return
    keys = np.arange(NODES)
    if split is not None:
        keys = np.array(sorted(range(NODES), key=lambda node: str(node).encode()))
    rows = []
    for place, node in enumerate(keys):
        cells = ["" if np.isnan(v) or v == -1 else repr(v.item()) for v in labels[node]]
        use = []
        if split is not None:
            masks = zip(("train", "val", "test"), split, strict=True)
            use = [next((word for word, mask in masks if mask[place]), "")]
        rows.append([str(node), *cells, *use, *(repr(float(v)) for v in FEATURES[node])])
    head = ["key", *names, *(["split"] if split is not None else []), *(f"x_{f}" for f in range(5))]
    if path.suffix == ".csv":
        path.write_text("".join(",".join(row) + "\n" for row in [head, *rows]))
        return
    import pyarrow
    from pyarrow import parquet

    cells_of = list(zip(*rows, strict=True))
    known = {
        name: [float(c) if c else None for c in cells_of[i + 1]] for i, name in enumerate(names)
    }
    numbers = {f"x_{f}": FEATURES[:, f] for f in range(5)}
    parquet.write_table(pyarrow.table({"key": list(cells_of[0]), **known, **numbers}), path)


def test_a_class_that_a_model_does_not_know_is_named_by_its_row() -> None:
    checks = ArrayChecks(source="own", error=DatasetError)
    labels = np.array(["cat", "", "cow"])
    with pytest.raises(DatasetError, match="^own: y: row 2 is cow; expected a class: cat, dog$"):
        counted_from_zero(checks, "y", labels, known=("cat", "dog"))
