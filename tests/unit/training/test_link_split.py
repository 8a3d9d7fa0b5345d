"""Which edges are held out, and which pairs without an edge are drawn."""

from __future__ import annotations

import numpy as np
import pytest

from retexo_fl.errors import PartitionError
from retexo_fl.training.link_negatives import NonEdges


def test_draws_have_no_edge_and_depend_on_what_they_are_for() -> None:
    codes = np.array([0 * 7 + 1, 0 * 7 + 2, 1 * 7 + 0, 2 * 7 + 0, 2 * 7 + 5])
    non_edges = NonEdges(4, 7, codes)
    keys = np.arange(500, dtype=np.uint64)
    first, second = non_edges.draw(keys, 4, "0/1/1/0")
    assert first.shape == second.shape == (500, 4)
    assert (first != second).all()
    assert not np.isin(first * 7 + second, codes).any()
    again = non_edges.draw(keys[7:9], 4, "0/1/1/0")
    np.testing.assert_array_equal(again[0], first[7:9])
    assert not np.array_equal(non_edges.draw(keys, 4, "0/1/2/0")[0], first)


def test_every_pair_without_an_edge_is_as_likely() -> None:
    non_edges = NonEdges(3, 5, np.array([1, 4, 5]))
    first, second = non_edges.draw(np.arange(20_000, dtype=np.uint64), 1, "uniform")
    counts = np.bincount((first * 5 + second).reshape(-1), minlength=15)
    possible = np.setdiff1d(np.arange(15), [0, 6, 12, 1, 4, 5])
    assert counts.sum() == counts[possible].sum()
    expected = 20_000 / len(possible)
    assert (np.abs(counts[possible] - expected) < 5 * np.sqrt(expected)).all()


def test_pairs_begin_with_the_edges_own_end_where_they_are_ranked_beside_it() -> None:
    non_edges = NonEdges(3, 3, np.array([1, 3]))
    ends = np.array([0, 2, 2])
    first, second = non_edges.draw(np.arange(3, dtype=np.uint64), 5, "mrr", first=ends)
    np.testing.assert_array_equal(first, np.repeat(ends, 5).reshape(3, 5))
    assert (second[0] == 2).all()


def test_nearly_complete_graphs_leave_what_there_is() -> None:
    nodes = 80
    full = np.array([u * nodes + v for u in range(nodes) for v in range(nodes) if u != v])
    missing = np.isin(full, [3 * nodes + 4, 4 * nodes + 3])
    non_edges = NonEdges(nodes, nodes, full[~missing])
    first, second = non_edges.draw(np.arange(50, dtype=np.uint64), 2, "rare")
    assert {*zip(first.flat, second.flat, strict=True)} <= {(3, 4), (4, 3)}
    own = non_edges.draw(np.arange(2, dtype=np.uint64), 3, "rare", first=np.array([3, 9]))
    assert {*own[1][0].tolist()} == {4}
    assert {*zip(own[0][1], own[1][1], strict=True)} <= {(3, 4), (4, 3)}


def test_complete_graphs_are_refused() -> None:
    NonEdges(2, 3, np.array([1, 2, 3])).check(0)
    with pytest.raises(PartitionError, match="client 4: every pair of its 2 nodes and 1"):
        NonEdges(2, 3, np.array([1, 2, 3, 5])).check(4)
