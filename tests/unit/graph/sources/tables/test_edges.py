"""Edge and boundary tables, and the nodes that edges join."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retexo_fl.errors import TableError
from retexo_fl.graph.sources.tables import (
    edge_rows,
    read_boundary_table,
    read_edge_table,
    read_node_table,
)
from retexo_fl.graph.sources.tables.edges import key_rows
from tests.support.tables import FORMATS, write_table


def _edge_rows(tmp_path: Path, *edges: str, fmt: str = "csv") -> np.ndarray:
    keys = np.array(["a", "b", "c", "ab"])
    columns: dict[str, Any] = {"key": keys, "label": np.zeros(4, dtype=int), "x0": np.ones(4)}
    ends = np.array([edge.split("-") for edge in edges], dtype=np.str_).reshape(len(edges), 2)
    nodes = read_node_table(write_table(tmp_path / f"nodes.{fmt}", columns))
    path = write_table(tmp_path / f"edges.{fmt}", {"source": ends[:, 0], "target": ends[:, 1]})
    return edge_rows(nodes, read_edge_table(path)).ends


@pytest.mark.parametrize("fmt", FORMATS)
def test_edge_rows_are_those_of_the_ends(tmp_path: Path, fmt: str) -> None:
    rows = _edge_rows(tmp_path, "a-b", "c-a", "ab-c", fmt=fmt)
    assert rows.tolist() == [[0, 2, 3], [1, 0, 2]]
    assert _edge_rows(tmp_path, fmt=fmt).tolist() == [[], []]


@pytest.mark.parametrize(
    "case",
    [
        (["a-b", "a-d"], "line 3: target: 'd' .*{nodes}; expected .*key.*"),
        (
            ["a-b", "A-d"],
            "line 3: source: 'A' .*{nodes}; expected .*key.*",
            "line 3: target: 'd' .*{nodes}; expected .*key.*",
        ),
        (["a-b", "c-c"], "line 3: 'c' .*; expected no self loop, or self-loops drop"),
        (
            ["a-b", "c-a", "ab-c", "a-b", "c-a"],
            "line 5: .*'a' and 'b' .*line 2; expected .*once, or merge-edges",
            "line 6: .*'c' and 'a' .*line 3; expected .*once, or merge-edges",
        ),
        (
            ["c-a", "a-b", "b-a", "a-b"],
            "line 4: .*'a' and 'b' .*line 3, the other .*or merge-edges, or edges-are directed",
            "line 5: .*'a' and 'b' .*line 3; expected .*once, or merge-edges",
        ),
        (["a-b", "-b"], "line 3: source: is empty; expected .*key.*"),
    ],
)
def test_edges_that_are_refused(tmp_path: Path, case: tuple[Any, ...]) -> None:
    edges, *told = case
    with pytest.raises(TableError) as caught:
        _edge_rows(tmp_path, *edges)
    path, nodes = (re.escape(str(tmp_path / name)) for name in ("edges.csv", "nodes.csv"))
    assert len(caught.value.problems) == len(told)
    for line, problem in zip(told, caught.value.problems, strict=True):
        assert re.fullmatch(f"{path}: {line.format(nodes=nodes)}", problem)


def test_edges_of_other_formats_name_the_row(tmp_path: Path) -> None:
    for fmt in ("npz", "parquet"):
        with pytest.raises(TableError, match=f"edges.{fmt}: row 1: 'c' .*no self loop"):
            _edge_rows(tmp_path, "a-b", "c-c", fmt=fmt)


@pytest.mark.parametrize("fmt", FORMATS)
def test_boundary_tables_have_two_keys_and_a_name(tmp_path: Path, fmt: str) -> None:
    columns = {
        "own": np.array([b"a", b"bc"]),
        "foreign": np.array([b"x", b"y"]),
        "peer": np.array(["Süd", "7"]),
    }
    table = read_boundary_table(write_table(tmp_path / f"b.{fmt}", columns))
    assert table.own.tolist() == [b"a", b"bc"]
    assert table.foreign.tolist() == [b"x", b"y"]
    assert table.peers.tolist() == ["Süd", "7"]
    none = {name: column[:0] for name, column in columns.items()}
    assert not len(read_boundary_table(write_table(tmp_path / f"n.{fmt}", none)).own)


def test_missing_columns_are_named(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("source,targets\n")
    with pytest.raises(TableError) as caught:
        read_edge_table(path)
    told = str(caught.value)
    assert told.startswith(f"{path}: column 'target' is missing; ")
    assert told.endswith(" 'source', 'targets'")
    path.write_text(",".join(f"column{place}" for place in range(100)))
    with pytest.raises(
        TableError, match=r"'own', 'foreign', 'peer' are missing; .* 'column11', \.\.\.$"
    ):
        read_boundary_table(path)


def test_names_of_peers_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"own,foreign,peer\na,b,c\na,d,{'x' * 257}\n")
    with pytest.raises(TableError, match="line 3: peer: 257 characters; expected at most 256"):
        read_boundary_table(path)


@given(
    st.sets(st.binary(min_size=1, max_size=3).filter(lambda key: key[-1] != 0), min_size=1),
    st.lists(st.binary(min_size=1, max_size=4).filter(lambda key: key[-1] != 0)),
)
def test_key_rows_finds_every_key_and_no_other(keys: set[bytes], others: list[bytes]) -> None:
    listed = list(keys)
    wanted = [*others, *listed]
    found = key_rows(np.array(listed), np.array(wanted))
    assert found.tolist() == [listed.index(key) if key in keys else -1 for key in wanted]
