"""Parts made by their clients: those that are cut from the whole graph, to the bit."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retexo_fl.errors import ConfigurationError, TableError
from retexo_fl.graph import (
    GraphPartition,
    cut_graph,
    find_partitions,
    write_partition,
    write_partitions,
)
from retexo_fl.graph.parts.key_split import split_by_key
from retexo_fl.graph.parts.local_part import ClientTables, make_local_part
from retexo_fl.graph.parts.peers import Peers, peers_of
from retexo_fl.graph.sources.tables import read_boundary_table, read_edge_table, read_node_table
from tests.support.tables import TableFiles, export_part, write_table
from tests.unit.graph.graphs import CutCase, cut_cases, small_graph, small_parts
from tests.unit.graph.parts.test_storage import assert_same


def _tables(files: TableFiles, num_features: int) -> ClientTables:
    assert files.boundary is not None
    return ClientTables(
        nodes=read_node_table(files.nodes, num_features=num_features),
        edges=(read_edge_table(files.edges),),
        boundary=(read_boundary_table(files.boundary),),
    )


def _local(part: GraphPartition, peers: Peers, folder: Path, fmt: str = "csv") -> GraphPartition:
    files = export_part(part, folder, fmt, clients=peers.clients)
    return make_local_part(_tables(files, peers.num_features), peers, part.client)


@pytest.mark.parametrize("sparse", [False, True])
def test_local_part_is_the_part_that_is_cut(tmp_path: Path, sparse: bool) -> None:
    parts = small_parts(sparse=sparse)
    for part in parts:
        assert_same(_local(part, peers_of(parts), tmp_path), part)


@given(cut_cases(), st.sampled_from(["csv", "parquet", "npz"]))
@settings(max_examples=20)
def test_local_parts_equal_cut_parts_in_every_byte(
    tmp_path_factory: pytest.TempPathFactory, case: CutCase, fmt: str
) -> None:
    # Keys of different lengths that are text: CSV has no bytes.
    keys = np.array([key.hex().encode() for key in case.graph.node_keys.tolist()])
    graph = dataclasses.replace(case.graph, node_keys=keys)
    parts = cut_graph(graph, case.assignment, case.split)
    folder = tmp_path_factory.mktemp("parts")
    write_partitions(parts, folder / "cut")
    for part, cut in zip(parts, find_partitions(folder / "cut"), strict=True):
        write_partition(_local(part, peers_of(parts), folder, fmt), folder / "local" / cut.name)
        for file in cut.iterdir():
            assert (folder / "local" / cut.name / file.name).read_bytes() == file.read_bytes()


def test_dense_tables_make_sparse_parts_and_the_other_way_round(tmp_path: Path) -> None:
    dense, sparse = small_parts(), small_parts(sparse=True)
    for one, other in ((dense, sparse), (sparse, dense)):
        digits = other[0].partitioning
        peers = dataclasses.replace(peers_of(other), partitioning=digits)
        for part, expected in zip(one, other, strict=True):
            assert_same(_local(part, peers, tmp_path), expected)


def test_split_by_key_needs_no_other_client(tmp_path: Path) -> None:
    graph = small_graph(labels=np.array([0, 1, 0, 1, 1, 0]))
    spec = "by-key:0.4/0.3/0.3"
    split = split_by_key(graph.node_keys, graph.labels, split=spec, seed=5)
    parts = cut_graph(graph, np.array([0, 0, 1, 1, 1, 0]), split)
    for part in parts:
        files = export_part(part, tmp_path, "npz", with_split=False)
        tables = _tables(files, 2)
        assert_same(make_local_part(tables, peers_of(parts), part.client, split=spec, seed=5), part)
        with pytest.raises(TableError, match="nodes.npz: .*'split'.*; expected .*by-key"):
            make_local_part(tables, peers_of(parts), part.client)
        tables = _tables(export_part(part, tmp_path, "npz"), 2)
        with pytest.raises(ConfigurationError, match="split: .*nodes.npz.*'split'"):
            make_local_part(tables, peers_of(parts), part.client, split=spec)


def test_client_without_edges_and_peers(tmp_path: Path) -> None:
    columns = {"key": np.array(["b", "a"]), "label": np.array([1, -1]), "x0": np.array([1, 2])}
    nodes = read_node_table(write_table(tmp_path / "n.csv", {**columns, "split": ["val", ""]}))
    peers = Peers(
        source="peers.toml",
        clients=("only", "other"),
        num_classes=2,
        num_features=1,
        sparse_features=False,
        partitioning="0" * 64,
    )
    part = make_local_part(ClientTables(nodes=nodes), peers, 1)
    assert part.node_keys.tolist() == [b"a", b"b"]
    assert part.indptr.tolist() == [0, 0, 0]
    assert part.num_boundary == 0
    assert part.boundary_keys.dtype == "S1"
    assert part.val_mask.tolist() == [False, True]
    assert (part.client, part.num_clients) == (1, 2)


#: One wrong row after a right one, and a pattern of its message.
BAD_BOUNDARY: dict[str, tuple[list[tuple[str, str, str]], str]] = {
    "unknown_own": (
        [("a", "c", "client-1"), ("q", "c", "client-1")],
        "line 3: own: 'q' .*{nodes}; expected .*key.*",
    ),
    "foreign_is_inner": (
        [("a", "c", "client-1"), ("a", "z", "client-1")],
        "line 3: foreign: 'z' .*{nodes}; expected .*peer.*",
    ),
    "unknown_peer": (
        [("a", "c", "client-1"), ("a", "b", "client-2")],
        "line 3: peer: 'client-2' .*; expected .*peers.toml",
    ),
    "no_peer": (
        [("a", "c", "")],
        "line 2: peer: '' .*; expected .*peers.toml",
    ),
    "itself": (
        [("a", "c", "client-1"), ("a", "b", "client-0")],
        "line 3: peer: 'client-0' .*itself; expected .*peers.toml",
    ),
    "two_owners": (
        [("a", "c", "client-1"), ("d", "b", "client-1"), ("a", "b", "third"), ("d", "c", "third")],
        "line 4: foreign: 'b' .*'third' .*'client-1' .*line 3; expected one owner",
    ),
    "twice": (
        [(own, foreign, "client-1") for own, foreign in ("ab", "ac", "dc", "ac")],
        "line 5: .*'a' and 'c' .*line 3; expected .*once",
    ),
}


@pytest.mark.parametrize("name", BAD_BOUNDARY)
def test_boundary_that_is_refused(tmp_path: Path, name: str) -> None:
    rows, told = BAD_BOUNDARY[name]
    parts = small_parts()
    files = export_part(parts[0], tmp_path, "csv")
    assert files.boundary is not None
    columns: dict[str, Any] = dict(
        zip(("own", "foreign", "peer"), zip(*rows, strict=True), strict=True)
    )
    write_table(files.boundary, columns)
    peers = dataclasses.replace(peers_of(parts), clients=("client-0", "client-1", "third"))
    with pytest.raises(TableError) as caught:
        make_local_part(_tables(files, 2), peers, 0)
    pattern = told.format(nodes=re.escape(str(files.nodes)))
    first = caught.value.problems[0]
    assert re.fullmatch(f"{re.escape(str(files.boundary))}: {pattern}", first)


def test_label_beyond_the_classes_is_refused(tmp_path: Path) -> None:
    parts = small_parts()
    files = export_part(parts[0], tmp_path, "csv")
    peers = dataclasses.replace(peers_of(parts), num_classes=1)
    with pytest.raises(TableError, match=r"nodes.csv: line \d: label: got 1; expected 0 to 0"):
        make_local_part(_tables(files, 2), peers, 0)


def test_dense_rows_that_no_memory_holds_are_refused(tmp_path: Path) -> None:
    lines = ["key,label,split,x", *(f"n{row},0,train,7:1" for row in range(1000))]
    (tmp_path / "nodes.csv").write_text("\n".join(lines))
    peers = Peers(
        source="peers.toml",
        clients=("only",),
        num_classes=1,
        num_features=2**31 - 1,
        sparse_features=False,
        partitioning="0" * 64,
    )
    nodes = read_node_table(tmp_path / "nodes.csv", num_features=2**31 - 1)
    with pytest.raises(
        TableError, match=r"nodes.csv: features .*8\.6 TB.*; expected sparse-features"
    ):
        make_local_part(ClientTables(nodes=nodes), peers, 0)
    sparse = dataclasses.replace(peers, sparse_features=True)
    assert make_local_part(ClientTables(nodes=nodes), sparse, 0).num_features == 2**31 - 1
