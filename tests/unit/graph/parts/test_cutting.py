"""Cutting: by hand on a small graph, and as the inverse of joining on arbitrary ones."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from scipy.sparse import csr_array

from retexo_fl.errors import PartitionError
from retexo_fl.graph import Graph, Split, check_partition, cut_graph
from retexo_fl.graph.keys import hash_keys
from tests.unit.graph.graphs import (
    SMALL_SPLIT,
    CutCase,
    cut_cases,
    mask,
    small_graph,
    small_parts,
)


def test_cut_graph_sorts_inner_nodes_by_key() -> None:
    first, second = small_parts()
    assert first.node_keys.tolist() == [b"a", b"d", b"z"]
    assert second.node_keys.tolist() == [b"ab", b"b", b"c"]
    assert first.features.tolist() == [[1, 10], [0, 0], [5, 50]]
    assert second.labels.tolist() == [-1, 1, 0]
    assert first.train_mask.tolist() == [False, True, False]
    assert first.val_mask.tolist() == [True, False, False]
    assert first.test_mask.tolist() == [False, False, True]
    assert (first.client, second.client, first.num_clients) == (0, 1, 2)
    assert first.num_classes == 2


def test_cut_graph_keeps_all_incident_edges() -> None:
    first, second = small_parts()
    assert first.boundary_keys.tolist() == [b"ab", b"b", b"c"]
    assert first.indptr.tolist() == [0, 3, 5, 5]  # a: d, ab, c; d: a, b; z: none
    assert first.indices.tolist() == [1, 3, 5, 0, 4]
    assert second.boundary_keys.tolist() == [b"a", b"d"]
    assert second.indptr.tolist() == [0, 1, 3, 5]  # ab: a; b: c, d; c: b, a
    assert second.indices.tolist() == [3, 2, 4, 1, 3]
    assert first.degrees.tolist() == [3, 2, 0]
    assert (first.num_inner, first.num_boundary, first.num_cut_edges) == (3, 3, 3)
    assert (first.peers, second.peers) == ((1,), (0,))


def test_cut_graph_sorts_boundary_nodes_by_owner_then_key() -> None:
    parts = cut_graph(small_graph(), np.array([0, 2, 1, 1, 2, 0]), SMALL_SPLIT)
    assert parts[1].node_keys.tolist() == [b"b", b"c"]
    assert parts[1].boundary_keys.tolist() == [b"d", b"a"]
    assert parts[1].boundary_owners.tolist() == [0, 2]
    assert parts[1].indices.tolist() == [1, 2, 0, 3]
    assert parts[1].peers == (0, 2)


def test_cut_graph_gives_the_documented_dtypes() -> None:
    part = small_parts()[0]
    dtypes = {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}
    found = {name: item.dtype.str for name, item in dtypes.items() if hasattr(item, "dtype")}
    assert found == {
        "node_keys": "|S1",
        "indptr": "<i8",
        "indices": "<i4",
        "boundary_keys": "|S2",
        "boundary_owners": "<i4",
        "node_hashes": "<u8",
        "boundary_hashes": "<u8",
        "features": "<f4",
        "labels": "<i8",
        "train_mask": "|b1",
        "val_mask": "|b1",
        "test_mask": "|b1",
    }


def test_cut_graph_into_one_part_is_the_graph_in_key_order() -> None:
    (part,) = cut_graph(small_graph(), np.zeros(6, dtype=int), SMALL_SPLIT)
    assert part.node_keys.tolist() == [b"a", b"ab", b"b", b"c", b"d", b"z"]
    assert part.indices.tolist() == [1, 3, 4, 0, 3, 4, 0, 2, 0, 2]
    assert part.num_boundary == 0
    assert part.peers == ()


def _rejoined(case: CutCase) -> tuple[set[tuple[bytes, bytes]], dict[bytes, list[float]]]:
    """Join the parts by key: directed edges, and features of each node."""
    edges: list[tuple[bytes, bytes]] = []
    rows: dict[bytes, list[float]] = {}
    for part in cut_graph(case.graph, case.assignment, case.split):
        check_partition(part, source="part")
        names = [*part.node_keys.tolist(), *part.boundary_keys.tolist()]
        for node, key in enumerate(part.node_keys.tolist()):
            assert key not in rows
            features = part.features
            dense = features if isinstance(features, np.ndarray) else features.toarray()
            rows[key] = dense[node].tolist()
            ends = part.indices[part.indptr[node] : part.indptr[node + 1]]
            edges += [(key, names[end]) for end in ends]
    assert len(edges) == len(set(edges))
    return set(edges), rows


@given(cut_cases())
def test_cut_graph_loses_and_invents_nothing(case: CutCase) -> None:
    graph, keys = case.graph, case.graph.node_keys.tolist()
    edges, rows = _rejoined(case)
    listed = {(keys[u], keys[v]) for u, v in graph.edge_list().T}
    assert edges == listed | {(v, u) for u, v in listed}
    features = graph.features
    dense = features if isinstance(features, np.ndarray) else features.toarray()
    assert rows == dict(zip(keys, dense.tolist(), strict=True))


@given(cut_cases())
def test_cut_graph_keeps_what_belongs_to_a_node(case: CutCase) -> None:
    graph = case.graph
    index = {key: node for node, key in enumerate(graph.node_keys.tolist())}
    for part in cut_graph(graph, case.assignment, case.split):
        nodes = [index[key] for key in part.node_keys.tolist()]
        beyond = [index[key] for key in part.boundary_keys.tolist()]
        assert set(case.assignment[nodes]) == {part.client}
        np.testing.assert_array_equal(part.boundary_owners, case.assignment[beyond])
        np.testing.assert_array_equal(part.degrees, graph.degrees[nodes])
        np.testing.assert_array_equal(part.labels, graph.labels[nodes])
        np.testing.assert_array_equal(part.node_hashes, hash_keys(graph.node_keys[nodes]))
        np.testing.assert_array_equal(part.boundary_hashes, hash_keys(graph.node_keys[beyond]))
        for name, whole in case.split.named().items():
            np.testing.assert_array_equal(part.split.named()[name], whole[nodes])


def _id(graph: Graph, assignment: list[int], split: Split = SMALL_SPLIT) -> str:
    ids = {part.partitioning for part in cut_graph(graph, np.array(assignment), split)}
    assert len(ids) == 1
    return ids.pop()


def test_partitioning_is_shared_and_tells_partitionings_apart() -> None:
    assignment = [0, 0, 1, 1, 1, 0]
    reference = _id(small_graph(), assignment)
    assert len(reference) == 64
    assert reference == _id(small_graph(), assignment)
    # The same graph has another name in another file.
    assert reference == _id(small_graph(name="other"), assignment)
    features = np.ones((6, 2), dtype=np.float32)
    others = [
        _id(small_graph(features=features), assignment),
        _id(small_graph(features=csr_array(features)), assignment),
        _id(small_graph(labels=np.array([1, 1, 0, 1, -1, 0])), assignment),
        _id(small_graph(num_classes=3), assignment),
        _id(small_graph(edges=np.array([[0, 1, 2, 3, 1], [1, 2, 3, 5, 4]])), assignment),
        _id(small_graph(), [1, 0, 1, 1, 1, 0]),
        _id(small_graph(), assignment, Split(train=mask(6, 0), val=mask(6, 1), test=mask(6, 2))),
    ]
    assert len({reference, *others}) == 8


@pytest.mark.parametrize(
    ("assignment", "sentence"),
    [
        ([0, 0, 2, 2, 2, 0], "client 1 has no nodes"),
        ([0, 0, -1, 1, 1, 0], "row 2 is -1"),
        ([0, 0, 1, 1, 6, 0], "row 4 is 6; expected no more clients than the 6 nodes"),
        ([0, 0, 1], r"got shape \(3,\); expected \(6\)"),
        ([0.0] * 6, "got float64; expected integers"),
    ],
)
def test_cut_graph_refuses_an_assignment(assignment: list[float], sentence: str) -> None:
    with pytest.raises(PartitionError, match=f"assignment: clients: {sentence}"):
        cut_graph(small_graph(), np.array(assignment), SMALL_SPLIT)


def test_cut_graph_refuses_a_split_that_overlaps() -> None:
    split = Split(train=mask(6, 0), val=mask(6, 0), test=mask(6, 1))
    with pytest.raises(PartitionError, match="split: val_mask: row 0 is in another mask"):
        cut_graph(small_graph(), np.zeros(6, dtype=int), split)
