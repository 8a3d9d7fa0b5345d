"""NetworkX graphs, made by NetworkX itself."""

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch

from retexo_fl.errors import DatasetError
from retexo_fl.graph import EdgeRules, from_networkx
from tests.unit.graph.graphs import (
    SMALL_EDGES,
    SMALL_FEATURES,
    SMALL_KEYS,
    SMALL_LABELS,
    SMALL_SPLIT,
    small_graph,
)
from tests.unit.graph.sources.test_from_pyg import assert_same

NAMES = [key.decode() for key in SMALL_KEYS.tolist()]


def small_networkx(**of_first: Any) -> Any:
    """Return the small graph as NetworkX has it, with some attributes of its first node changed.

    An attribute that is None is left out.
    """
    graph = nx.Graph()
    for row, name in enumerate(NAMES):
        there = {"x": SMALL_FEATURES[row].tolist(), "y": int(SMALL_LABELS[row])}
        graph.add_node(name, **there)
    graph.add_edges_from((NAMES[one], NAMES[other]) for one, other in SMALL_EDGES.T)
    for key, value in of_first.items():
        if value is None:
            del graph.nodes[NAMES[0]][key]
        else:
            graph.nodes[NAMES[0]][key] = value
    return graph


def with_split(graph: Any) -> Any:
    for word, mask in zip(("train", "val", "test"), SMALL_SPLIT.named().values(), strict=True):
        for row in np.flatnonzero(mask):
            graph.nodes[NAMES[row]]["split"] = word
    return graph


def test_a_graph_with_names_is_the_same_graph() -> None:
    assert_same(from_networkx(with_split(small_networkx()), name="small"), small_graph())
    without = from_networkx(small_networkx())
    assert (without.name, without.published_split) == ("networkx", None)


def test_split_may_be_three_booleans() -> None:
    graph = small_networkx()
    for name, mask in SMALL_SPLIT.named().items():
        nx.set_node_attributes(graph, dict(zip(NAMES, mask.tolist(), strict=True)), name)
    assert_same(from_networkx(graph), small_graph())
    graph.nodes["a"]["val_mask"] = "yes"
    with pytest.raises(DatasetError, match="networkx: val_mask: got .*; expected booleans, or 0"):
        _ = from_networkx(graph).published_split


def test_other_names_of_attributes_are_taken() -> None:
    graph = with_split(small_networkx())
    renamed = nx.Graph()
    names = {"x": "age", "y": "kind", "split": "use"}
    for node, there in graph.nodes(data=True):
        renamed.add_node(node, **{names[key]: value for key, value in there.items()})
    renamed.add_edges_from(graph.edges())
    found = from_networkx(renamed, features="age", labels="kind", split="use")
    assert_same(found, small_graph())


@pytest.mark.parametrize(
    "value", [[0.0, 0.0], (0, 0), np.zeros(2, np.float64), torch.zeros(2, requires_grad=True)]
)
def test_features_may_be_lists_arrays_or_tensors(value: Any) -> None:
    assert_same(from_networkx(with_split(small_networkx(x=value))), small_graph())


@pytest.mark.parametrize("value", [0, 0.0, np.int8(0), torch.tensor(0)])
def test_labels_may_be_any_whole_number(value: Any) -> None:
    assert_same(from_networkx(with_split(small_networkx(y=value))), small_graph())


@pytest.mark.parametrize("value", [None, float("nan"), -1])
def test_labels_may_be_absent(value: Any) -> None:
    graph = from_networkx(small_networkx(y=value))
    assert graph.labels.tolist() == [-1, *SMALL_LABELS[1:]]


def test_one_number_is_one_feature() -> None:
    graph = small_networkx()
    nx.set_node_attributes(graph, {name: row for row, name in enumerate(NAMES)}, "x")
    assert from_networkx(graph).features.tolist() == [[0], [1], [2], [3], [4], [5]]


def test_names_become_keys() -> None:
    graph = nx.relabel_nodes(small_networkx(), {"d": 7, "a": "ü", "c": b"raw", "b": np.int64(-3)})
    assert from_networkx(graph).node_keys.tolist() == [
        *(b"7", "ü".encode(), b"raw", b"-3", b"ab", b"z"),
    ]


@pytest.mark.parametrize("name", [(0, 1), 1.5, "", "a\0", None.__class__, True])
def test_names_that_are_no_keys_are_refused(name: Any) -> None:
    graph = nx.relabel_nodes(small_networkx(), {"d": name})
    with pytest.raises(DatasetError, match="networkx: nodes: .* cannot be a key; expected text"):
        from_networkx(graph)


def test_names_that_are_the_same_key_are_refused() -> None:
    graph = nx.relabel_nodes(small_networkx(), {"d": 7, "a": "7"})
    with pytest.raises(DatasetError, match="node_keys: rows 0 and 1 are both '7'"):
        from_networkx(graph)


def test_attributes_are_text_or_whole_numbers() -> None:
    graph = small_networkx()
    nx.set_node_attributes(graph, dict(zip(NAMES, [1, "1", 10, "x", 2, 2], strict=True)), "site")
    graph.nodes["c"]["site"] = torch.tensor(10)
    found = from_networkx(graph, attributes=("site",))
    assert found.attributes["site"].tolist() == [b"1", b"1", b"10", b"x", b"2", b"2"]
    graph.nodes["c"]["site"] = 1.5
    with pytest.raises(DatasetError, match="networkx: site: row 2 is 1.5; expected text or a who"):
        from_networkx(graph, attributes=("site",))
    del graph.nodes["c"]["site"]
    with pytest.raises(DatasetError, match="networkx: site: node 'c' has none; expected a value"):
        from_networkx(graph, attributes=("site",))
    with pytest.raises(DatasetError, match="attribute 'town'.*: site, x, y$"):
        from_networkx(graph, attributes=("town",))


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (nx.DiGraph, "roads: a directed graph; expected edges-are directed, or merge-"),
        (nx.MultiDiGraph, "roads: a directed graph"),
        (nx.MultiGraph, "roads: a multigraph"),
    ],
)
def test_graphs_of_other_kinds_are_refused(kind: type[Any], sentence: str) -> None:
    with pytest.raises(DatasetError) as caught:
        from_networkx(kind(small_networkx()), name="roads")
    assert str(caught.value).startswith(sentence)


def test_self_loops_are_refused_or_left_out(caplog: pytest.LogCaptureFixture) -> None:
    graph = with_split(small_networkx())
    graph.add_edge("z", "z")
    with pytest.raises(DatasetError, match=r"networkx: edges: column 5 is \(5, 5\), a self loop"):
        from_networkx(graph)
    assert_same(from_networkx(graph, rules=EdgeRules(self_loops="drop")), small_graph())
    assert "self loops left out: 1" in caplog.text


def test_weights_and_attributes_of_edges_are_read(caplog: pytest.LogCaptureFixture) -> None:
    graph = small_networkx()
    graph.edges["a", "d"]["weight"] = 2.0
    nx.set_edge_attributes(graph, {edge: place for place, edge in enumerate(graph.edges)}, "e_year")
    nx.set_edge_attributes(graph, "red", "colour")
    found = from_networkx(graph, name="roads")
    ends = [(NAMES.index(one), NAMES.index(other)) for one, other in graph.edges]
    expected = small_graph(
        edges=np.array(ends).T,
        edge_weights=np.array([1.0 + ({0, 1} == set(pair)) for pair in ends]),
        edge_attributes=np.arange(5.0)[:, None],
    )
    for name, array in expected.edge_values.named().items():
        np.testing.assert_array_equal(found.edge_values.named()[name], array)
    assert "roads: attributes of edges not used: colour" in caplog.text
    del graph.edges["a", "d"]["e_year"]
    with pytest.raises(DatasetError, match="networkx: e_year: edge 'd' - 'a' has None; expected a"):
        from_networkx(graph)


def test_a_directed_graph_keeps_its_directions() -> None:
    graph = nx.DiGraph(small_networkx())
    graph.remove_edge("a", "d")
    found = from_networkx(graph, rules=EdgeRules(directed=True))
    assert found.is_directed
    assert found.edge_values.weights is not None
    a = NAMES.index("a")
    neighbours = found.indices[found.indptr[a] : found.indptr[a + 1]]
    place = found.indptr[a] + int(np.flatnonzero(neighbours == NAMES.index("d"))[0])
    assert found.edge_values.weights[place].tolist() == [1, 0]
    with pytest.raises(DatasetError, match=r"networkx: an undirected graph; .*to_directed\(\)"):
        from_networkx(small_networkx(), rules=EdgeRules(directed=True))


def test_a_multigraph_is_merged() -> None:
    graph = nx.MultiGraph(small_networkx())
    graph.add_edge("a", "d", weight=4.0)
    found = from_networkx(graph, rules=EdgeRules(merge="sum"))
    assert found.edge_values.weights is not None
    assert sorted(found.edge_values.weights.tolist()) == [1] * 8 + [5] * 2


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"x": None}, "x: node 'd' has none; expected numbers for each node"),
        ({"x": "red"}, "x: node 'd' has 'red'; expected numbers"),
        ({"x": [1.0, 2.0, 3.0]}, "x: node 'a' has 2 values; expected 3 as others"),
        ({"x": [1.0, float("nan")]}, "x: row 0 holds NaN or infinity"),
        ({"y": "Mr. Hi"}, "y: node 'a' is 1; expected text in all rows, or none"),
        ({"y": 0.5}, "y: node 'd' is 0.5; expected whole numbers, or task regression"),
        ({"y": [0]}, "y: node 'd' is [0]; expected numbers"),
        ({"y": 1j}, "y: node 'd' is 1j; expected numbers"),
        ({"x": [1.0, 2.0 + 1j]}, "x: node 'd' has [1.0, (2+1j)]; expected numbers"),
        ({"y": -2}, "y: row 0 is -2; expected -1"),
        ({"split": "validation"}, "split: node 'd' has 'validation'; expected train, val, test"),
    ],
)
def test_a_node_that_is_not_as_described_is_named(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DatasetError) as caught:
        from_networkx(small_networkx(**changes))
    assert str(caught.value).startswith(f"networkx: {sentence}")


def test_an_empty_graph_is_refused() -> None:
    with pytest.raises(DatasetError, match="networkx: y: no node is labelled"):
        from_networkx(nx.Graph())
