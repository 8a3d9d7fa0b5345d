"""Input rows of mini-batches on a device that keeps some of them."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

from retexo_fl.sampling.base import Sampler
from retexo_fl.sampling.feature_cache import CacheCounts, FeatureCache, FixedOrder, rows_that_fit
from retexo_fl.sampling.features import FeatureStore
from retexo_fl.sampling.gns import GnsSampler
from retexo_fl.sampling.lru import LruOrder

#: Least memory of a GPU that is left to a batch and its activations.
_CACHED_SHARE: Final = 0.5


class DeviceRows:
    """Rows on a GPU, of which those that GNS has drawn, or the last used, are there already."""

    def __init__(self, store: FeatureStore, device: torch.device, sampler: Sampler) -> None:
        capacity = min(store.num_rows, rows_that_fit(device, store.row_bytes, share=_CACHED_SHARE))
        self._gns = sampler if isinstance(sampler, GnsSampler) else None
        policy = FixedOrder if self._gns is not None else LruOrder
        self._cache = FeatureCache(store, device, policy(store.num_rows, capacity))
        self._filled: np.ndarray | None = None

    @property
    def counts(self) -> CacheCounts:
        """What the cache has done."""
        return self._cache.counts

    def of(self, nodes: np.ndarray, epoch: int) -> torch.Tensor:
        """Return rows; those of the cache of ``epoch`` are brought at its first batch."""
        if self._gns is not None:
            cached = self._gns.cached_nodes(epoch)
            if cached is not self._filled:
                self._cache.fill(cached)
                self._filled = cached
        return self._cache.rows(nodes)
