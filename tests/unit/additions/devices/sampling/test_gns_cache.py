from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from retexo_fl.additions.devices.sampling.adjacency import Adjacency
from retexo_fl.additions.devices.sampling.gns_cache import (
    FEW_TRAIN_NODES,
    CacheChances,
    NodeCache,
    cache_mass,
    inclusion_chances,
    walk_mass,
)
from retexo_fl.errors import ConfigurationError, DatasetError
from tests.support.sampler_contract import NODES, random_adjacency

masses = st.lists(st.one_of(st.just(0.0), st.floats(1e-3, 1e3)), min_size=1, max_size=30).filter(
    any
)


def chances_of(adjacency: Adjacency, share: float) -> CacheChances:
    return CacheChances.of(adjacency, cache_mass(adjacency, (4, 3), None), share)


def dense(adjacency: Adjacency) -> np.ndarray:
    """Return (N, N) with 1 at [target, source]."""
    found = np.zeros((adjacency.num_nodes, adjacency.num_nodes))
    found[np.repeat(np.arange(adjacency.num_nodes), adjacency.degrees), adjacency.indices] = 1
    return found


@given(mass=masses, size=st.floats(0.01, 1.2))
def test_chances_are_proportional_up_to_one_and_sum_to_the_size(
    mass: list[float], size: float
) -> None:
    array = np.array(mass)
    positive = np.count_nonzero(array)
    expected = size * positive
    chances = inclusion_chances(array, expected)
    assert chances.sum() == pytest.approx(min(expected, positive))
    assert (chances[array == 0] == 0).all()
    assert (chances <= 1).all()
    within = (array > 0) & (chances < 1)
    factors = chances[within] / array[within]
    assert np.ptp(factors) <= 1e-9 * factors.max() if len(factors) else True
    # Who is certain would be beyond certain by the factor of the others.
    if len(factors):
        assert (array[chances == 1] * factors.max() >= 1 - 1e-9).all()


def test_nodes_are_cached_independently_with_their_chances() -> None:
    adjacency = random_adjacency()
    chances = chances_of(adjacency, 0.2)
    drawn = np.zeros((4000, NODES))
    for generation, row in enumerate(drawn):
        row[NodeCache.draw(adjacency, chances, seed=1, generation=generation).nodes] = 1
    pi = chances.chances
    assert pi.sum() == pytest.approx(0.2 * NODES)
    assert not drawn[:, pi == 0].any()
    varying = (pi > 0) & (pi < 1)
    deviations = (drawn - pi)[:, varying] / np.sqrt(pi * (1 - pi))[varying]
    means = deviations.mean(axis=0) * len(drawn) ** 0.5
    assert (means**2).sum() < chi2.ppf(1 - 1e-4, len(means))
    pairs = (deviations.T @ deviations)[np.triu_indices(len(means), 1)] / len(drawn) ** 0.5
    assert (pairs**2).sum() < chi2.ppf(1 - 1e-4, len(pairs))


def test_draw_depends_on_seed_and_generation_alone() -> None:
    adjacency = random_adjacency()
    chances = chances_of(adjacency, 0.3)
    nodes = [
        tuple(NodeCache.draw(adjacency, chances, seed=seed, generation=generation).nodes)
        for seed, generation in ((0, 0), (1, 0), (0, 1), (0, 0))
    ]
    assert nodes[0] == nodes[3]
    assert len(set(nodes)) == 3


@given(graph=st.integers(0, 20), generation=st.integers(0, 20), share=st.floats(0.05, 1))
def test_cached_neighbours_are_those_that_are_in_the_cache(
    graph: int, generation: int, share: float
) -> None:
    adjacency = random_adjacency(graph)
    cache = NodeCache.draw(adjacency, chances_of(adjacency, share), seed=0, generation=generation)
    assert cache.nodes.tolist() == sorted(set(cache.nodes.tolist()))
    rows = np.split(adjacency.indices, adjacency.indptr[1:-1])
    places = np.split(cache.places, cache.indptr[1:-1])
    for row, cached in zip(rows, places, strict=True):
        np.testing.assert_array_equal(cached, np.flatnonzero(np.isin(row, cache.nodes)))
    weights = np.zeros(NODES)
    chances = chances_of(adjacency, share).chances
    weights[cache.nodes] = 1 / chances[cache.nodes]
    ends = np.split(cache.ends, cache.indptr[1:-1])
    np.testing.assert_array_equal(
        cache.ids, np.concatenate([row[cached] for row, cached in zip(rows, places, strict=True)])
    )
    for row, cached, sums, heaviest in zip(rows, places, ends, cache.heaviest, strict=True):
        np.testing.assert_array_equal(sums, np.cumsum(weights[row[cached]]))
        assert heaviest == weights[row].max(initial=0)


def test_neighbours_are_found_where_a_graph_is_its_transpose() -> None:
    directed = random_adjacency()
    both = dense(directed) + dense(directed).T
    targets, sources = np.nonzero(both)
    adjacency = Adjacency.from_edges(sources, targets, num_nodes=NODES)
    chances = chances_of(adjacency, 0.3)
    assert chances.outgoing is adjacency
    cache = NodeCache.draw(adjacency, chances, seed=0, generation=0)
    inside = np.isin(adjacency.indices, cache.nodes)
    assert len(cache.places) == inside.sum()


def test_effective_neighbours_are_what_an_estimate_is_worth() -> None:
    adjacency = random_adjacency()
    chances = chances_of(adjacency, 0.2)
    for node, row in enumerate(np.split(adjacency.indices, adjacency.indptr[1:-1])):
        inverse = (1 / chances.chances[row]).sum() if len(row) else np.inf
        assert chances.effective[node] == pytest.approx(len(row) ** 2 / inverse)


def test_never_cached_neighbour_leaves_no_effective_neighbours() -> None:
    adjacency = Adjacency.from_edges(np.array([1, 2]), np.array([0, 0]), num_nodes=3)
    chances = CacheChances.of(adjacency, np.array([0.0, 1.0, 0.0]), 0.2)
    assert chances.effective.tolist() == [0, 0, 0]


def test_mass_is_neighbour_frequency_where_train_nodes_are_many() -> None:
    adjacency = random_adjacency()
    often = dense(adjacency).sum(axis=0)
    many = np.arange(int(FEW_TRAIN_NODES * NODES))
    for train_nodes in (None, many, np.zeros(0, np.int64)):
        np.testing.assert_array_equal(cache_mass(adjacency, (4, 3), train_nodes), often)


def test_mass_is_what_walks_from_few_train_nodes_reach() -> None:
    adjacency = random_adjacency()
    few, fanouts = np.array([5, 9]), (4, 3, 2)
    edges = dense(adjacency)
    degrees = np.maximum(edges.sum(axis=1), 1)
    layer = np.isin(np.arange(NODES), few).astype(float)
    expected = layer.copy()
    for fanout in fanouts:
        layer = (layer * np.minimum(fanout, degrees) / degrees) @ edges
        expected += layer
    np.testing.assert_allclose(walk_mass(adjacency, fanouts, few), expected)
    np.testing.assert_allclose(cache_mass(adjacency, fanouts, few), expected)
    assert np.count_nonzero(expected == 0) > 0


def test_train_node_that_is_none_is_refused() -> None:
    with pytest.raises(DatasetError, match=f"roots: {NODES} is no node"):
        cache_mass(random_adjacency(), (4, 3), np.array([NODES]))


@pytest.mark.parametrize("share", [0.0, -0.1, 1.1])
def test_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(ConfigurationError, match=f"^cache-share: got {share}; expected above 0"):
        chances_of(random_adjacency(), share)
