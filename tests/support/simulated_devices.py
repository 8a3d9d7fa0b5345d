"""Devices of known speed on a simulated clock: what an epoch would take, without noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from retexo_fl.additions.devices.workers.plan import EpochPlan, epoch_plan

BATCH_SIZE = 512

#: What the computing of a share costs, from (plan, batch, start, stop): its items are
#: ``plan.items[start:stop]``.
ShareCost = Callable[[EpochPlan, int, int, int], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochSeconds:
    """What an epoch takes.

    Attributes:
        seconds: (W,) each device is busy.
        work: (W,) workload, as the balancer is told.
        makespan_s: All mini-batches, each as long as its slowest share.
    """

    seconds: list[float]
    work: list[float]
    makespan_s: float


def epoch_seconds(
    workloads: np.ndarray,
    ratios: Sequence[float],
    speeds: Sequence[float],
    *,
    epoch: int,
    by_number: bool = False,
    batch_size: int = BATCH_SIZE,
    cost: ShareCost | None = None,
) -> EpochSeconds:
    """Plan an epoch and let devices of such speeds (workload per second) compute it.

    ``by_number`` cuts mini-batches without regard to workloads; that is what static splits do.
    Without ``cost`` a share costs just its workloads; items are their places.
    """
    plan = epoch_plan(
        np.arange(len(workloads)),
        None if by_number else workloads,
        batch_size=batch_size,
        ratios=ratios,
        seed=0,
        epoch=epoch,
    )
    costs = _costs(plan, cost or cost_of(workloads))
    seconds = costs / np.asarray(speeds)
    return EpochSeconds(
        seconds=seconds.sum(axis=0).tolist(),
        work=plan.work.tolist(),
        makespan_s=float(seconds.max(axis=1).sum()),
    )


def cost_of(workloads: np.ndarray) -> ShareCost:
    """Charge each item its (n,) workload, whatever else is computed with it."""
    return lambda plan, batch, start, stop: float(workloads[plan.items[start:stop]].sum())


def skewed_workloads(count: int, *, seed: int) -> np.ndarray:
    """Return (count,) workloads with a heavy tail, as roots of a power-law graph have."""
    return 10 * (1 + np.random.default_rng(seed).pareto(1.5, count)).clip(max=75)


def _costs(plan: EpochPlan, cost: ShareCost) -> np.ndarray:
    """Return (M, W) what each share costs."""
    rows = [
        [cost(plan, batch, start, stop) for start, stop in pairwise(bounds)]
        for batch, bounds in enumerate(plan.bounds.tolist())
    ]
    return np.array(rows, np.float64)
