"""What every sampler must satisfy; a new sampler's test inherits :class:`SamplerContract`."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retexo_fl.additions.devices.sampling import (
    Adjacency,
    Block,
    CountingSampler,
    Sample,
    Sampler,
    root_workloads,
)
from retexo_fl.errors import DatasetError

NODES = 60


def random_adjacency(seed: int = 0) -> Adjacency:
    """Return a directed graph of 60 nodes with hubs; node 0 hears of none, and none of node 1."""
    rng = np.random.default_rng(seed)
    chances = np.minimum(0.9, 2.0 / rng.integers(1, 40, NODES))
    edges = rng.random((NODES, NODES)) < chances[:, None]
    np.fill_diagonal(edges, val=False)
    edges[0] = False
    edges[:, 1] = False
    targets, sources = np.nonzero(edges)
    return Adjacency.from_edges(sources, targets, num_nodes=NODES)


def sample_digest(sample: Sample) -> str:
    """Return a digest of every array of a sample."""
    digest = hashlib.sha256()
    arrays = [sample.roots, sample.nodes, sample.input_degrees, sample.root_places]
    arrays += sample.layer_nodes
    for block in sample.blocks:
        arrays += [block.indptr, block.columns, block.degrees, np.array(block.num_sources)]
        arrays += [] if block.scales is None else [block.scales]
    for array in arrays:
        digest.update(f"{array.dtype} {array.shape} ".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def views_of_roots(sample: Sample) -> dict[int, int]:
    """Return for each root a hash of all that its output is computed from, in order."""
    views = [
        hash((int(node), int(degree)))
        for node, degree in zip(sample.nodes, sample.input_degrees, strict=True)
    ]
    for block, nodes in zip(sample.blocks, sample.layer_nodes, strict=True):
        views = [
            hash((int(nodes[row]), int(block.degrees[row]), views[row], *_edges(block, row, views)))
            for row in range(block.num_targets)
        ]
    places = sample.root_places.tolist()
    return dict(zip(sample.roots.tolist(), [views[place] for place in places], strict=True))


def _edges(block: Block, row: int, views: list[int]) -> list[tuple[int, float]]:
    edges = range(block.indptr[row], block.indptr[row + 1])
    scales = block.scales
    return [
        (views[block.columns[edge]], 1.0 if scales is None else float(scales[edge]))
        for edge in edges
    ]


class SamplerContract:
    """Give ``sampler`` in a subclass whose name begins with ``Test``.

    Attributes:
        draws: What is sampled depends on seed, epoch and batch.
    """

    draws: bool = True

    def sampler(self, adjacency: Adjacency, *, seed: int = 0) -> Sampler:
        """Return a sampler of at least two layers, with fanouts below some degrees."""
        raise NotImplementedError

    def test_blocks_are_a_chain_from_the_input_rows_to_the_roots(self) -> None:
        roots = np.array([7, 0, 31, 1, 12])
        sample = self.sampler(random_adjacency()).sample(roots, epoch=0, batch=0)
        np.testing.assert_array_equal(sample.roots, roots)
        assert len(sample.blocks) == len(sample.layer_nodes)
        sources = sample.nodes
        for block, targets in zip(sample.blocks, sample.layer_nodes, strict=True):
            assert block.num_sources == len(sources)
            assert block.num_targets == len(block.degrees) == len(targets)
            np.testing.assert_array_equal(sources[: len(targets)], targets)
            assert block.indptr[0] == 0
            assert block.indptr[-1] == block.num_edges
            assert (np.diff(block.indptr) >= 0).all()
            assert ((block.columns >= 0) & (block.columns < block.num_sources)).all()
            # No row is there that nothing reads.
            read = {*range(block.num_targets), *block.columns.tolist()}
            assert read == set(range(block.num_sources))
            sources = targets
        np.testing.assert_array_equal(sources[sample.root_places], roots)
        assert sample.num_aggregations == sum(block.num_edges for block in sample.blocks)

    def test_arrays_have_their_dtypes(self) -> None:
        sampler = self.sampler(random_adjacency())
        for roots in (np.array([7, 3], dtype=np.int32), np.zeros(0, dtype=np.int64)):
            sample = sampler.sample(roots, epoch=0, batch=0)
            ids = [sample.roots, sample.nodes, sample.input_degrees, sample.root_places]
            assert {array.dtype for array in [*ids, *sample.layer_nodes]} == {np.dtype(np.int64)}
            for block in sample.blocks:
                assert block.indptr.dtype == block.degrees.dtype == np.int64
                assert block.columns.dtype == np.int32
                assert block.scales is None or block.scales.dtype == np.float32
                assert block.scales is None or block.scales.shape == block.columns.shape

    def test_edges_are_edges_of_the_graph_each_once(self) -> None:
        adjacency = random_adjacency()
        rows = np.split(adjacency.indices, adjacency.indptr[1:-1])
        for epoch in range(20):
            sample = self.sampler(adjacency).sample(np.arange(0, NODES, 4), epoch=epoch, batch=3)
            sources = sample.nodes
            for block, targets in zip(sample.blocks, sample.layer_nodes, strict=True):
                for row, target in enumerate(targets):
                    edges = slice(block.indptr[row], block.indptr[row + 1])
                    picked = sources[block.columns[edges]].tolist()
                    assert len(set(picked)) == len(picked)
                    assert set(picked) <= set(rows[target].tolist())
                sources = targets

    def test_what_a_root_sees_does_not_depend_on_how_a_batch_is_cut(self) -> None:
        sampler = self.sampler(random_adjacency())

        def views(roots: list[int], batch: int) -> dict[int, int]:
            sample = sampler.sample(np.array(roots, dtype=np.int64), epoch=2, batch=batch)
            return views_of_roots(sample)

        # Made here: Hypothesis keeps what it knows of a test by its function, not by its class.
        @given(
            roots=st.lists(st.integers(0, NODES - 1), unique=True, max_size=12),
            cuts=st.lists(st.integers(0, 12), max_size=3),
            batch=st.integers(0, 5),
        )
        def shares_see_what_the_batch_sees(roots: list[int], cuts: list[int], batch: int) -> None:
            bounds = [0, *sorted(min(cut, len(roots)) for cut in cuts), len(roots)]
            of_shares: dict[int, int] = {}
            for start, stop in pairwise(bounds):
                of_shares |= views(roots[start:stop], batch)
            assert of_shares == views(roots, batch)

        shares_see_what_the_batch_sees()

    def test_same_call_of_another_sampler_gives_the_same_bits(self) -> None:
        roots = np.arange(3, 20)
        one, other = (self.sampler(random_adjacency()) for _ in range(2))
        other.sample(np.array([5, 58]), epoch=7, batch=1)
        digests = {
            sample_digest(sampler.sample(roots, epoch=4, batch=9)) for sampler in (one, other, one)
        }
        assert len(digests) == 1

    def test_seed_epoch_and_batch_draw_anew(self) -> None:
        roots = np.arange(3, 20)
        samples = [
            self.sampler(random_adjacency(), seed=seed).sample(roots, epoch=epoch, batch=batch)
            for seed, epoch, batch in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))
        ]
        different = {tuple(views_of_roots(sample).values()) for sample in samples}
        assert len(different) == (4 if self.draws else 1)

    def test_threads_that_sample_at_once_get_what_one_gets(self) -> None:
        sampler = self.sampler(random_adjacency())

        def digest(batch: int) -> str:
            return sample_digest(sampler.sample(np.arange(2, 30), epoch=0, batch=batch))

        with ThreadPoolExecutor(4) as pool:
            at_once = list(pool.map(digest, range(64)))
        assert at_once == [digest(batch) for batch in range(64)]

    def test_same_graph_in_another_form_gives_the_same_bits(self) -> None:
        usual = random_adjacency()
        # In 64 bits and read-only: what is compiled is compiled anew for each form.
        indptr, indices = usual.indptr.copy(), usual.indices.astype(np.int64)
        indptr.flags.writeable = indices.flags.writeable = False
        samplers = (self.sampler(usual), self.sampler(Adjacency(indptr=indptr, indices=indices)))
        digests = [
            sample_digest(sampler.sample(np.arange(3, 30), epoch=0, batch=0))
            for sampler in samplers
        ]
        assert digests[0] == digests[1]
        workloads = [root_workloads(sampler, np.arange(9), cache=None) for sampler in samplers]
        np.testing.assert_array_equal(workloads[0], workloads[1])

    def test_no_roots_give_an_empty_sample(self) -> None:
        sample = self.sampler(random_adjacency()).sample(np.zeros(0, np.int64), epoch=0, batch=0)
        assert len(sample.nodes) == sample.num_aggregations == 0
        assert all(block.num_targets == block.num_sources == 0 for block in sample.blocks)

    def test_graph_without_edges_leaves_the_roots(self) -> None:
        none = np.zeros(0, dtype=np.int64)
        sampler = self.sampler(Adjacency.from_edges(none, none, num_nodes=5))
        sample = sampler.sample(np.array([4, 2]), epoch=0, batch=0)
        np.testing.assert_array_equal(sample.nodes, [4, 2])
        assert sample.num_aggregations == 0

    def test_root_that_is_no_node_or_given_twice_is_refused(self) -> None:
        sampler = self.sampler(random_adjacency())
        for roots, words in (
            ([3, NODES], f"roots: {NODES} is no node; expected 0 to {NODES - 1}"),
            ([-1, 3], "roots: -1 is no node"),
            ([3, 5, 3], "roots: 3 is given twice"),
        ):
            with pytest.raises(DatasetError, match=words):
                sampler.sample(np.array(roots), epoch=0, batch=0)
        # An error leaves nothing behind that the next call would trip over.
        assert sampler.sample(np.array([3]), epoch=0, batch=0).roots.tolist() == [3]

    def test_spec_tells_seeds_apart_and_is_one_line(self) -> None:
        specs = [self.sampler(random_adjacency(), seed=seed).spec for seed in (0, 1, 0)]
        assert specs[0] == specs[2]
        assert (specs[0] != specs[1]) == self.draws
        assert "\n" not in specs[0]

    def test_workload_is_what_a_root_costs_alone(self) -> None:
        sampler = self.sampler(random_adjacency())
        roots = np.random.default_rng(1).permutation(NODES)[:25]
        alone = [
            sampler.sample(np.array([root]), epoch=0, batch=0).num_aggregations for root in roots
        ]
        assert max(alone) > min(alone)
        assert root_workloads(sampler, roots, cache=None).tolist() == alone
        if isinstance(sampler, CountingSampler):
            assert sampler.count_aggregations(roots, epoch=0, batch=0).tolist() == alone

    def test_sampler_satisfies_the_protocol(self) -> None:
        sampler = self.sampler(random_adjacency())
        assert isinstance(sampler, Sampler)
        sample = sampler.sample(np.array([3]), epoch=0, batch=0)
        assert len(sample.blocks) == sampler.num_layers
