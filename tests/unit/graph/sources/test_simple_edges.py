"""Edge lists of other libraries, whatever directions they hold."""

from __future__ import annotations

import re
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retexo_fl.errors import DatasetError
from retexo_fl.graph.checks import ArrayChecks
from retexo_fl.graph.sources.simple_edges import undirected_edges

NODES = 9
CHECKS = ArrayChecks(source="here", error=DatasetError)

Pair = tuple[int, int]


def found(pairs: list[Pair], *, simplify: bool = False) -> set[Pair]:
    """Return the edges that are made of a list, after a check that each is there once."""
    edges = np.array(pairs, dtype=np.int32).reshape(-1, 2).T
    result = undirected_edges(CHECKS, "edges", edges, num_nodes=NODES, simplify=simplify)
    once = {(min(ends), max(ends)) for ends in result.T.tolist()}
    assert len(once) == result.shape[1]
    return once


def ends() -> st.SearchStrategy[int]:
    return st.integers(0, NODES - 1)


@given(
    st.sets(st.tuples(ends(), ends()).filter(lambda pair: pair[0] < pair[1]), min_size=1),
    st.randoms(use_true_random=False),
    st.booleans(),
)
def test_every_edge_once_or_in_both_directions_is_the_same_graph(
    edges: set[Pair], random: Random, simplify: bool
) -> None:
    both = [*edges, *((high, low) for low, high in edges)]
    random.shuffle(both)
    once = [pair if random.random() < 0.5 else (pair[1], pair[0]) for pair in edges]
    assert found(both, simplify=simplify) == edges
    assert found(once, simplify=simplify) == edges


@given(st.lists(st.tuples(ends(), ends()), min_size=1))
def test_simplify_takes_any_list(pairs: list[Pair]) -> None:
    expected = {(min(pair), max(pair)) for pair in pairs if pair[0] != pair[1]}
    assert found(pairs, simplify=True) == expected


@pytest.mark.parametrize(
    ("pairs", "pattern"),
    [
        ([(0, 1), (2, 2)], r"column 1 is \(2, 2\), a self loop; expected none, or simplify=True"),
        ([(3, 3), (2, 2)], r"column 0 is \(3, 3\), a self loop, one of 2; expected none"),
        ([(0, 1), (2, 3), (0, 1)], r"columns 0 and 2 are both \(0, 1\); expected each edge once"),
        ([(0, 1)] * 3, r"columns 0 and 1 .*\(0, 1\), one of 2; expected each edge once"),
        (
            [(0, 1), (1, 0), (1, 2)],
            r"column 2 is \(1, 2\) .*; expected each edge once, .*each direction, or simplify=True",
        ),
        (
            [(0, 1), (1, 0), (1, 2), (2, 3)],
            r"column 2 is \(1, 2\) .*, one of",
        ),
    ],
)
def test_a_list_that_is_neither_is_refused(pairs: list[Pair], pattern: str) -> None:
    with pytest.raises(DatasetError) as caught:
        found(pairs)
    assert re.match(f"here: edges: {pattern}", str(caught.value))


def test_simplify_says_what_it_changed(caplog: pytest.LogCaptureFixture) -> None:
    pairs = [(0, 0), (0, 1), (1, 0), (1, 0), (2, 3), (2, 3), (4, 5)]
    assert found(pairs, simplify=True) == {(0, 1), (2, 3), (4, 5)}
    (record,) = caplog.records
    assert re.fullmatch(
        "here: self loops .*: 1, repetitions .*: 2, edges .*one direction.*: 2",
        record.getMessage(),
    )


def test_simplify_says_nothing_where_it_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    assert found([(0, 1), (1, 0)], simplify=True) == {(0, 1)}
    assert found([(0, 1), (2, 1)], simplify=True) == {(0, 1), (1, 2)}
    assert not caplog.records


def test_numbers_out_of_range_are_left_to_the_checks_of_a_graph() -> None:
    edges = np.array([[0, 9], [0, 1]])
    for simplify in (False, True):
        kept = undirected_edges(CHECKS, "edges", edges, num_nodes=NODES, simplify=simplify)
        assert kept.tolist() == edges.tolist()


def test_another_shape_is_refused() -> None:
    with pytest.raises(DatasetError, match=r"here: edges: got shape \(3, 2\)"):
        undirected_edges(CHECKS, "edges", np.zeros((3, 2), int), num_nodes=3, simplify=False)
