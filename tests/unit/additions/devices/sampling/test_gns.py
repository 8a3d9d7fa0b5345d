from __future__ import annotations

import itertools
import re
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from retexo_fl.additions.devices.sampling import (
    Adjacency,
    GnsSampler,
    NeighbourSampler,
    Sample,
    Sampler,
)
from retexo_fl.additions.devices.sampling.feature_cache import FeatureCache, FixedOrder
from retexo_fl.additions.devices.sampling.features import FeatureStore
from retexo_fl.additions.devices.sampling.gns import ENOUGH_AT_INPUT
from retexo_fl.additions.devices.sampling.gns_cache import CacheChances, NodeCache, cache_mass
from retexo_fl.errors import ConfigurationError, DatasetError
from tests.support.commands import ROOT
from tests.support.data import data_dir
from tests.support.expected_picks import expected_given_cache
from tests.support.sampler_contract import NODES, SamplerContract, random_adjacency

#: Kept for the whole test.
_ONE_CACHE = 10**9


def scales_of(sample: Sample, layer: int) -> np.ndarray:
    """Return (R, S) scales of a block, 0 where nothing was picked."""
    block = sample.blocks[layer]
    found = np.zeros((block.num_targets, block.num_sources))
    rows = np.repeat(np.arange(block.num_targets), np.diff(block.indptr))
    found[rows, block.columns] = 1 if block.scales is None else block.scales
    return found


def real_adjacency(name: str) -> Adjacency:
    with np.load(data_dir() / f"{name}.npz") as arrays:
        ends, num_nodes = arrays["edge_index"], len(arrays["y"])
    sources, targets = np.concatenate([ends, ends[::-1]], axis=1)
    return Adjacency.from_edges(sources, targets, num_nodes=num_nodes)


class TestGnsSampler(SamplerContract):
    def sampler(self, adjacency: Adjacency, *, seed: int = 0) -> Sampler:
        return GnsSampler(adjacency, (4, 3, 2), seed=seed, cache_share=0.2)


@pytest.mark.parametrize("fanout", [2, 3, 5])
@pytest.mark.parametrize("at_input", [True, False])
@pytest.mark.each_choice
def test_expected_scales_over_all_caches_are_exactly_one(fanout: int, at_input: bool) -> None:
    adjacency = random_adjacency()
    chances = CacheChances.of(adjacency, cache_mass(adjacency, (fanout,), None), 0.3).chances
    enough = min(ENOUGH_AT_INPUT, fanout) if at_input else float(fanout)
    for row in np.split(adjacency.indices, adjacency.indptr[1:-1]):
        neighbours = row[:7]
        if not len(neighbours):
            continue
        expected = np.zeros(len(neighbours))
        for states in product((False, True), repeat=len(neighbours)):
            cached = np.array(states)
            pi = chances[neighbours]
            chance = np.where(cached, pi, 1 - pi).prod()
            if chance:
                expected += chance * expected_given_cache(
                    neighbours, cached, chances, fanout, enough, at_input=at_input
                )
        np.testing.assert_allclose(expected, 1, rtol=1e-5)


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("seed", [0, 1])
def test_scales_given_a_cache_are_on_average_those_expected(seed: int, layer: int) -> None:
    adjacency = random_adjacency()
    fanouts = (4, 3)
    sampler = GnsSampler(adjacency, fanouts, seed=seed, cache_share=0.2, cache_epochs=_ONE_CACHE)
    in_cache = np.isin(np.arange(NODES), sampler.cached_nodes(0))
    draws, found, squares = 800, np.zeros((NODES, NODES)), np.zeros((NODES, NODES))
    for batch in range(draws):
        # With all nodes as roots, those and no others are the rows of every layer.
        scales = scales_of(sampler.sample(np.arange(NODES), epoch=0, batch=batch), layer)
        found += scales
        squares += scales**2
    means = found / draws
    errors = np.sqrt(np.maximum(squares / draws - means**2, 0) / draws)
    expected = np.zeros((NODES, NODES))
    fanout = fanouts[::-1][layer]
    for node, row in enumerate(np.split(adjacency.indices, adjacency.indptr[1:-1])):
        if len(row):
            enough = ENOUGH_AT_INPUT if layer == 0 else float(fanout)
            expected[node, row] = expected_given_cache(
                row, in_cache[row], sampler.chances, fanout, enough, at_input=layer == 0
            )
    # 800 edges: a deviation of 5 has a chance of 5e-4.
    assert (np.abs(means - expected) <= 5 * errors + 1e-5 * expected).all()
    assert np.abs(means - expected).max() > 0


def test_picks_stand_for_all_neighbours_where_none_can_be_cached() -> None:
    """No train node is near these roots, so that the cache never holds one of their neighbours."""
    edges = np.array(list(itertools.permutations(range(10), 2))).T
    both = np.hstack([edges, edges + 10])
    adjacency = Adjacency.from_edges(both[0], both[1], num_nodes=500)
    sampler = GnsSampler(
        adjacency, (3,), seed=0, cache_share=0.01, train_nodes=np.arange(2, dtype=np.int64)
    )
    block = sampler.sample(np.arange(10, 13), epoch=0, batch=0).blocks[0]
    assert block.degrees.tolist() == [9, 9, 9]
    assert block.scales is not None
    assert block.scales.tolist() == [3.0] * 9


@pytest.mark.real_graphs
def test_input_layer_aggregate_is_unbiased_on_a_real_graph() -> None:
    adjacency = real_adjacency("github")
    # Large where degrees are: what a cache by degree would be biased for.
    values = np.log1p(adjacency.degrees).astype(np.float64)
    roots = np.random.default_rng(0).permutation(np.flatnonzero(adjacency.degrees))[:400]
    sampler = GnsSampler(adjacency, (5,), seed=0, cache_share=0.02)
    weighted, unweighted = np.zeros((2, 200, len(roots)))
    for epoch in range(200):
        block = (sample := sampler.sample(roots, epoch=epoch, batch=0)).blocks[0]
        rows = np.repeat(np.arange(len(roots)), np.diff(block.indptr))
        read = values[sample.nodes[block.columns]]
        assert block.scales is not None
        weighted[epoch] = np.bincount(rows, block.scales * read, len(roots))
        picks = np.maximum(np.diff(block.indptr), 1)
        unweighted[epoch] = np.bincount(rows, read, len(roots)) * block.degrees / picks
    truth = np.array(
        [
            values[adjacency.indices[slice(*adjacency.indptr[node : node + 2])]].sum()
            for node in roots
        ]
    )

    def deviation(estimates: np.ndarray) -> float:
        """Return by how many standard errors the mean over roots and draws is off."""
        means = (estimates / truth).mean(axis=1)
        return float((means.mean() - 1) / (means.std(ddof=1) / len(means) ** 0.5))

    assert abs(deviation(weighted)) < 3
    # The same test finds the bias of an estimate without weights.
    assert abs(deviation(unweighted)) > 10
    each = (weighted - truth).mean(axis=0) / (weighted.std(axis=0) / 200**0.5 + 1e-6 * truth)
    assert (np.abs(each) < 3).mean() > 0.98


def test_linear_model_of_two_layers_is_estimated_without_bias() -> None:
    adjacency = random_adjacency()
    values = 1.0 + adjacency.degrees
    rows = np.repeat(np.arange(NODES), adjacency.degrees)

    def sums(of: np.ndarray) -> np.ndarray:
        return np.bincount(rows, of[adjacency.indices], NODES)

    truth = sums(sums(values))
    sampler = GnsSampler(adjacency, (4, 3), seed=3, cache_share=0.2)
    found = np.zeros((1500, NODES))
    for epoch, estimate in enumerate(found):
        sample = sampler.sample(np.arange(NODES), epoch=epoch, batch=0)
        estimate[:] = scales_of(sample, 1) @ scales_of(sample, 0) @ values
    means = (found / np.maximum(truth, 1)).mean(axis=1)
    expected = (truth > 0).mean()
    assert abs(means.mean() - expected) < 3 * means.std() / len(means) ** 0.5
    each = (found.mean(axis=0) - truth) / (found.std(axis=0) / len(found) ** 0.5 + 1e-9)
    assert np.abs(each).max() < 4.5


@pytest.mark.real_graphs
def test_input_layer_reads_only_cached_neighbours_if_enough() -> None:
    adjacency = real_adjacency("github")
    sampler = GnsSampler(adjacency, (10, 5), seed=0, cache_share=0.05)
    cached = np.zeros(adjacency.num_nodes, bool)
    cached[sampler.cached_nodes(0)] = True
    effective = CacheChances.of(adjacency, cache_mass(adjacency, (10, 5), None), 0.05).effective
    sample = sampler.sample(np.arange(0, 20000, 50), epoch=0, batch=0)
    block, targets = sample.blocks[0], sample.layer_nodes[0]
    enough = np.repeat(effective[targets] >= ENOUGH_AT_INPUT, np.diff(block.indptr))
    read = sample.nodes[block.columns]
    assert enough.mean() > 0.5
    assert cached[read][enough].all()
    assert not cached[read][~enough].all()
    # Cached first: where others are picked, so is every cached neighbour or all but one pick.
    picks = np.diff(block.indptr)
    assert picks.max() == 5
    of_cache = np.bincount(np.repeat(np.arange(len(picks)), picks), cached[read], len(picks))
    all_cached = np.array(
        [
            cached[adjacency.indices[slice(*adjacency.indptr[node : node + 2])]].sum()
            for node in targets
        ]
    )
    few = effective[targets] < ENOUGH_AT_INPUT
    assert (of_cache[few] >= np.minimum(all_cached, 4)[few]).all()


def test_inner_layer_takes_full_fanouts_where_few_are_cached() -> None:
    adjacency = random_adjacency()
    sampler = GnsSampler(adjacency, (4, 3), seed=0, cache_share=0.2)
    effective = CacheChances.of(adjacency, cache_mass(adjacency, (4, 3), None), 0.2).effective
    sample = sampler.sample(np.arange(NODES), epoch=0, batch=0)
    picks = np.diff(sample.blocks[1].indptr)
    few = effective < 4
    np.testing.assert_array_equal(picks[few], np.minimum(adjacency.degrees, 4)[few])
    assert (picks <= 4).all()


def test_complete_rows_are_unscaled() -> None:
    adjacency = random_adjacency()
    most = int(adjacency.degrees.max())
    sampler = GnsSampler(adjacency, (most, 2), seed=0, cache_share=0.05)
    assert sampler.sample(np.arange(NODES), epoch=0, batch=0).blocks[1].scales is None


def test_cache_is_refreshed_every_so_many_epochs() -> None:
    adjacency = random_adjacency()
    sampler = GnsSampler(adjacency, (4, 3), seed=0, cache_share=0.3, cache_epochs=3)
    caches = [tuple(sampler.cached_nodes(epoch)) for epoch in range(9)]
    assert [len(set(caches[start : start + 3])) for start in (0, 3, 6)] == [1, 1, 1]
    assert len(set(caches)) == 3
    # One that was dropped meanwhile is drawn as it was.
    assert tuple(sampler.cached_nodes(0)) == caches[0]


def test_cache_is_that_of_its_chances() -> None:
    adjacency = random_adjacency()
    sampler = GnsSampler(adjacency, (4, 3), seed=7, cache_share=0.3)
    chances = CacheChances.of(adjacency, cache_mass(adjacency, (4, 3), None), 0.3)
    np.testing.assert_array_equal(sampler.chances, chances.chances)
    drawn = NodeCache.draw(adjacency, chances, seed=7, generation=5)
    np.testing.assert_array_equal(sampler.cached_nodes(5), drawn.nodes)


def test_few_train_nodes_are_preferred_with_what_they_reach() -> None:
    adjacency = random_adjacency()
    by_degree = GnsSampler(adjacency, (2, 2), seed=0, cache_share=0.1)
    by_walks = GnsSampler(adjacency, (2, 2), seed=0, cache_share=0.1, train_nodes=np.array([1]))
    # Nobody hears of node 1, so only as a train node it is ever read.
    assert by_degree.chances[1] == 0
    assert by_walks.chances[1] > by_walks.chances.mean()
    assert by_walks.chances.sum() == pytest.approx(6)


@pytest.mark.real_graphs
def test_rows_that_are_copied_are_those_outside_the_cache() -> None:
    adjacency = real_adjacency("github")
    roots = np.arange(0, 20000, 300)
    sampler = GnsSampler(adjacency, (15, 10, 5), seed=0, cache_share=0.1)
    store = FeatureStore(np.zeros((adjacency.num_nodes, 4), np.float32))
    table = FeatureCache(store, torch.device("cpu"), FixedOrder(adjacency.num_nodes, 5000))
    cached = sampler.cached_nodes(0)
    table.fill(cached)
    nodes = sampler.sample(roots, epoch=0, batch=0).nodes
    table.rows(nodes)
    assert table.counts.misses == np.setdiff1d(nodes, cached).size
    assert table.counts.hit_rate == pytest.approx(np.isin(nodes, cached).mean())
    assert store.rows_read == len(cached) + table.counts.misses
    plain = NeighbourSampler(adjacency, (15, 10, 5), seed=0).sample(roots, epoch=0, batch=0)
    assert table.counts.misses < len(plain.nodes) / 2


def test_spec_tells_all_parameters() -> None:
    adjacency = random_adjacency()
    samplers = [
        GnsSampler(adjacency, (4, 3), seed=0),
        GnsSampler(adjacency, (4, 2), seed=0),
        GnsSampler(adjacency, (4, 3), seed=0, cache_share=0.02),
        GnsSampler(adjacency, (4, 3), seed=0, cache_epochs=2),
        GnsSampler(adjacency, (4, 3), seed=0, train_nodes=np.array([3])),
        GnsSampler(adjacency, (4, 3), seed=0, train_nodes=np.array([4])),
    ]
    assert len({sampler.spec for sampler in samplers}) == len(samplers)


def test_parameters_that_are_none_are_refused() -> None:
    adjacency = random_adjacency()
    with pytest.raises(ConfigurationError, match="^fanouts: got '3/1'; expected numbers from 2"):
        GnsSampler(adjacency, (3, 1), seed=0)
    with pytest.raises(ConfigurationError, match="^cache-epochs: got 0; expected 1 or more"):
        GnsSampler(adjacency, (3, 2), seed=0, cache_epochs=0)
    with pytest.raises(ConfigurationError, match=r"^cache-share: got 0\.0; expected above 0"):
        GnsSampler(adjacency, (3, 2), seed=0, cache_share=0.0)
    with pytest.raises(DatasetError, match=r"roots: 3 is given twice"):
        GnsSampler(adjacency, (3, 2), seed=0, train_nodes=np.array([3, 3]))


def test_example_of_the_guide_copies_what_is_not_in_the_cache(
    capsys: pytest.CaptureFixture[str],
) -> None:
    guide = ROOT / "docs" / "sampling.md"
    found = re.findall(r"```python\n(.*?)```", guide.read_text(encoding="utf-8"), re.DOTALL)
    (example,) = (code for code in found if "GnsSampler" in code)
    names: dict[str, Any] = {}
    exec(compile(example, str(guide), "exec"), names)  # noqa: S102 - our own guide
    counts = names["cache"].counts
    assert capsys.readouterr().out == f"{counts.hit_rate} {counts.bytes_copied}\n"
    assert 0 < counts.hit_rate < 1
    assert counts.bytes_copied == names["store"].bytes_read
