"""Input rows of mini-batches on a device that keeps some of them."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from retexo_fl.additions.devices.sampling.base import Sampler
from retexo_fl.additions.devices.sampling.feature_cache import (
    CacheCounts,
    FeatureCache,
    FixedOrder,
    budget_bytes,
    by_degree,
)
from retexo_fl.additions.devices.sampling.features import FeatureStore
from retexo_fl.additions.devices.sampling.gns import GnsSampler
from retexo_fl.additions.devices.sampling.lru import LruOrder
from retexo_fl.units import counted

#: A draw of the GNS cache is larger than expected by so many standard deviations once in 30,000.
_DEVIATIONS: Final = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRows:
    """Rows of some nodes on a device, and what it took to bring them there.

    Attributes:
        rows: (n, D) on the device.
        hits: How many of them a cache had; None on a device without one.
        copied_bytes: Of what was copied, to fill the cache included.
    """

    rows: torch.Tensor
    hits: int | None = None
    copied_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheChoice:
    """What of its rows a device keeps.

    Attributes:
        policy: ``degree`` or ``lru``; ``gns`` keeps the nodes that it has drawn instead.
        sharers: Tasks that share the process's budget on the device, in equal parts.
    """

    policy: str
    sharers: int = 1


class DeviceRows:
    """Rows on a device, some of which are there already; for several threads at once."""

    def __init__(
        self, store: FeatureStore, device: torch.device, sampler: Sampler, choice: CacheChoice
    ) -> None:
        """Set up; what the cache begins with is copied for the first mini-batch.

        Args:
            store: All rows, in the host's memory.
            device: Where they are wanted.
            sampler: Of the mini-batches.
            choice: What is kept, within :func:`budget_bytes`.
        """
        self._store = store
        self._device = device
        self._gns = sampler if isinstance(sampler, GnsSampler) else None
        self._degrees: np.ndarray | None = None
        if self._gns is None and choice.policy == "degree":
            self._degrees = np.bincount(sampler.adjacency.indices, minlength=store.num_rows)
        self._by_degree: np.ndarray | None = None
        self._filled: np.ndarray | None = None
        self._notes: deque[str] = deque()
        self._is_unsure = False
        fitting = budget_bytes(device) // choice.sharers // store.row_bytes
        # One thread at a time asks the cache; the returned rows are its own.
        self._lock = threading.Lock()
        self._open(min(fitting, self._most_rows()))

    @property
    def counts(self) -> CacheCounts:
        """What the cache has done since it was opened, or last became smaller."""
        return self._cache.counts

    @property
    def capacity(self) -> int:
        """Rows that the cache can hold."""
        return self._cache.capacity

    def of(self, nodes: np.ndarray, epoch: int) -> ReadRows:
        """Return the rows of (n,) nodes; the cache of ``epoch`` is filled where need be."""
        with self._lock:
            if self._is_unsure:
                self._open(self._cache.capacity)
            counts = self._cache.counts
            hits, copied_bytes = counts.hits, counts.bytes_copied
            try:
                wanted = self._wanted(epoch)
                if wanted is not None and wanted is not self._filled:
                    self._cache.fill(wanted)
                    self._filled = wanted
                rows = self._cache.rows(nodes)
            except BaseException:
                # It may take rows for copied that never were.
                self._is_unsure = True
                raise
            return ReadRows(
                rows=rows,
                hits=counts.hits - hits,
                copied_bytes=counts.bytes_copied - copied_bytes,
            )

    def retreat(self) -> bool:
        """Keep half as many rows, to free memory for a batch; return whether there were any."""
        with self._lock:
            before = self._cache.capacity
            if before:
                self._open(before // 2, instead_of=before)
            return before > 0

    def notes(self) -> tuple[str, ...]:
        """Return notes for the user that were not reported yet."""
        return tuple(self._notes.popleft() for _ in range(len(self._notes)))

    def _most_rows(self) -> int:
        """Return how many rows there can be any use for."""
        if self._gns is None:
            return self._store.num_rows
        chances = self._gns.chances
        deviation = np.sqrt((chances * (1 - chances)).sum())
        return min(self._store.num_rows, int(np.ceil(chances.sum() + _DEVIATIONS * deviation)))

    def _wanted(self, epoch: int) -> np.ndarray | None:
        """Return whose rows are kept in an epoch; None where those used last are."""
        if self._gns is not None:
            return self._gns.cached_nodes(epoch)
        return self._by_degree

    def _open(self, capacity: int, *, instead_of: int | None = None) -> None:
        """Make a cache of so many rows, or the largest half, quarter, ... that finds memory."""
        before = capacity if instead_of is None else instead_of
        is_fixed = self._gns is not None or self._degrees is not None
        policy = FixedOrder if is_fixed else LruOrder
        # First, so that an old table is not there beside the new one.
        vars(self).pop("_cache", None)
        while True:
            try:
                order = policy(self._store.num_rows, capacity)
                self._cache = FeatureCache(self._store, self._device, order)
                break
            except torch.OutOfMemoryError:
                if not capacity:
                    raise
                capacity //= 2
        if capacity < before:
            rows = counted(capacity, "row")
            self._notes.append(f"out of memory; the feature cache holds {rows} instead of {before}")
        if self._degrees is not None:
            self._by_degree = by_degree(self._degrees, capacity)
        self._filled = None
        self._is_unsure = False
