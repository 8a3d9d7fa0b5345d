"""Which of several labels are read of arrays, PyG's stores, NetworkX and ``.npz`` files."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import networkx as nx
import numpy as np
import pytest

from retexo_fl.errors import DatasetError
from retexo_fl.graph.graph import Graph
from retexo_fl.graph.labels import MULTI_LABEL, REGRESSION
from retexo_fl.graph.sources.datasets import load_dataset
from retexo_fl.graph.sources.npz_graph import read_npz_graph
from retexo_fl.graph.sources.plugin_graph import as_graph
from retexo_fl.graph.sources.reading import Reading

EDGES = np.array([[0, 1, 2, 3], [1, 2, 3, 4]])
X = np.arange(10, dtype=np.float32).reshape(5, 2)
#: Two labels of five nodes, each with a gap of its own.
Y = np.array([[0, 1], [1, -1], [-1, 0], [1, 1], [0, 0]])
BESIDE = np.array([2, 0, 1, -1, 2])


def arrays(**more: Any) -> dict[str, Any]:
    return {"x": X, "edge_index": EDGES, "y": Y, "beside": BESIDE, **more}


def of_mapping(_: Path, given: dict[str, Any], reading: Reading) -> Graph | None:
    return as_graph(given, name="given", attributes=(), reading=reading)


def of_data(_: Path, given: dict[str, Any], reading: Reading) -> Graph | None:
    return as_graph(SimpleNamespace(**given), name="given", attributes=(), reading=reading)


def of_stores(_: Path, given: dict[str, Any], reading: Reading) -> Graph | None:
    nodes = {key: value for key, value in given.items() if key != "edge_index"}
    typed = {
        "nodes": {"account": nodes, "shop": {"num_nodes": 2}},
        "edges": {
            ("account", "knows", "account"): EDGES,
            ("account", "pays", "shop"): np.array([[0, 4], [0, 1]]),
        },
    }
    return as_graph(typed, name="given", attributes=(), reading=reading)


def of_file(folder: Path, given: dict[str, Any], reading: Reading) -> Graph | None:
    np.savez(folder / "given.npz", **given)
    return read_npz_graph(folder / "given.npz", reading=reading)


Source = Callable[[Path, dict[str, Any], Reading], "Graph | None"]
SOURCES = [of_mapping, of_data, of_stores, of_file]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    ("label", "more", "expected"),
    [
        ("0", {}, Y[:, 0]),
        ("1", {}, Y[:, 1]),
        ("dormant", {"y_names": ["fraud", "dormant"]}, Y[:, 1]),
        ("beside", {}, BESIDE),
        # An array goes before a column of that name.
        ("beside", {"y_names": ["beside", "dormant"]}, BESIDE),
        ("", {"y": BESIDE}, BESIDE),
        ("y", {"y": BESIDE}, BESIDE),
        ("1", {"y": np.where(Y < 0, np.nan, Y)}, Y[:, 1]),
    ],
)
def test_labels_are_chosen(
    tmp_path: Path, source: Source, label: str, more: dict[str, Any], expected: np.ndarray
) -> None:
    graph = source(tmp_path, arrays(**more), Reading(label=label))
    assert graph is not None
    assert graph.labels[:5].tolist() == expected.tolist()
    assert (graph.labels[5:] == -1).all()


@pytest.mark.parametrize("source", SOURCES)
def test_a_column_may_hold_numbers(tmp_path: Path, source: Source) -> None:
    y = np.stack([np.zeros(5), [0.5, np.nan, 2, 3, 4]], axis=1)
    graph = source(tmp_path, arrays(y=y), Reading(label="1", labels=REGRESSION))
    assert graph is not None
    np.testing.assert_array_equal(graph.labels[:5], y[:, 1])


@pytest.mark.parametrize("source", SOURCES)
def test_an_array_may_hold_several_labels(tmp_path: Path, source: Source) -> None:
    given = arrays(both=Y, y=BESIDE)
    graph = source(tmp_path, given, Reading(label="both", labels=MULTI_LABEL))
    assert graph is not None
    assert graph.labels[:5].tolist() == Y.tolist()


@pytest.mark.parametrize(
    ("label", "more", "told"),
    [
        (
            "2",
            {},
            "label-column: got '2'; expected the name of an array, or of a column of y: 0, 1",
        ),
        (
            "0",
            {"y_names": ["fraud", "dormant"]},
            "label-column: got '0'; expected the name of an array, or of a column of y: fraud, dor",
        ),
        ("0", {"y": BESIDE}, "label-column: got '0'; expected the name of an array"),
        (
            "",
            {},
            r"y: got shape \(5, 2\); expected one class for each node with task classes, "
            "label-column NUMBER for one of the columns, or another task",
        ),
    ],
)
@pytest.mark.parametrize("source", [of_mapping, of_data, of_file])
def test_what_is_not_there_is_refused(
    tmp_path: Path, source: Source, label: str, more: dict[str, Any], told: str
) -> None:
    with pytest.raises(DatasetError, match=told):
        source(tmp_path, arrays(**more), Reading(label=label))


def test_a_type_must_have_what_is_chosen(tmp_path: Path) -> None:
    told = "label-column: no type has 'fraud'; expected the name of an array beside x, or name or"
    with pytest.raises(DatasetError, match=told):
        of_stores(tmp_path, arrays(), Reading(label="fraud"))


@pytest.mark.parametrize("source", [of_mapping, of_data, of_file])
def test_who_is_predicted_needs_no_labels(tmp_path: Path, source: Source) -> None:
    given = arrays()
    del given["y"]
    graph = source(tmp_path, given, Reading(label="fraud", outputs=3))
    assert graph is not None
    assert (graph.labels == -1).all()


def test_an_attribute_of_nodes_is_chosen() -> None:
    graph = nx.path_graph(3)
    for node, there in graph.nodes(data=True):
        there |= {"x": [1.0, node], "y": 0, "fraud": [1, 0, None][node]}
    read = as_graph(graph, name="given", attributes=(), reading=Reading(label="fraud"))
    assert read is not None
    assert read.labels.tolist() == [1, 0, -1]
    told = "label-column: no node has 'dormant'; expected the name of an attribute"
    with pytest.raises(DatasetError, match=told):
        as_graph(graph, name="given", attributes=(), reading=Reading(label="dormant"))


@pytest.mark.parametrize("name", ["digits", "synthetic:nodes=20,edges=30,classes=2,features=4"])
def test_graphs_that_are_made_have_their_labels(name: str) -> None:
    told = re.escape(f"label-column: got 'fraud', but data set {name!r} has its labels; expected")
    with pytest.raises(DatasetError, match=told):
        load_dataset(name, data_dir=None, reading=Reading(label="fraud"))
    graph = load_dataset(name, data_dir=None)
    with pytest.raises(DatasetError, match="label-column: got 'fraud', but dataset 'given' has"):
        as_graph(graph, name="given", attributes=(), reading=Reading(label="fraud"))
