from __future__ import annotations

import numpy as np
import pytest

from retexo_fl.additions.devices.sampling import Adjacency, Sample
from sims.rivals.ladies import LadiesSampler
from tests.support.sampler_contract import NODES, random_adjacency

pytestmark = pytest.mark.slow

VALUES = np.random.default_rng(1).random(NODES) + random_adjacency().degrees


def neighbour_sums(adjacency: Adjacency, values: np.ndarray) -> np.ndarray:
    rows = np.repeat(np.arange(NODES), adjacency.degrees)
    return np.bincount(rows, values[adjacency.indices], NODES)


def block_sums(sample: Sample, layer: int, values: np.ndarray) -> np.ndarray:
    """Return the (R,) scaled sums of a block from the (S,) values of its sources."""
    block = sample.blocks[layer]
    assert block.scales is not None
    rows = np.repeat(np.arange(block.num_targets), np.diff(block.indptr))
    return np.bincount(rows, block.scales * values[block.columns], block.num_targets)


def test_rows_are_unbiased_before_they_are_normalised() -> None:
    adjacency = random_adjacency()
    roots = np.array([3, 9, 21, 40])
    truth = neighbour_sums(adjacency, VALUES)[roots]
    sampler = LadiesSampler(adjacency, 1, 6, seed=0, normalised=False)
    found = np.zeros((1500, len(roots)))
    for batch, sums in enumerate(found):
        sample = sampler.sample(roots, epoch=0, batch=batch)
        sums[:] = block_sums(sample, 0, VALUES[sample.nodes])
    errors = found.std(axis=0) / len(found) ** 0.5
    # One row has its only neighbour for certain.
    assert (errors > 0.1).sum() == 3
    assert (np.abs(found.mean(axis=0) - truth) < 3 * errors + 1e-6 * truth).all()


def test_normalised_rows_are_means_of_what_is_there() -> None:
    adjacency = random_adjacency()
    sample = LadiesSampler(adjacency, 2, 6, seed=0).sample(np.arange(0, 20), epoch=0, batch=0)
    for layer, block in enumerate(sample.blocks):
        sums = block_sums(sample, layer, np.ones(block.num_sources))
        expected = np.where(np.diff(block.indptr) > 0, block.degrees, 0)
        np.testing.assert_allclose(sums, expected, rtol=1e-5)


def test_nothing_is_estimated_where_all_are_drawn() -> None:
    adjacency = random_adjacency()
    sample = LadiesSampler(adjacency, 1, NODES, seed=0).sample(np.arange(5), epoch=0, batch=0)
    sums = block_sums(sample, 0, VALUES[sample.nodes])
    np.testing.assert_allclose(sums, neighbour_sums(adjacency, VALUES)[:5], rtol=1e-5)


def test_chances_are_in_proportion_to_importance_for_all_targets() -> None:
    adjacency = random_adjacency()
    roots = np.array([3, 9, 21, 40])
    rows = np.zeros((len(roots), NODES))
    for number, root in enumerate(roots):
        row = adjacency.indices[slice(*adjacency.indptr[root : root + 2])]
        rows[number, row] = 1 / len(row)
    importance = (rows**2).sum(axis=0)
    importance[roots] = 0
    sampler = LadiesSampler(adjacency, 1, 2, seed=0)
    counts = np.zeros(NODES)
    for batch in range(1500):
        counts[sampler.sample(roots, epoch=0, batch=batch).nodes] += 1
    np.testing.assert_array_equal(counts[roots], 1500)
    counts[roots] = 0
    expected = 1500 * 2 * importance / importance.sum()
    assert (np.abs(counts - expected) <= 4 * np.sqrt(expected) + 1e-9).all()


def test_blocks_are_a_chain_with_targets_first() -> None:
    adjacency = random_adjacency()
    roots = np.array([7, 0, 31])
    sample = LadiesSampler(adjacency, 3, 5, seed=0).sample(roots, epoch=0, batch=0)
    sources = sample.nodes
    for block, targets in zip(sample.blocks, sample.layer_nodes, strict=True):
        assert block.num_sources == len(sources) == len(set(sources.tolist()))
        np.testing.assert_array_equal(sources[: len(targets)], targets)
        for row, target in enumerate(targets):
            edges = slice(block.indptr[row], block.indptr[row + 1])
            whole = adjacency.indices[slice(*adjacency.indptr[target : target + 2])]
            np.testing.assert_array_equal(
                np.sort(sources[block.columns[edges]]), np.intersect1d(whole, sources)
            )
        sources = targets
    np.testing.assert_array_equal(sources, roots)


@pytest.mark.parametrize("changed", ["seed", "epoch", "batch"])
def test_draws_are_keyed(changed: str) -> None:
    adjacency, roots = random_adjacency(), np.arange(10)

    def nodes(*, seed: int = 0, epoch: int = 0, batch: int = 0) -> list[int]:
        sampler = LadiesSampler(adjacency, 2, 8, seed=seed)
        found = sampler.sample(roots, epoch=epoch, batch=batch).nodes
        return [int(node) for node in found]

    assert nodes() == nodes()
    assert nodes() != nodes(**{changed: 1})
