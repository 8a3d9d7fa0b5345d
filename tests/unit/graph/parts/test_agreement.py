"""Whether stored partitions belong together."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from retexo_fl.errors import PartitionError
from retexo_fl.graph import (
    GraphPartition,
    PartReport,
    check_partition,
    check_partitions,
    cut_graph,
    find_partitions,
    hash_keys,
    write_partition,
    write_partitions,
)
from retexo_fl.graph.keys import quoted
from tests.support.edge_lists import cut_edges, with_cut_edges
from tests.unit.graph.graphs import (
    SMALL_FEATURES,
    SMALL_SPLIT,
    CutCase,
    cut_cases,
    small_graph,
    small_parts,
)


def test_check_partitions_reports_sizes(tmp_path: Path) -> None:
    write_partitions(small_parts(), tmp_path / "out")
    report = check_partitions(find_partitions(tmp_path / "out"))
    assert report.partitioning == small_parts()[0].partitioning
    assert (report.num_nodes, report.num_edges, report.num_cut_edges) == (6, 5, 3)
    assert (report.num_features, report.num_classes) == (2, 2)
    assert report.parts == (
        PartReport(
            client=0,
            nodes=3,
            boundary=3,
            sent=2,
            inner_edges=1,
            cut_edges=3,
            peers=1,
            train=1,
            val=1,
            test=1,
        ),
        PartReport(
            client=1,
            nodes=3,
            boundary=2,
            sent=3,
            inner_edges=1,
            cut_edges=3,
            peers=1,
            train=1,
            val=0,
            test=1,
        ),
    )


@given(cut_cases())
@settings(max_examples=15, deadline=None)
def test_check_partitions_accepts_every_cut(
    tmp_path_factory: pytest.TempPathFactory, case: CutCase
) -> None:
    out = tmp_path_factory.mktemp("parts")
    write_partitions(cut_graph(case.graph, case.assignment, case.split), out)
    report = check_partitions(find_partitions(out)[::-1])
    assert [part.client for part in report.parts] == list(range(len(report.parts)))
    assert report.num_nodes == case.graph.num_nodes
    assert report.num_edges == case.graph.num_edges
    ends = case.assignment[case.graph.edge_list()]
    assert report.num_cut_edges == np.count_nonzero(ends[0] != ends[1])


def _refused(folders: list[Path]) -> str:
    with pytest.raises(PartitionError) as caught:
        check_partitions(folders)
    return str(caught.value)


def test_check_partitions_names_two_partitionings(tmp_path: Path) -> None:
    one = small_parts()
    two = cut_graph(
        small_graph(features=-SMALL_FEATURES), np.array([0, 0, 1, 1, 1, 0]), SMALL_SPLIT
    )
    write_partition(one[0], tmp_path / "a")
    write_partition(two[1], tmp_path / "b")
    ours, theirs = (re.escape(str(tmp_path / name)) for name in "ab")
    assert re.fullmatch(
        f"{theirs} .*{two[1].partitioning[:16]}.*{ours} .*{one[0].partitioning[:16]}; expected .*",
        _refused([tmp_path / "a", tmp_path / "b"]),
    )


def test_check_partitions_wants_each_client_once(tmp_path: Path) -> None:
    first, second = small_parts()
    for name, part in (("a", first), ("b", first), ("c", second)):
        write_partition(part, tmp_path / name)
    assert "are both of client 0" in _refused([tmp_path / "a", tmp_path / "b", tmp_path / "c"])
    assert re.match("partitions: 1 of 2 .*client 0; expected", _refused([tmp_path / "c"]))
    assert "got no folder" in _refused([])


def _with_boundary(part: GraphPartition, *keys: bytes) -> GraphPartition:
    names = np.array(keys, dtype="S2")
    return replace(part, boundary_keys=names, boundary_hashes=hash_keys(names))


def _wider(part: GraphPartition) -> GraphPartition:
    return replace(part, features=np.ones((3, 9), dtype=np.float32))


def _sparse(part: GraphPartition) -> GraphPartition:
    return replace(part, features=csr_array(part.features))


def _more_classes(part: GraphPartition) -> GraphPartition:
    return replace(part, num_classes=9)


def _other_edge(part: GraphPartition) -> GraphPartition:
    # ab: a; b: c, a; c: b, d, where the graph has b-d and c-a: the same lists of nodes.
    return replace(part, indices=np.array([3, 2, 3, 1, 4], dtype=np.int32))


def _one_more_edge(part: GraphPartition) -> GraphPartition:
    # ab: a, d, where the graph has ab-a only.
    indices = np.array([3, 4, 2, 4, 1, 3], dtype=np.int32)
    return replace(part, indptr=np.array([0, 2, 4, 6]), indices=indices)


def _other_node(part: GraphPartition) -> GraphPartition:
    return _with_boundary(part, b"a", b"e")


def _own_node_of_the_other(part: GraphPartition) -> GraphPartition:
    names = np.array([b"ab", b"b", b"z"])
    return replace(part, node_keys=names, node_hashes=hash_keys(names))


def _no_peers(part: GraphPartition) -> GraphPartition:
    # Only b-c is left.
    bare = _with_boundary(part)
    return replace(
        bare,
        boundary_owners=np.array([], dtype=np.int32),
        indptr=np.array([0, 0, 1, 2]),
        indices=np.array([2, 1], dtype=np.int32),
    )


@pytest.mark.parametrize(
    ("change", "pattern"),
    [
        (_wider, "has num_features 9"),
        (_sparse, "has features sparse float32"),
        (_more_classes, "has num_classes 9"),
        (
            _other_edge,
            "client 0 and client 1 .*3 edges.*not the same ones; .*'a' - 'b' .*{1} only$",
        ),
        (
            _one_more_edge,
            "client 0 .*3 edges.*client 1.* 4 .*; .*'d' - 'ab' .*{1} only$",
        ),
        (_other_node, "client 0 and client 1 .*3 edges.*not the same"),
        (_own_node_of_the_other, "inner node 'z'; expected one owner"),
        (
            _no_peers,
            "client 0 .*3 edges.*client 1.* none.*; .*'a' - 'ab' .*{0} only$",
        ),
    ],
)
def test_check_partitions_names_a_pair_that_disagrees(
    tmp_path: Path, change: Callable[[GraphPartition], GraphPartition], pattern: str
) -> None:
    first, second = small_parts()
    changed = change(second)
    check_partition(changed, source="alone it is a partition")
    write_partitions([first, changed], tmp_path / "out")
    folders = find_partitions(tmp_path / "out")
    message = _refused(folders)
    assert re.search(pattern.format(*(re.escape(str(folder)) for folder in folders)), message)
    assert "part-0" in message
    assert "part-1" in message


@given(cut_cases(), st.data())
@settings(max_examples=12, deadline=None)
def test_check_partitions_names_an_edge_that_only_one_side_lists(
    tmp_path_factory: pytest.TempPathFactory, case: CutCase, data: st.DataObject
) -> None:
    parts = cut_graph(case.graph, case.assignment, case.split)
    assume(any(part.num_boundary for part in parts))
    part = data.draw(st.sampled_from([part for part in parts if part.num_boundary]))
    edges = cut_edges(part)
    left_out = data.draw(st.sampled_from(edges))
    parts[part.client] = with_cut_edges(part, [edge for edge in edges if edge != left_out])
    folders = [tmp_path_factory.mktemp("parts") / str(part.client) for part in parts]
    for each, folder in zip(parts, folders, strict=True):
        write_partition(each, folder)
    low, high = sorted((part.client, left_out.owner))
    message = _refused(folders)
    assert message.startswith(f"{folders[low]} and {folders[high]}: client ")
    assert message.endswith(f" {folders[left_out.owner]} only")
    for key in (left_out.key, bytes(part.node_keys[left_out.row])):
        assert quoted(key) in message
