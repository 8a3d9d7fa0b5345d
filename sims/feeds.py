"""Where mini-batches come from: a method's samples, and the cache through which their rows pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import torch

from retexo_fl.additions.devices.sampling.feature_cache import FeatureCache, FixedOrder
from retexo_fl.additions.devices.sampling.features import FeatureStore
from retexo_fl.additions.devices.sampling.gns import GnsSampler
from retexo_fl.additions.devices.sampling.neighbour import NeighbourSampler
from retexo_fl.additions.devices.sampling.sample import Sample
from sims.rivals.lazygcn import recycled

DEVICE: Final = torch.device("cpu")
_ORDER: Final = tuple(b"order of roots")
_RECYCLING: Final = tuple(b"recycling")


@dataclass(frozen=True, slots=True, kw_only=True)
class RootOrder:
    """Which roots each mini-batch has; the same for all methods.

    Attributes:
        train: (T,) ids of the train nodes.
        batch_nodes: Roots of a mini-batch; the last of an epoch has fewer.
        seed: Of the order.
    """

    train: np.ndarray
    batch_nodes: int
    seed: int

    @property
    def batches(self) -> int:
        """Mini-batches of an epoch."""
        return -(-len(self.train) // self.batch_nodes)

    def of_epoch(self, epoch: int) -> list[np.ndarray]:
        """Return the roots of each mini-batch."""
        generator = np.random.default_rng([self.seed, epoch, *_ORDER])
        order = generator.permutation(self.train)
        return np.split(order, range(self.batch_nodes, len(order), self.batch_nodes))


class BatchSampler(Protocol):
    """What draws a mini-batch; a rival's draws need not be independent of who shares it."""

    def sample(self, roots: np.ndarray, *, epoch: int, batch: int) -> Sample:
        """Draw for (B,) distinct roots."""
        ...


class Feed(Protocol):
    """A method."""

    cache: FeatureCache
    order: RootOrder

    def samples(self) -> Iterator[Sample]:
        """Return the samples of all mini-batches, without end."""
        ...


class PlainFeed:
    """Samples whose rows are all copied."""

    def __init__(self, sampler: BatchSampler, order: RootOrder, store: FeatureStore) -> None:
        self.cache = FeatureCache(store, DEVICE, FixedOrder(store.num_rows, 0))
        self._sampler = sampler
        self.order = order

    def samples(self) -> Iterator[Sample]:
        """See :class:`Feed`."""
        epoch = 0
        while True:
            for batch, roots in enumerate(self.order.of_epoch(epoch)):
                yield self._sampler.sample(roots, epoch=epoch, batch=batch)
            epoch += 1


class GnsFeed:
    """Global Neighbor Sampling; the cache's rows are on the device."""

    def __init__(self, sampler: GnsSampler, order: RootOrder, store: FeatureStore) -> None:
        # The drawn size varies by the square root of the expected one at most.
        expected = float(sampler.chances.sum())
        places = int(expected + 6 * expected**0.5)
        self.cache = FeatureCache(store, DEVICE, FixedOrder(store.num_rows, places))
        self._sampler = sampler
        self.order = order

    def samples(self) -> Iterator[Sample]:
        """See :class:`Feed`."""
        epoch = 0
        while True:
            self.cache.fill(self._sampler.cached_nodes(epoch))
            for batch, roots in enumerate(self.order.of_epoch(epoch)):
                yield self._sampler.sample(roots, epoch=epoch, batch=batch)
            epoch += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Recycling:
    """How LazyGCN uses a mega-batch.

    Attributes:
        batches: Mini-batches in a mega-batch.
        times: Passes over the first mega-batch.
        growth: Each further mega-batch is passed over so many times as often.
    """

    batches: int = 4
    times: int = 2
    growth: float = 1.1


class LazyFeed:
    """LazyGCN; the rows of a mega-batch are on the device as long as it is in use."""

    def __init__(
        self,
        sampler: NeighbourSampler,
        order: RootOrder,
        store: FeatureStore,
        recycling: Recycling,
    ) -> None:
        self.cache = FeatureCache(store, DEVICE, FixedOrder(store.num_rows, store.num_rows))
        self._sampler = sampler
        self.order = order
        self._recycling = recycling

    def samples(self) -> Iterator[Sample]:
        """See :class:`Feed`."""
        times = float(self._recycling.times)
        for number, mega in enumerate(self._megas()):
            self.cache.fill(mega.nodes)
            generator = np.random.default_rng([self.order.seed, number, *_RECYCLING])
            yield from recycled(mega, self.order.batch_nodes, int(times), generator)
            times *= self._recycling.growth

    def _megas(self) -> Iterator[Sample]:
        epoch = 0
        while True:
            batches = self.order.of_epoch(epoch)
            for start in range(0, len(batches), self._recycling.batches):
                roots = np.concatenate(batches[start : start + self._recycling.batches])
                yield self._sampler.sample(roots, epoch=epoch, batch=start)
            epoch += 1
