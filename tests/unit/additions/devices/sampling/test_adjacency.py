from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retexo_fl.additions.devices.sampling import Adjacency
from retexo_fl.errors import DatasetError

ENDS = st.integers(0, 8)


@given(edges=st.lists(st.tuples(ENDS, ENDS), max_size=40))
def test_rows_list_who_sends_to_a_node_ascending_and_once(edges: list[tuple[int, int]]) -> None:
    ends = np.array(edges, dtype=np.int64).reshape(-1, 2)
    adjacency = Adjacency.from_edges(ends[:, 0], ends[:, 1], num_nodes=9)
    assert adjacency.indptr.dtype == np.int64
    assert adjacency.indices.dtype == np.int32
    rows = [sorted({s for s, t in edges if t == node}) for node in range(9)]
    bounds = zip(adjacency.indptr[:-1], adjacency.indptr[1:], strict=True)
    assert [adjacency.indices[start:stop].tolist() for start, stop in bounds] == rows
    assert adjacency.degrees.tolist() == [len(row) for row in rows]
    assert (adjacency.num_nodes, adjacency.num_edges) == (9, len(set(edges)))


def test_edge_given_300_times_is_one() -> None:
    # More often than a byte counts.
    adjacency = Adjacency.from_edges(np.full(300, 1), np.full(300, 0), num_nodes=2)
    assert adjacency.indices.tolist() == [1]


@pytest.mark.parametrize(
    ("sources", "targets", "words"),
    [
        ([0, 3], [1, 1], "adjacency: source 3 .*; expected 0 to 2"),
        ([0, 1], [1, -1], "adjacency: target -1 .*; expected 0 to 2"),
        ([0, 1], [1], "expected one of each for every edge"),
    ],
)
def test_edges_that_are_none_are_refused(
    sources: list[int], targets: list[int], words: str
) -> None:
    with pytest.raises(DatasetError, match=words):
        Adjacency.from_edges(np.array(sources), np.array(targets), num_nodes=3)


@pytest.mark.parametrize(
    ("indptr", "indices", "words"),
    [
        (np.array([0, 1], np.int32), np.zeros(1, np.int32), "indptr of int32"),
        (np.array([0, 1]), np.zeros(1), "indices of float64"),
        (np.array([0, 2]), np.zeros(1, np.int32), "goes from 0 to 2; expected 0 and 1"),
        (np.zeros(0, np.int64), np.zeros(0, np.int32), r"indptr of \(N \+ 1,\)"),
    ],
)
def test_arrays_that_kernels_would_misread_are_refused(
    indptr: np.ndarray, indices: np.ndarray, words: str
) -> None:
    with pytest.raises(DatasetError, match=words):
        Adjacency(indptr=indptr, indices=indices)


def test_digest_tells_graphs_apart() -> None:
    def digest(sources: list[int], targets: list[int], num_nodes: int = 3) -> bytes:
        return Adjacency.from_edges(
            np.array(sources), np.array(targets), num_nodes=num_nodes
        ).digest()

    assert digest([0, 1], [1, 2]) == digest([1, 0], [2, 1])
    others = (digest([0, 1], [2, 2]), digest([0, 0], [1, 2]), digest([0, 1], [1, 2], 4))
    assert len({digest([0, 1], [1, 2]), *others}) == 4
