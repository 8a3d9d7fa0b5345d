"""The balancer on a simulated clock: devices of given speeds, and workloads of the real samplers.

What a share costs is what the sampler really drew for it, counted when it was drawn; the balancer,
which cuts by estimates, does not know it beforehand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from retexo_fl.additions.devices.sampling.base import Sampler
from retexo_fl.additions.devices.workers.balancer import Balancer, imbalance
from retexo_fl.additions.devices.workers.plan import epoch_plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How mini-batches are cut.

    Attributes:
        name: For people.
        mode: ``dynamic`` or ``static``.
        by_number: Cut by the number of roots, not by workload.
        knows_speeds: Begins with the right ratios, not with equal ones.
    """

    name: str
    mode: str
    by_number: bool = False
    knows_speeds: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancedEpoch:
    """What an epoch came to.

    Attributes:
        ratio: Of the work, that the first device got.
        imbalance: Of the devices' busy times.
        makespan: Time of all mini-batches, each as long as its slowest share.
        ideal: What the same work takes where no device ever waits.
    """

    ratio: float
    imbalance: float
    makespan: float
    ideal: float

    @property
    def lost(self) -> float:
        """Time over the ideal, as a share of it."""
        return self.makespan / self.ideal - 1


def simulate(
    policy: Policy,
    sampler: Sampler,
    roots: np.ndarray,
    workloads: np.ndarray,
    speeds: Sequence[Sequence[float]],
    *,
    batch_size: int,
) -> list[BalancedEpoch]:
    """Run one epoch for each entry of ``speeds``.

    Args:
        policy: How to cut.
        sampler: Draws every share.
        roots: (n,) of an epoch.
        workloads: (n,) estimates.
        speeds: Of the devices in each epoch, in aggregations per unit of time.
        batch_size: Roots of a mini-batch.
    """
    known = speeds[0] if policy.knows_speeds else None
    balancer = Balancer(len(speeds[0]), mode=policy.mode, speeds=known)
    epochs = []
    for epoch, now in enumerate(speeds):
        ratio = balancer.ratios[0]
        plan = epoch_plan(
            roots,
            None if policy.by_number else workloads,
            batch_size=batch_size,
            ratios=balancer.ratios,
            seed=0,
            epoch=epoch,
        )
        drawn = np.array(
            [
                [_drawn(sampler, share.items, epoch, batch) for share in plan.shares(batch)]
                for batch in range(plan.num_batches)
            ]
        )
        seconds = drawn / np.asarray(now)
        busy = seconds.sum(axis=0).tolist()
        balancer.observe(epoch, seconds=busy, work=plan.work.tolist())
        epochs.append(
            BalancedEpoch(
                ratio=ratio,
                imbalance=imbalance(busy),
                makespan=float(seconds.max(axis=1).sum()),
                ideal=float(drawn.sum() / sum(now)),
            )
        )
    return epochs


def _drawn(sampler: Sampler, roots: np.ndarray, epoch: int, batch: int) -> int:
    return sampler.sample(roots, epoch=epoch, batch=batch).num_aggregations
