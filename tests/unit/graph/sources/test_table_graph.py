"""Whole graphs from tables: what only a whole graph adds; cells are tested with the tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array

from retexo_fl.errors import DatasetError, TableError
from retexo_fl.graph import Graph
from retexo_fl.graph.sources.table_graph import count_table_values, read_table_graph
from tests.support.tables import FORMATS, export_whole, write_table
from tests.unit.graph.graphs import small_graph

SITES = np.array(["west", "east", "west", "9", "10", "west"])


def by_key(graph: Graph) -> dict[bytes, tuple[object, ...]]:
    """Return what a graph says of each node, whatever their order."""
    features = (
        graph.features if isinstance(graph.features, np.ndarray) else graph.features.toarray()
    )
    split = graph.published_split
    assert split is not None
    keys = graph.node_keys.tolist()
    return {
        key: (
            features[row].tolist(),
            int(graph.labels[row]),
            [bool(mask[row]) for mask in split.named().values()],
            sorted(keys[n] for n in graph.indices[graph.indptr[row] : graph.indptr[row + 1]]),
            graph.attributes["site"][row] if "site" in graph.attributes else None,
        )
        for row, key in enumerate(keys)
    }


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("sparse", [False, True])
def test_every_format_gives_the_graph_that_was_written(
    tmp_path: Path, fmt: str, sparse: bool
) -> None:
    graph = small_graph(attributes={"site": SITES})
    if sparse:
        graph = small_graph(attributes={"site": SITES}, features=csr_array(graph.features))
    files = export_whole(graph, tmp_path, fmt, attributes={"site": SITES})
    found = read_table_graph(files.nodes, files.edges, attributes=("site",))
    assert by_key(found) == by_key(graph)
    assert found.name == "nodes"
    assert isinstance(found.features, csr_array) == sparse
    assert dict(read_table_graph(files.nodes, files.edges).attributes) == {}
    assert count_table_values(files.nodes, "site") == 4


def test_nodes_keep_the_order_of_the_table(tmp_path: Path) -> None:
    nodes = write_table(
        tmp_path / "people.csv",
        {"key": np.array(["b", "c", "a"]), "label": np.arange(3), "x0": np.arange(3.0)},
    )
    edges = write_table(
        tmp_path / "ties.csv", {"source": np.array(["a"]), "target": np.array(["b"])}
    )
    graph = read_table_graph(nodes, edges)
    assert graph.name == "people"
    assert graph.node_keys.tolist() == [b"b", b"c", b"a"]
    assert graph.edge_list().tolist() == [[0], [2]]


def test_sparse_text_is_as_wide_as_its_largest_index(tmp_path: Path) -> None:
    columns = {"key": np.array(["a", "b"]), "label": np.array([0, 1])}
    edges = write_table(
        tmp_path / "edges.csv", {"source": np.array(["a"]), "target": np.array(["b"])}
    )
    nodes = write_table(tmp_path / "nodes.csv", {**columns, "x": ["7:1 2:0.5", ""]})
    features = read_table_graph(nodes, edges).features
    assert isinstance(features, csr_array)
    assert features.shape == (2, 8)
    assert features.toarray()[0].tolist() == [0, 0, 0.5, 0, 0, 0, 0, 1]
    empty = write_table(tmp_path / "empty.csv", {**columns, "x": ["", ""]})
    with pytest.raises(TableError, match="empty.csv: x: got 0 features; expected at least one"):
        read_table_graph(empty, edges)


@pytest.mark.parametrize(
    ("nodes", "edges", "sentence"),
    [
        (
            "key,label,x0\na,0,1\nb,1,2\n",
            "source,target\na,c\n",
            "line 2: target: 'c' is not a key",
        ),
        ("key,label,x0\na,0,1\nb,1,2\n", "source,target\n", "edges: there are no edges"),
        ("key,label,x0\na,,1\nb,,2\n", "source,target\na,b\n", "labels: no node is labelled"),
        ("key,label,x0\na,7,1\nb,,2\n", "source,target\na,b\n", "expected fewer classes than node"),
    ],
)
def test_tables_that_make_no_graph_are_refused(
    tmp_path: Path, nodes: str, edges: str, sentence: str
) -> None:
    (tmp_path / "nodes.csv").write_text(nodes)
    (tmp_path / "edges.csv").write_text(edges)
    with pytest.raises((TableError, DatasetError), match=sentence) as caught:
        read_table_graph(tmp_path / "nodes.csv", tmp_path / "edges.csv")
    assert "edges.csv" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_node_without_a_value_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text("key,label,x0,site\na,0,1,west\nb,1,2,\n")
    with pytest.raises(DatasetError, match="nodes.csv: site: row 1 is empty; expected a value for"):
        count_table_values(path, "site")
    with pytest.raises(TableError, match="nodes.csv: column 'town' is missing; the file has"):
        count_table_values(path, "town")
