"""Parquet tables in several files: by a pattern, and in a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from retexo_fl.errors import TableError
from retexo_fl.graph.sources.table_graph import read_table_graph
from retexo_fl.graph.sources.tables import read_edge_table
from tests.support.tables import write_table


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    edges = tmp_path / "edges"
    edges.mkdir()
    write_table(edges / "b.parquet", {"source": ["c"], "target": ["d"]})
    write_table(edges / "a.parquet", {"target": ["b", "c"], "source": ["a", "b"]})
    (edges / "_SUCCESS").touch()
    return edges


@pytest.mark.parametrize("pattern", ["", "*.parquet", "[ab].parquet"])
def test_files_are_one_table_in_the_order_of_their_names(folder: Path, pattern: str) -> None:
    table = read_edge_table(folder / pattern)
    assert table.left.tolist() == [b"a", b"b", b"c"]
    assert [table.place(row) for row in range(3)] == [
        *("a.parquet, row 0", "a.parquet, row 1", "b.parquet, row 0")
    ]


def test_a_graph_of_patterns_is_called_as_its_folder(folder: Path) -> None:
    nodes = folder.parent / "people"
    nodes.mkdir()
    write_table(nodes / "1.parquet", {"key": ["a", "b"], "label": [0, 1], "x0": [1.0, 2.0]})
    write_table(nodes / "2.parquet", {"key": ["c", "d"], "label": [0, 1], "x0": [3.0, 4.0]})
    graph = read_table_graph(nodes / "*.parquet", folder / "*.parquet")
    assert (graph.name, graph.num_nodes, graph.num_edges) == ("people", 4, 3)
    write_table(folder / "b.parquet", {"source": ["c", "e"], "target": ["d", "d"]})
    with pytest.raises(TableError, match=r"edges/\*.parquet: b.parquet, row 1: source: 'e' is not"):
        read_table_graph(nodes / "*.parquet", folder / "*.parquet")


def test_what_is_no_table_of_equal_files_is_refused(folder: Path) -> None:
    with pytest.raises(TableError, match=r"\*.pq: no file is there; expected one at least"):
        read_edge_table(folder / "*.pq")
    with pytest.raises(TableError, match=r"_SUCCESS: of .*\*; expected Parquet files alone"):
        read_edge_table(folder / "*")
    write_table(folder / "c.parquet", {"source": ["c"], "goal": ["d"]})
    write_table(folder / "d.parquet", {"source": ["c"], "target": ["d"], "more": [1]})
    with pytest.raises(TableError) as refused:
        read_edge_table(folder)
    expected = f"expected the columns of {folder / 'a.parquet'}"
    assert refused.value.problems == (
        f"{folder / 'c.parquet'}: lacks 'target', has 'goal'; {expected}",
        f"{folder / 'd.parquet'}: has 'more'; {expected}",
    )
    empty = folder.parent / "empty"
    empty.mkdir()
    with pytest.raises(TableError, match="is a folder; expected a file"):
        read_edge_table(empty)
