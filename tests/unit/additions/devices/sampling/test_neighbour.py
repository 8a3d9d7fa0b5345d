from __future__ import annotations

import subprocess
import sys
from collections import Counter
from itertools import combinations, pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2_contingency, chisquare

from retexo_fl.additions.devices.sampling import Adjacency, NeighbourSampler, Sample
from retexo_fl.errors import ConfigurationError
from tests.support.reference_samplers import Picks, neighbour_picks, rows_of
from tests.support.sampler_contract import (
    NODES,
    SamplerContract,
    random_adjacency,
    sample_digest,
)

#: Chance at which a right sampler would fail a test, with the seeds that stand here.
_UNLIKELY = 1e-4


def picks_of(sample: Sample) -> Picks:
    """Return the picked neighbours of each target, input layer first."""
    layers: Picks = []
    sources = sample.nodes
    for block, targets in zip(sample.blocks, sample.layer_nodes, strict=True):
        picked = sources[block.columns].tolist()
        rows = zip(targets.tolist(), pairwise(block.indptr.tolist()), strict=True)
        layers.append({target: frozenset(picked[start:stop]) for target, (start, stop) in rows})
        sources = targets
    return layers


def complete_graph(nodes: int) -> Adjacency:
    """Return a graph in which each node hears of all others."""
    targets, sources = np.nonzero(~np.eye(nodes, dtype=bool))
    return Adjacency.from_edges(sources, targets, num_nodes=nodes)


class TestNeighbourSampler(SamplerContract):
    def sampler(self, adjacency: Adjacency, *, seed: int = 0) -> NeighbourSampler:
        return NeighbourSampler(adjacency, (4, 3, 2), seed=seed)


@pytest.mark.parametrize("fanouts", [(3,), (1, 5), (5, 1), (2, 2, 2)])
def test_every_source_of_a_layer_draws_that_layers_fanout(fanouts: tuple[int, ...]) -> None:
    adjacency = random_adjacency()
    degrees = adjacency.degrees
    sample = NeighbourSampler(adjacency, fanouts, seed=3).sample(
        np.array([9, 4, 25]), epoch=0, batch=0
    )
    layers = picks_of(sample)
    targets = {9, 4, 25}
    for fanout, picks in zip(fanouts, layers[::-1], strict=True):
        assert set(picks) == targets
        for target, picked in picks.items():
            assert len(picked) == min(fanout, degrees[target])
        targets |= {node for picked in picks.values() for node in picked}
    assert set(sample.nodes.tolist()) == targets
    assert len(sample.nodes) == len(targets)


def test_places_are_targets_first_and_then_in_the_order_found() -> None:
    sample = NeighbourSampler(random_adjacency(), (4, 3), seed=0).sample(
        np.array([9, 4, 25]), epoch=0, batch=0
    )
    for block in sample.blocks:
        found = list(dict.fromkeys([*range(block.num_targets), *block.columns.tolist()]))
        assert found == list(range(block.num_sources))


def test_few_neighbours_are_taken_whole_ascending_and_unscaled() -> None:
    adjacency = random_adjacency()
    most = int(adjacency.degrees.max())
    whole = NeighbourSampler(adjacency, (most,), seed=0).sample(np.arange(NODES), epoch=0, batch=0)
    np.testing.assert_array_equal(whole.nodes[whole.blocks[0].columns], adjacency.indices)
    np.testing.assert_array_equal(whole.blocks[0].indptr, adjacency.indptr)
    assert whole.blocks[0].scales is None
    less = NeighbourSampler(adjacency, (most - 1,), seed=0).sample(
        np.arange(NODES), epoch=0, batch=0
    )
    assert less.blocks[0].scales is not None


def test_scale_is_degree_by_picks_and_degrees_are_the_graphs() -> None:
    adjacency = random_adjacency()
    sample = NeighbourSampler(adjacency, (3, 2), seed=1).sample(np.arange(10), epoch=0, batch=0)
    np.testing.assert_array_equal(sample.input_degrees, adjacency.degrees[sample.nodes])
    for block, nodes in zip(sample.blocks, sample.layer_nodes, strict=True):
        np.testing.assert_array_equal(block.degrees, adjacency.degrees[nodes])
        picks = np.diff(block.indptr)
        assert block.scales is not None
        ratios = np.repeat(block.degrees / np.maximum(picks, 1), picks)
        np.testing.assert_array_equal(block.scales, ratios.astype(np.float32))


def test_every_set_of_neighbours_is_equally_likely() -> None:
    # 7 nodes with 6 neighbours each; 3 of these can be picked in 20 ways.
    sampler = NeighbourSampler(complete_graph(7), (3,), seed=5)
    counts: Counter[tuple[int, frozenset[int]]] = Counter()
    for batch in range(2000):
        (picks,) = picks_of(sampler.sample(np.arange(7), epoch=0, batch=batch))
        counts.update(picks.items())
    for target in range(7):
        others = [node for node in range(7) if node != target]
        found = [counts[target, frozenset(picked)] for picked in combinations(others, 3)]
        assert sum(found) == 2000
        assert chisquare(found).pvalue > _UNLIKELY


def test_each_neighbour_and_each_pair_of_them_is_equally_likely() -> None:
    nodes, fanout, batches = 41, 7, 500
    sampler = NeighbourSampler(complete_graph(nodes), (fanout,), seed=6)
    together = np.zeros((nodes, nodes))
    for batch in range(batches):
        block = sampler.sample(np.arange(nodes), epoch=1, batch=batch).blocks[0]
        rows = np.repeat(np.arange(nodes), fanout)
        # Seen from its target, which would be the same for all if it were not for its own place.
        steps = np.zeros((nodes, nodes))
        steps[rows, (block.columns - rows) % nodes] = 1
        together += steps.T @ steps
    draws, degree = batches * nodes, nodes - 1
    of_pair = fanout * (fanout - 1) / (degree * (degree - 1))
    for found, chance in (
        (np.diag(together)[1:], fanout / degree),
        (together[1:, 1:][np.triu_indices(degree, 1)], of_pair),
    ):
        deviations = (found - draws * chance) / np.sqrt(draws * chance * (1 - chance))
        # 780 pairs: a larger deviation than 5 has a chance of 5e-4.
        assert np.abs(deviations).max() < 5
        assert 0.8 < deviations.std() < 1.2


def test_whole_sample_is_distributed_as_that_of_the_reference() -> None:
    adjacency = Adjacency.from_edges(
        np.array([1, 2, 3, 0, 2, 4, 1, 3, 4]), np.array([0, 0, 0, 1, 1, 1, 2, 2, 3]), num_nodes=5
    )
    rows, random = rows_of(adjacency), Random(0)
    sampler = NeighbourSampler(adjacency, (2, 1), seed=0)
    ours, reference = (Counter[str]() for _ in range(2))
    for batch in range(4000):
        sample = sampler.sample(np.array([0, 1]), epoch=0, batch=batch)
        ours[_text(picks_of(sample))] += 1
        reference[_text(neighbour_picks(rows, [0, 1], [2, 1], random))] += 1
    assert set(ours) == set(reference)
    table = [[counts[text] for text in sorted(ours)] for counts in (ours, reference)]
    assert len(ours) > 50
    assert chi2_contingency(table).pvalue > _UNLIKELY


def _text(picks: Picks) -> str:
    return str([sorted((target, sorted(row)) for target, row in layer.items()) for layer in picks])


@given(
    roots=st.lists(st.integers(0, NODES - 1), unique=True, min_size=1, max_size=10),
    cut=st.integers(0, 10),
    epoch=st.integers(0, 3),
)
def test_picks_of_shares_together_are_those_of_the_batch(
    roots: list[int], cut: int, epoch: int
) -> None:
    sampler = NeighbourSampler(random_adjacency(), (4, 3, 2), seed=0)

    def picks(share: list[int]) -> Picks:
        return picks_of(sampler.sample(np.array(share, dtype=np.int64), epoch=epoch, batch=1))

    whole = picks(roots)
    shares = zip(picks(roots[:cut]), picks(roots[cut:]), strict=True)
    for layer, (one, other) in zip(whole, shares, strict=True):
        assert one | other == other | one == layer


def test_layers_and_targets_draw_independently() -> None:
    sampler = NeighbourSampler(complete_graph(9), (4, 4), seed=0)
    agreements = []
    for batch in range(800):
        inner, outer = picks_of(sampler.sample(np.array([2, 5]), epoch=0, batch=batch))
        assert inner[2] | inner[5] | outer[2] | outer[5] <= set(range(9))
        agreements.append((len(inner[2] & outer[2]), len(outer[2] & outer[5])))
    # Twice 4 of 8 have 2 in common. Two targets share 7 candidates, each picked by both in a
    # quarter of all draws.
    layers, targets = np.mean(agreements, axis=0)
    assert abs(layers - 2) < 0.13
    assert abs(targets - 1.75) < 0.13


def test_scaled_sums_are_unbiased() -> None:
    adjacency = random_adjacency()
    values = np.random.default_rng(0).random(NODES) + adjacency.degrees
    truth = np.array([values[row].sum() for row in rows_of(adjacency)])
    sampler = NeighbourSampler(adjacency, (3,), seed=2)
    sums = np.zeros((1500, NODES))
    for batch in range(len(sums)):
        sample = sampler.sample(np.arange(NODES), epoch=0, batch=batch)
        block = sample.blocks[0]
        assert block.scales is not None
        targets = np.repeat(np.arange(NODES), np.diff(block.indptr))
        np.add.at(sums[batch], targets, block.scales * values[sample.nodes[block.columns]])
    errors = sums.std(axis=0) / len(sums) ** 0.5
    assert (np.abs(sums.mean(axis=0) - truth) <= 4 * errors + 1e-5 * truth).all()


def test_another_process_draws_the_same() -> None:
    script = (
        "import numpy as np\n"
        "from retexo_fl.additions.devices.sampling import NeighbourSampler\n"
        "from tests.support.sampler_contract import random_adjacency, sample_digest\n"
        "sampler = NeighbourSampler(random_adjacency(), (4, 3), seed=8)\n"
        "print(sample_digest(sampler.sample(np.arange(20), epoch=1, batch=2)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=500
    )
    sampler = NeighbourSampler(random_adjacency(), (4, 3), seed=8)
    here = sample_digest(sampler.sample(np.arange(20), epoch=1, batch=2))
    assert done.stdout.strip() == here


def test_parameters_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="fanouts"):
        NeighbourSampler(random_adjacency(), (), seed=0)
    with pytest.raises(ConfigurationError, match="seed: got -1"):
        NeighbourSampler(random_adjacency(), (2,), seed=-1)
