"""An epoch's mini-batches and who computes what of them, made once, by the host.

Mini-batches are drawn for (seed, epoch): each has the same items whatever devices there are, in the
order in which all items were given, and each device a contiguous piece of it. So where neighbours
are near each other in that order, pieces have little in common that both would have to compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from retexo_fl.additions.devices.workers.balancer import cut
from retexo_fl.additions.devices.workers.task import Share


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochPlan:
    """Who computes what in one epoch.

    Attributes:
        epoch: Its number.
        items: (n,) int64, mini-batch after mini-batch.
        bounds: (M, W + 1) int64: in mini-batch m worker w has ``items[bounds[m, w]:bounds[m, w +
            1]]``.
        work: (W,) workload of each worker in the whole epoch.
    """

    epoch: int
    items: np.ndarray
    bounds: np.ndarray
    work: np.ndarray

    @property
    def num_batches(self) -> int:
        """M."""
        return len(self.bounds)

    def count(self, batch: int) -> int:
        """Return how many items a mini-batch has."""
        return int(self.bounds[batch, -1] - self.bounds[batch, 0])

    def shares(self, batch: int) -> tuple[Share, ...]:
        """Return the share of each worker in a mini-batch."""
        bounds = self.bounds[batch]
        return tuple(
            Share(epoch=self.epoch, batch=batch, items=self.items[start:stop])
            for start, stop in pairwise(bounds.tolist())
        )

    def announced(self) -> list[list[Share]]:
        """Return the shares of each worker in all mini-batches, as a task announces them."""
        batches = [self.shares(batch) for batch in range(self.num_batches)]
        return [list(shares) for shares in zip(*batches, strict=True)]


def epoch_plan(
    items: np.ndarray,
    workloads: np.ndarray | None,
    *,
    batch_size: int,
    ratios: Sequence[float],
    seed: int,
    epoch: int,
) -> EpochPlan:
    """Shuffle, cut into mini-batches, and these into shares.

    Args:
        items: (n,) int64; each is computed exactly once. Their order decides which of a mini-batch
            go to the same device.
        workloads: (n,) cost of each item, to cut by; None cuts by their number.
        batch_size: Items of a mini-batch; the last may have fewer.
        ratios: (W,) part of the work that each worker gets; sum to one.
        seed: Of the training.
        epoch: Number of the epoch.
    """
    order = np.random.default_rng([seed, epoch]).permutation(len(items))
    for start in range(0, len(items), batch_size):
        order[start : start + batch_size].sort()
    costs = (np.ones(len(items)) if workloads is None else np.asarray(workloads, np.float64))[order]
    bounds = _bounds(costs, batch_size, ratios)
    totals = np.concatenate(([0.0], np.cumsum(costs)))
    return EpochPlan(
        epoch=epoch,
        items=np.asarray(items, np.int64)[order],
        bounds=bounds,
        work=np.diff(totals[bounds], axis=1).sum(axis=0),
    )


def _bounds(costs: np.ndarray, batch_size: int, ratios: Sequence[float]) -> np.ndarray:
    """Cut every mini-batch, each making good what whole items left over in those before it."""
    starts = range(0, len(costs), batch_size)
    bounds = np.empty((len(starts), len(ratios) + 1), np.int64)
    parts = np.cumsum(ratios)[:-1]
    owed = np.zeros(len(parts))
    for batch, start in enumerate(starts):
        piece = costs[start : start + batch_size]
        if not piece.any():
            piece = np.ones(len(piece))
        ends = np.concatenate(([0.0], np.cumsum(piece)))
        wanted = parts * ends[-1] + owed
        found = cut(piece, np.maximum.accumulate(wanted))
        owed = wanted - ends[found[1:-1]]
        bounds[batch] = start + found
    return bounds
