from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from retexo_fl.additions.devices.sampling import NeighbourSampler
from retexo_fl.additions.devices.sampling.features import FeatureStore
from retexo_fl.additions.devices.sampling.gns import GnsSampler
from sims.feeds import Feed, GnsFeed, LazyFeed, PlainFeed, Recycling, RootOrder
from tests.support.mini_batches import small_graph

pytestmark = pytest.mark.slow

GRAPH = small_graph()
ORDER = RootOrder(train=GRAPH.train, batch_nodes=6, seed=0)
SAMPLER = NeighbourSampler(GRAPH.adjacency, (3, 2), seed=0)


def store() -> FeatureStore:
    return FeatureStore(GRAPH.features)


def gns_feed() -> tuple[GnsFeed, GnsSampler]:
    sampler = GnsSampler(GRAPH.adjacency, (3, 2), seed=0, cache_share=0.2)
    return GnsFeed(sampler, ORDER, store()), sampler


def lazy_feed(growth: float = 1.0) -> LazyFeed:
    recycling = Recycling(batches=2, times=2, growth=growth)
    return LazyFeed(SAMPLER, ORDER, store(), recycling)


def test_order_has_every_train_node_once_and_anew_in_each_epoch() -> None:
    epochs = [np.concatenate(ORDER.of_epoch(epoch)) for epoch in (0, 1, 0)]
    assert ORDER.batches == 4
    assert [len(batch) for batch in ORDER.of_epoch(0)] == [6, 6, 6, 2]
    assert all(sorted(epoch) == sorted(GRAPH.train) for epoch in epochs)
    assert tuple(epochs[0]) == tuple(epochs[2]) != tuple(epochs[1])


@pytest.mark.parametrize("name", ["plain", "gns", "lazy"])
def test_an_epoch_has_as_many_mini_batches_of_the_same_sizes(name: str) -> None:
    feeds: dict[str, Feed] = {
        "plain": PlainFeed(SAMPLER, ORDER, store()),
        "gns": gns_feed()[0],
        "lazy": lazy_feed(),
    }
    sizes = [len(sample.roots) for sample in islice(feeds[name].samples(), 4)]
    assert sum(sizes) == (20 if name != "lazy" else 24)
    assert max(sizes) == 6


def test_all_rows_of_a_plain_feed_are_copied() -> None:
    feed = PlainFeed(SAMPLER, ORDER, store())
    nodes = 0
    for sample in islice(feed.samples(), 5):
        feed.cache.rows(sample.nodes)
        nodes += len(sample.nodes)
    assert (feed.cache.counts.misses, feed.cache.counts.hits) == (nodes, 0)
    assert feed.cache.counts.bytes_copied == nodes * GRAPH.features.shape[1] * 4


def test_rows_of_the_cache_are_copied_once_an_epoch() -> None:
    feed, sampler = gns_feed()
    kept: set[int] = set()
    filled = missed = 0
    for number, sample in enumerate(islice(feed.samples(), 12)):
        cached = set(sampler.cached_nodes(number // 4).tolist())
        filled += len(cached - kept)
        kept = cached
        feed.cache.rows(sample.nodes)
        missed += len(set(sample.nodes.tolist()) - cached)
    counts = feed.cache.counts
    assert (counts.refreshed, counts.misses) == (filled, missed)
    assert counts.hits > 0


def test_mega_batch_is_copied_once_and_read_from_the_device() -> None:
    feed = lazy_feed()
    samples = list(islice(feed.samples(), 4))
    for sample in samples:
        feed.cache.rows(sample.nodes)
    roots = np.concatenate(ORDER.of_epoch(0)[:2])
    mega = SAMPLER.sample(roots, epoch=0, batch=0)
    assert feed.cache.counts.refreshed == len(mega.nodes)
    assert feed.cache.counts.misses == 0
    assert {root for sample in samples for root in sample.roots} == set(roots)


def test_later_mega_batches_are_used_more_often() -> None:
    feed = lazy_feed(growth=2.0)
    samples = list(islice(feed.samples(), 4 + 8))
    first, second = ORDER.of_epoch(0)[:2], ORDER.of_epoch(0)[2:]
    of_first = np.concatenate([sample.roots for sample in samples[:4]])
    of_second = np.concatenate([sample.roots for sample in samples[4:]])
    assert sorted(of_first) == sorted(np.tile(np.concatenate(first), 2))
    assert sorted(of_second) == sorted(np.tile(np.concatenate(second), 4))
