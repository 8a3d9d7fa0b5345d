"""Features that stay on the device: rows found there are not copied from the host again.

Which rows stay is decided by a policy: the most recently used, those of the largest degree, or the
nodes that Global Neighbor Sampling has drawn. All count at the store what they let through.

Sources: Lin, Deng and Prasanna (CF'24), section 4 (a feature cache on the GPU); Lin et al.
(SoCC'20, "PaGraph"), section 3.2 (static, by degree); Dong et al. (KDD'21), section 3.2 (GNS).
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import torch

from retexo_fl.additions.devices.sampling.features import FeatureStore
from retexo_fl.additions.devices.sampling.free_memory import free_bytes
from retexo_fl.additions.devices.sampling.lru import MISSED, Asked, checked_capacity
from retexo_fl.transfers import onto

#: What of the free memory a cache takes by default: the rest is for batches and activations.
FREE_SHARE: Final = 0.5
_NOTHING: Final = np.empty(0, np.int64)
_budgets: Final[dict[torch.device, int]] = {}
_first_asking: Final = threading.Lock()


class CachePolicy(Protocol):
    """Decides which rows a table on the device holds."""

    @property
    def capacity(self) -> int:
        """Places of the table."""
        ...

    @property
    def kept_count(self) -> int:
        """Places that hold a row."""
        ...

    def ask(self, ids: np.ndarray) -> Asked:
        """Say where the rows of (n,) int64 ids are, and which of them to keep from now on."""
        ...


class FixedOrder:
    """Keeps the ids it was given, until it is given others.

    Args:
        num_ids: N.
        capacity: Places, at least 0.

    Raises:
        ConfigurationError: The capacity is negative.
    """

    def __init__(self, num_ids: int, capacity: int) -> None:
        self.capacity = checked_capacity(capacity, num_ids)
        self._places = np.full(num_ids, MISSED, np.int64)
        self._ids = np.full(self.capacity, MISSED, np.int64)

    @property
    def kept_count(self) -> int:
        """Places that are taken."""
        return int(np.count_nonzero(self._ids != MISSED))

    def ask(self, ids: np.ndarray) -> Asked:
        """Look (n,) ids up; nothing changes."""
        return Asked(self._places[ids], _NOTHING, _NOTHING)

    def fill(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Keep the first ``capacity`` of distinct ``ids`` and nothing else.

        Returns:
            (e,) ids that were not kept before, and their places; all others stay where they are.
        """
        kept = ids[: self.capacity].astype(np.int64)
        entering = kept[self._places[kept] == MISSED]
        leaving = np.setdiff1d(self._ids[self._ids != MISSED], kept)
        self._ids[self._places[leaving]] = MISSED
        self._places[leaving] = MISSED
        places = np.flatnonzero(self._ids == MISSED)[: len(entering)]
        self._ids[places] = entering
        self._places[entering] = places
        return entering, places


def by_degree(degrees: np.ndarray, capacity: int) -> np.ndarray:
    """Return the ids of the ``capacity`` largest of (N,) degrees; among equals, the smallest."""
    return np.argsort(-degrees, kind="stable")[:capacity].astype(np.int64)


def rows_that_fit(device: torch.device, row_bytes: int, *, share: float = FREE_SHARE) -> int:
    """Return how many rows fill a share of the device's free memory."""
    return int(free_bytes(device) * share) // row_bytes


def budget_bytes(device: torch.device) -> int:
    """Return what all caches of this process may hold on a device.

    That is :data:`FREE_SHARE` of what was free there when the process first asked: what its own
    caches take does not make the budget of the next one smaller.
    """
    with _first_asking:
        if device not in _budgets:
            _budgets[device] = int(free_bytes(device) * FREE_SHARE)
        return _budgets[device]


@dataclass(slots=True, kw_only=True)
class CacheCounts:
    """What a cache has done.

    Attributes:
        hits: Rows that were on the device.
        misses: Rows that were copied from the host.
        refreshed: Rows that were copied from the host to fill the table.
        row_bytes: Bytes of one row.
    """

    row_bytes: int
    hits: int = 0
    misses: int = 0
    refreshed: int = 0

    @property
    def hit_rate(self) -> float:
        """Share of rows asked for that were on the device; 0 before the first."""
        return self.hits / max(1, self.hits + self.misses)

    @property
    def bytes_copied(self) -> int:
        """From host to device: misses, and what filled the table."""
        return (self.misses + self.refreshed) * self.row_bytes


class FeatureCache:
    """Rows of a store on a device, some of which are there already.

    Not for several threads at once. What is asked for is there when a call returns, so the next
    call may come from another thread, and from another stream of the device.

    Args:
        store: All rows, in the host's memory.
        device: Where rows are wanted. On ``cpu`` the same is done, within the host's memory.
        policy: Which rows stay.

    Attributes:
        counts: Hits, misses and bytes so far.
    """

    def __init__(self, store: FeatureStore, device: torch.device, policy: CachePolicy) -> None:
        self.counts = CacheCounts(row_bytes=store.row_bytes)
        self._store = store
        self._device = device
        self._policy = policy
        self._table = self._empty(policy.capacity)
        self._buffer = store.buffer(pinned=device.type == "cuda")

    @property
    def capacity(self) -> int:
        """Rows that the table can hold."""
        return self._policy.capacity

    @property
    def rows_kept(self) -> int:
        """Rows that the table holds now."""
        return self._policy.kept_count

    def rows(self, ids: np.ndarray, out: torch.Tensor | None = None) -> torch.Tensor:
        """Return the (n, D) rows of (n,) int64 ids on the device.

        Args:
            ids: Nodes; with LRU they are taken in this order.
            out: (n, D) on the device, to be written; None for fresh memory.
        """
        found = self._empty(len(ids)) if out is None else out
        asked = self._policy.ask(ids)
        self._read(ids, asked, found)
        if len(asked.written):
            rows = found.index_select(0, self._on_device(asked.writers))
            self._table.index_copy_(0, self._on_device(asked.written), rows)
        self.counts.hits += asked.hits()
        self.counts.misses += len(ids) - asked.hits()
        self._finish()
        return found

    def fill(self, ids: np.ndarray) -> None:
        """Let the table hold the rows of distinct ids; rows it holds already are not copied again.

        Args:
            ids: (m,) int64; what is beyond the capacity is left out. The policy is a fixed order.
        """
        assert isinstance(self._policy, FixedOrder), "other policies choose their rows themselves"
        entering, places = self._policy.fill(ids)
        if len(entering):
            self._table.index_copy_(0, self._on_device(places), self._copied(entering))
        self.counts.refreshed += len(entering)
        self._finish()

    def _read(self, ids: np.ndarray, asked: Asked, found: torch.Tensor) -> None:
        """Bring rows from the table, from the store, and from within the answer, in this order."""
        sources = asked.sources
        missing = np.flatnonzero(sources == MISSED)
        if len(missing) == len(ids):
            self._copied(ids, found)
            return
        here = np.flatnonzero(sources > MISSED)
        rows = self._table.index_select(0, self._on_device(sources[here]))
        found.index_copy_(0, self._on_device(here), rows)
        if len(missing):
            found.index_copy_(0, self._on_device(missing), self._copied(ids[missing]))
        again = np.flatnonzero(sources < MISSED)
        if len(again):
            rows = found.index_select(0, self._on_device(MISSED - 1 - sources[again]))
            found.index_copy_(0, self._on_device(again), rows)

    def _copied(self, ids: np.ndarray, out: torch.Tensor | None = None) -> torch.Tensor:
        """Return the (n, D) rows of ids from the store; once a call, without ``out`` until then."""
        if self._device.type == "cpu":
            return self._store.gather(ids, self._buffer.view(len(ids)) if out is None else out)
        rows = self._store.gather(ids, self._buffer.view(len(ids)))
        return rows.to(self._device, non_blocking=True) if out is None else out.copy_(rows, True)

    def _finish(self) -> None:
        """Wait for the copies: then the buffer is free, and every stream sees the table."""
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()

    def _on_device(self, places: np.ndarray) -> torch.Tensor:
        return onto(torch.from_numpy(places), self._device)

    def _empty(self, count: int) -> torch.Tensor:
        return torch.empty((count, self._store.width), dtype=self._store.dtype, device=self._device)
