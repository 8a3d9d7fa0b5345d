"""Rows of mini-batches on a device that keeps some; here the device is the CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from retexo_fl.sampling.adjacency import Adjacency
from retexo_fl.sampling.base import Sampler
from retexo_fl.sampling.features import FeatureStore
from retexo_fl.sampling.gns import GnsSampler
from retexo_fl.sampling.neighbour import NeighbourSampler
from retexo_fl.training.device_rows import DeviceRows

NODES, EPOCHS, BATCHES = 200, 4, 5
CPU = torch.device("cpu")
DRAWS = np.random.default_rng(3)
FEATURES = DRAWS.normal(size=(NODES, 3)).astype(np.float32)
EDGES = DRAWS.integers(0, NODES, (2, 2000))
ADJACENCY = Adjacency.from_edges(*EDGES, num_nodes=NODES)
NEIGHBOUR = NeighbourSampler(ADJACENCY, (3, 2), seed=1)


def gns(cache_epochs: int = 1) -> GnsSampler:
    return GnsSampler(ADJACENCY, (3, 2), seed=1, cache_share=0.2, cache_epochs=cache_epochs)


def rows_of(sampler: Sampler) -> tuple[DeviceRows, FeatureStore]:
    store = FeatureStore(FEATURES)
    return DeviceRows(store, CPU, sampler), store


@pytest.mark.parametrize("sampler", [NEIGHBOUR, gns()], ids=["neighbour", "gns"])
def test_rows_are_those_of_the_nodes_that_a_mini_batch_reads(sampler: Sampler) -> None:
    rows, _ = rows_of(sampler)
    for epoch in range(EPOCHS):
        for batch in range(BATCHES):
            roots = np.arange(batch, NODES, BATCHES)
            nodes = sampler.sample(roots, epoch=epoch, batch=batch).nodes
            np.testing.assert_array_equal(rows.of(nodes, epoch).numpy(), FEATURES[nodes])
    assert rows.counts.hits > 0


@pytest.mark.parametrize("cache_epochs", [1, 2])
def test_cache_of_gns_is_that_of_the_epoch(cache_epochs: int) -> None:
    sampler = gns(cache_epochs)
    rows, store = rows_of(sampler)
    before = np.empty(0, np.int64)
    for epoch in range(EPOCHS):
        cached = sampler.cached_nodes(epoch)
        assert epoch % cache_epochs or not np.array_equal(cached, before)
        others = np.setdiff1d(np.arange(NODES), cached)
        hits, misses, read = rows.counts.hits, rows.counts.misses, store.rows_read
        rows.of(np.arange(NODES), epoch)
        assert rows.counts.hits - hits == len(cached)
        assert rows.counts.misses - misses == len(others)
        # What the last epoch's cache held already is not copied again.
        assert store.rows_read - read == len(others) + len(np.setdiff1d(cached, before))
        before = cached
