"""Smallest vertex covers: against counting by hand, and the same whatever matching is found."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching

from retexo_fl.graph.plan.vertex_cover import minimum_vertex_cover

Edges = set[tuple[int, int]]


def graph_of(edges: Edges, left: int, right: int) -> csr_array:
    ends = np.array(sorted(edges), dtype=np.int64).reshape(-1, 2).T
    return csr_array((np.ones(len(edges), dtype=bool), tuple(ends)), shape=(left, right))


@st.composite
def bipartite(draw: st.DrawFn, most: int = 12) -> tuple[Edges, int, int]:
    left, right = draw(st.integers(1, most)), draw(st.integers(1, most))
    ends = st.tuples(st.integers(0, left - 1), st.integers(0, right - 1))
    return draw(st.sets(ends, max_size=3 * most)), left, right


@pytest.mark.parametrize(
    ("edges", "left", "right"),
    [
        (set(), [], []),
        ({(0, 0)}, [0], []),
        ({(1, 0), (1, 1), (1, 2)}, [1], []),
        ({(0, 1), (1, 1), (2, 1)}, [], [1]),
        ({(0, 0), (0, 1), (1, 1), (1, 2)}, [0, 1], []),
        # Node 0 on the left and 2 on the right are each the centre of a star, joined by an edge.
        ({(0, 0), (0, 1), (0, 2), (1, 2), (2, 2)}, [0], [2]),
    ],
)
def test_cover_of_small_graphs(edges: Edges, left: list[int], right: list[int]) -> None:
    on_left, on_right = minimum_vertex_cover(graph_of(edges, 3, 3))
    assert np.flatnonzero(on_left).tolist() == left
    assert np.flatnonzero(on_right).tolist() == right


@given(bipartite())
def test_cover_covers_every_edge_and_is_as_large_as_a_matching(
    drawn: tuple[Edges, int, int],
) -> None:
    edges, left, right = drawn
    graph = graph_of(edges, left, right)
    on_left, on_right = minimum_vertex_cover(graph)
    assert all(on_left[u] or on_right[v] for u, v in edges)
    matched = int((maximum_bipartite_matching(graph, perm_type="row") >= 0).sum())
    assert on_left.sum() + on_right.sum() == matched
    assert matched <= min(len({u for u, _ in edges}), len({v for _, v in edges}))


@given(bipartite(most=5))
def test_no_cover_is_smaller(drawn: tuple[Edges, int, int]) -> None:
    edges, left, right = drawn
    on_left, on_right = minimum_vertex_cover(graph_of(edges, left, right))
    # With some nodes of the left chosen, a cover needs the neighbours of all others.
    smallest = min(
        sum(chosen) + len({v for u, v in edges if not chosen[u]})
        for chosen in product((False, True), repeat=left)
    )
    assert on_left.sum() + on_right.sum() == smallest


@given(bipartite(), st.data())
def test_cover_is_the_same_whatever_matching_is_found(
    drawn: tuple[Edges, int, int], data: st.DataObject
) -> None:
    """Other numbers lead the search to other matchings."""
    edges, left, right = drawn
    new_left = np.array(data.draw(st.permutations(range(left))))
    new_right = np.array(data.draw(st.permutations(range(right))))
    renamed = {(int(new_left[u]), int(new_right[v])) for u, v in edges}
    on_left, on_right = minimum_vertex_cover(graph_of(edges, left, right))
    found_left, found_right = minimum_vertex_cover(graph_of(renamed, left, right))
    np.testing.assert_array_equal(found_left[new_left], on_left)
    np.testing.assert_array_equal(found_right[new_right], on_right)


def test_renamed_nodes_do_lead_to_another_matching() -> None:
    """What the test above relies on: these paths of 4 edges have several largest matchings."""
    edges = {(0, 0), (0, 1), (1, 1), (1, 2), (2, 0), (2, 2)}
    found = set()
    for shift in range(3):
        renamed = {((u + shift) % 3, (v * 2) % 3) for u, v in edges}
        partners = maximum_bipartite_matching(graph_of(renamed, 3, 3), perm_type="row")
        found.add(
            frozenset(((u - shift) % 3, (v * 2) % 3) for v, u in enumerate(partners.tolist()))
        )
    assert len(found) > 1


def test_cover_of_a_long_path_needs_no_recursion() -> None:
    nodes = 20_000
    edges = {(u, u) for u in range(nodes)} | {(u + 1, u) for u in range(nodes)}
    on_left, on_right = minimum_vertex_cover(graph_of(edges, nodes + 1, nodes))
    assert not on_left.any()
    assert on_right.all()
