"""Edge lists, whatever directions, repetitions and weights they hold."""

from __future__ import annotations

import re
from collections import defaultdict
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retexo_fl.errors import DatasetError
from retexo_fl.graph.checks import ArrayChecks
from retexo_fl.graph.neighbours import EdgeValues
from retexo_fl.graph.sources.edge_rules import EdgeList, EdgeRules, ruled_edges

NODES = 9
CHECKS = ArrayChecks(source="here", error=DatasetError)
STRICT = EdgeRules()
LOOSE = EdgeRules(merge="max", self_loops="drop")

Pair = tuple[int, int]


def ruled(pairs: list[Pair], rules: EdgeRules, weights: list[float] | None = None) -> EdgeList:
    """Apply rules to a list."""
    ends = np.array(pairs, dtype=np.int32).reshape(-1, 2).T
    given = None if weights is None else np.array(weights)
    edges = EdgeList(ends=ends, values=EdgeValues(weights=given))
    return ruled_edges(CHECKS, "edges", edges, num_nodes=NODES, rules=rules)


def found(pairs: list[Pair], rules: EdgeRules) -> set[Pair]:
    """Return the undirected edges that are made of a list, after a check that each is once."""
    result = ruled(pairs, rules).ends
    once = {(min(ends), max(ends)) for ends in result.T.tolist()}
    assert len(once) == result.shape[1]
    return once


def weights_of(edges: EdgeList) -> dict[Pair, float]:
    """Return what each edge weighs."""
    assert edges.values.weights is not None
    pairs = [(one, other) for one, other in edges.ends.T.tolist()]
    return dict(zip(pairs, edges.values.weights.tolist(), strict=True))


def ends() -> st.SearchStrategy[int]:
    return st.integers(0, NODES - 1)


@given(
    st.sets(st.tuples(ends(), ends()).filter(lambda pair: pair[0] < pair[1]), min_size=1),
    st.randoms(use_true_random=False),
    st.sampled_from([STRICT, LOOSE]),
)
def test_every_edge_once_or_in_both_directions_is_the_same_graph(
    edges: set[Pair], random: Random, rules: EdgeRules
) -> None:
    both = [*edges, *((high, low) for low, high in edges)]
    random.shuffle(both)
    once = [pair if random.random() < 0.5 else (pair[1], pair[0]) for pair in edges]
    assert found(both, rules) == edges
    assert found(once, rules) == edges


@given(st.lists(st.tuples(ends(), ends()), min_size=1))
def test_merging_and_dropping_take_any_list(pairs: list[Pair]) -> None:
    expected = {(min(pair), max(pair)) for pair in pairs if pair[0] != pair[1]}
    assert found(pairs, LOOSE) == expected


@given(
    st.lists(st.tuples(st.tuples(ends(), ends()), st.integers(-8, 8)), min_size=1),
    st.sampled_from(["sum", "mean", "max"]),
    st.booleans(),
)
def test_weights_of_repeated_edges_are_merged(
    listed: list[tuple[Pair, int]], merge: str, directed: bool
) -> None:
    # One more edge, in one direction: the list is not one that holds all edges in both.
    listed = [*listed, ((0, 1), 16)]
    groups: dict[Pair, list[int]] = defaultdict(list)
    for (one, other), weight in listed:
        pair = (one, other) if directed else (min(one, other), max(one, other))
        groups[pair].append(weight)
    expected = {
        pair: {"sum": sum(w), "max": max(w), "mean": sum(w) / len(w)}[merge]
        for pair, w in groups.items()
        if pair[0] != pair[1]
    }
    rules = EdgeRules(directed=directed, merge=merge, self_loops="drop")
    pairs, weights = [pair for pair, _ in listed], [float(weight) for _, weight in listed]
    assert weights_of(ruled(pairs, rules, weights)) == pytest.approx(expected)


def test_a_sum_without_weights_counts() -> None:
    pairs = [(0, 1), (1, 0), (0, 1), (2, 3)]
    assert weights_of(ruled(pairs, EdgeRules(merge="sum"))) == {(0, 1): 3, (2, 3): 1}
    directed = EdgeRules(merge="sum", directed=True)
    assert weights_of(ruled(pairs, directed)) == {(0, 1): 2, (1, 0): 1, (2, 3): 1}
    assert ruled(pairs, EdgeRules(merge="mean")).values.weights is None


def test_a_list_with_every_edge_in_both_directions_counts_each_pair_once() -> None:
    pairs, weights = [(0, 1), (1, 0), (1, 2), (2, 1)], [2.0, 2.0, 5.0, 5.0]
    for merge in ("refuse", "sum"):
        rules = EdgeRules(merge=merge)
        assert weights_of(ruled(pairs, rules, weights)) == {(0, 1): 2, (1, 2): 5}
    other = [2.0, 3.0, 5.0, 5.0]
    with pytest.raises(DatasetError, match=r"column 0 is \(0, 1\), which weighs .*directed"):
        ruled(pairs, STRICT, other)
    assert weights_of(ruled(pairs, EdgeRules(merge="sum"), other)) == {(0, 1): 5, (1, 2): 10}


def test_attributes_are_merged_column_by_column() -> None:
    values = EdgeValues(attributes=np.array([[1.0, 5.0], [3.0, 1.0], [7.0, 7.0]]))
    edges = EdgeList(ends=np.array([[0, 1, 2], [1, 0, 3]]), values=values)
    for merge, expected in (("sum", [4, 6]), ("mean", [2, 3]), ("max", [3, 5])):
        rules = EdgeRules(merge=merge)
        merged = ruled_edges(CHECKS, "edges", edges, num_nodes=NODES, rules=rules)
        assert merged.values.attributes is not None
        assert merged.values.attributes.tolist() == [expected, [7, 7]]


def test_a_directed_list_keeps_both_directions() -> None:
    pairs = [(0, 1), (1, 0), (2, 1)]
    kept = ruled(pairs, EdgeRules(directed=True))
    assert kept.ends.T.tolist() == [[0, 1], [1, 0], [2, 1]]
    with pytest.raises(DatasetError, match=r"both \(0, 1\); expected each edge once, or merge-e"):
        ruled([*pairs, (0, 1)], EdgeRules(directed=True))


@pytest.mark.parametrize(
    ("pairs", "pattern"),
    [
        ([(0, 1), (2, 2)], r"column 1 is \(2, 2\), a self loop; expected none, or self-loops drop"),
        ([(3, 3), (2, 2)], r"column 0 is \(3, 3\), a self loop, one of 2; expected none"),
        ([(0, 1), (2, 3), (0, 1)], r"columns 0 and 2 are both \(0, 1\); expected each edge once"),
        ([(0, 1)] * 3, r"columns 0 and 1 .*\(0, 1\), one of 2; expected each edge once"),
        (
            [(0, 1), (1, 0), (1, 2)],
            r"column 2 is \(1, 2\) .*; expected each edge once, .*each direction, or edges-are dir",
        ),
        (
            [(0, 1), (1, 0), (1, 2), (2, 3)],
            r"column 2 is \(1, 2\) .*, one of",
        ),
    ],
)
def test_a_list_that_is_neither_is_refused(pairs: list[Pair], pattern: str) -> None:
    with pytest.raises(DatasetError) as caught:
        ruled(pairs, STRICT)
    assert re.match(f"here: edges: {pattern}", str(caught.value))


def test_what_the_rules_changed_is_said(caplog: pytest.LogCaptureFixture) -> None:
    pairs = [(0, 0), (0, 1), (1, 0), (1, 0), (2, 3), (2, 3), (4, 5)]
    assert found(pairs, LOOSE) == {(0, 1), (2, 3), (4, 5)}
    (record,) = caplog.records
    assert record.getMessage() == "here: self loops left out: 1, repetitions merged (max): 3"


TURNED = "; which end is the source is not used (edges-are directed uses it)"


@pytest.mark.parametrize(
    ("pairs", "directed", "more"),
    [
        # Both orientations of one pair, or several rows of it: perhaps events.
        ([(0, 1), (1, 0), (2, 3)], False, TURNED),
        ([(0, 1), (0, 1), (2, 3)], False, TURNED),
        # Every edge in both orientations says nothing of a direction.
        ([(0, 1), (1, 0), (0, 1), (1, 0)], False, ""),
        ([(0, 1), (0, 1), (2, 3)], True, ""),
    ],
)
def test_merging_says_that_the_order_of_ends_is_not_used(
    caplog: pytest.LogCaptureFixture, pairs: list[Pair], directed: bool, more: str
) -> None:
    rules = EdgeRules(merge="sum", directed=directed)
    for has_order in (True, False):
        edges = EdgeList(ends=np.array(pairs).T)
        ruled_edges(CHECKS, "edges", edges, num_nodes=NODES, rules=rules, has_order=has_order)
    one, other = caplog.messages
    assert re.fullmatch(r"here: repetitions merged \(sum\): [13]", other)
    assert one == other + more


def test_nothing_is_said_where_nothing_changes(caplog: pytest.LogCaptureFixture) -> None:
    assert found([(0, 1), (2, 1)], LOOSE) == {(0, 1), (1, 2)}
    assert found([(0, 1), (1, 0)], STRICT) == {(0, 1)}
    once = EdgeList(ends=np.array([[0, 2], [1, 1]]))
    ruled_edges(CHECKS, "edges", once, num_nodes=NODES, rules=LOOSE, has_order=True)
    assert not caplog.records


def test_numbers_out_of_range_are_left_to_the_checks_of_a_graph() -> None:
    for rules in (STRICT, LOOSE):
        assert ruled([(0, 0), (9, 1)], rules).ends.tolist() == [[0, 9], [0, 1]]


def test_another_shape_is_refused() -> None:
    edges = EdgeList(ends=np.zeros((3, 2), int))
    with pytest.raises(DatasetError, match=r"here: edges: got shape \(3, 2\)"):
        ruled_edges(CHECKS, "edges", edges, num_nodes=3, rules=STRICT)


def test_unknown_rules_are_refused() -> None:
    with pytest.raises(DatasetError, match="merge: got 'add'; expected one of refuse, sum, mean"):
        EdgeRules(merge="add")
    with pytest.raises(DatasetError, match="self_loops: got 'keep'"):
        EdgeRules(self_loops="keep")
