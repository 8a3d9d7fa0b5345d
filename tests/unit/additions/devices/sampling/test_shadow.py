from __future__ import annotations

import math
from collections import Counter
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2_contingency

import retexo_fl.additions.devices.sampling.shadow
from retexo_fl.additions.devices.sampling import Adjacency, Sample, ShadowSampler
from retexo_fl.errors import ConfigurationError
from tests.support.reference_samplers import ball, induced, rows_of, scope
from tests.support.sampler_contract import (
    NODES,
    SamplerContract,
    random_adjacency,
    sample_digest,
)


def scopes_of(sample: Sample) -> list[list[int]]:
    """Return the nodes of each root's scope."""
    return [part.tolist() for part in np.split(sample.nodes, sample.root_places[1:])]


class TestShadowSampler(SamplerContract):
    def sampler(self, adjacency: Adjacency, *, seed: int = 0) -> ShadowSampler:
        return ShadowSampler(adjacency, (3, 2), 4, seed=seed)


def test_all_layers_work_on_one_square_block() -> None:
    sample = ShadowSampler(random_adjacency(), (3, 2, 2), 5, seed=0).sample(
        np.array([9, 4]), epoch=0, batch=0
    )
    assert len(sample.blocks) == 5
    assert all(block is sample.blocks[0] for block in sample.blocks)
    assert all(nodes is sample.nodes for nodes in sample.layer_nodes)
    assert sample.blocks[0].num_targets == sample.blocks[0].num_sources == len(sample.nodes)


@given(
    roots=st.lists(st.integers(0, NODES - 1), unique=True, max_size=8),
    fanouts=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    batch=st.integers(0, 3),
)
def test_scopes_are_apart_with_root_first_and_all_edges_within(
    roots: list[int], fanouts: list[int], batch: int
) -> None:
    adjacency = random_adjacency()
    rows = rows_of(adjacency)
    sample = ShadowSampler(adjacency, fanouts, 2, seed=0).sample(
        np.array(roots, dtype=np.int64), epoch=0, batch=batch
    )
    block = sample.blocks[0]
    found = [row.tolist() for row in np.split(block.columns, block.indptr[1:-1])]
    start = 0
    for root, nodes in zip(roots, scopes_of(sample), strict=bool(roots)):
        assert nodes[0] == root
        assert len(set(nodes)) == len(nodes)
        places = {node: start + place for place, node in enumerate(nodes)}
        expected = [[places[other] for other in row] for row in induced(rows, nodes)]
        assert found[start : start + len(nodes)] == expected
        start += len(nodes)
    assert start == len(sample.nodes)


@pytest.mark.parametrize("fanouts", [(2,), (3, 2), (1, 4), (2, 2, 2)])
def test_scope_stays_within_its_hops_and_fanouts(fanouts: tuple[int, ...]) -> None:
    adjacency = random_adjacency()
    rows = rows_of(adjacency)
    largest = sum(math.prod(fanouts[:hops]) for hops in range(len(fanouts) + 1))
    sampler = ShadowSampler(adjacency, fanouts, 1, seed=0)
    for batch in range(10):
        for nodes in scopes_of(sampler.sample(np.arange(NODES), epoch=0, batch=batch)):
            assert len(nodes) <= largest
            assert set(nodes) <= ball(rows, nodes[0], len(fanouts))
            # Of the root's neighbours all that the first hop drew are there.
            assert len(set(nodes) & set(rows[nodes[0]])) >= min(fanouts[0], len(rows[nodes[0]]))


@pytest.mark.parametrize("hops", [1, 2, 3])
def test_scope_of_fanouts_above_degrees_is_all_within_its_hops(hops: int) -> None:
    adjacency = random_adjacency()
    sampler = ShadowSampler(adjacency, (NODES,) * hops, 1, seed=0)
    for nodes in scopes_of(sampler.sample(np.arange(NODES), epoch=0, batch=0)):
        assert set(nodes) == ball(rows_of(adjacency), nodes[0], hops)


def test_degrees_are_those_within_the_scope() -> None:
    sample = ShadowSampler(random_adjacency(), (3, 2), 2, seed=0).sample(
        np.array([9, 4]), epoch=0, batch=0
    )
    block = sample.blocks[0]
    np.testing.assert_array_equal(block.degrees, np.diff(block.indptr))
    np.testing.assert_array_equal(sample.input_degrees, block.degrees)
    assert block.scales is None


def test_scope_is_distributed_as_that_of_the_reference() -> None:
    adjacency = Adjacency.from_edges(
        np.array([1, 2, 3, 4, 2, 4, 5, 1, 3, 5, 0]),
        np.array([0, 0, 0, 0, 1, 1, 1, 2, 2, 3, 4]),
        num_nodes=6,
    )
    rows, random = rows_of(adjacency), Random(0)
    sampler = ShadowSampler(adjacency, (2, 1), 1, seed=0)
    ours, reference = (Counter[str]() for _ in range(2))
    for batch in range(4000):
        (nodes,) = scopes_of(sampler.sample(np.array([0]), epoch=0, batch=batch))
        ours[str(sorted(nodes))] += 1
        reference[str(sorted(scope(rows, 0, [2, 1], random)))] += 1
    assert set(ours) == set(reference)
    assert len(ours) > 6
    table = [[counts[text] for text in sorted(ours)] for counts in (ours, reference)]
    assert chi2_contingency(table).pvalue > 1e-4


def test_two_roots_draw_differently_at_a_node_they_share() -> None:
    # Both roots reach node 2, which has 40 neighbours; hop 2 takes 5 of them.
    far = np.arange(3, 43)
    adjacency = Adjacency.from_edges(
        np.concatenate(([2, 2], far)), np.concatenate(([0, 1], np.full(40, 2))), num_nodes=43
    )
    sampler = ShadowSampler(adjacency, (1, 5), 1, seed=0)
    one, other = scopes_of(sampler.sample(np.array([0, 1]), epoch=0, batch=0))
    assert one[1] == other[1] == 2
    assert len(one) == len(other) == 7
    assert set(one[2:]) != set(other[2:])


def test_scopes_found_in_several_goes_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def digest() -> str:
        sampler = ShadowSampler(random_adjacency(), (3, 2), 2, seed=0)
        return sample_digest(sampler.sample(np.arange(30), epoch=0, batch=0))

    at_once = digest()
    monkeypatch.setattr(retexo_fl.additions.devices.sampling.shadow, "_MOST_NODES", 25)
    assert digest() == at_once


def test_parameters_out_of_range_are_refused() -> None:
    adjacency = random_adjacency()
    with pytest.raises(ConfigurationError, match="fanouts"):
        ShadowSampler(adjacency, (), 2, seed=0)
    with pytest.raises(ConfigurationError, match="layers"):
        ShadowSampler(adjacency, (2,), 0, seed=0)
    with pytest.raises(ConfigurationError, match="seed"):
        ShadowSampler(adjacency, (2,), 2, seed=-3)
