"""Where the time of a step goes, on each worker and on the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTimes:
    """What one worker spent on one share.

    Attributes:
        prepare_s: Preparing it, mostly beside the share before.
        waited_s: Of that, what the computing had to wait for.
        compute_s: Forming the sums, and writing them where the host reads them.
    """

    prepare_s: float = 0.0
    waited_s: float = 0.0
    compute_s: float = 0.0

    @property
    def busy_s(self) -> float:
        """From the order to the answer: what the balancer evens out."""
        return self.waited_s + self.compute_s


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSums:
    """What one step adds up over all workers.

    Attributes:
        gradient_sum: (P,) in the dtype of the weights; None where no worker formed one.
        numbers: Further sums by name.
        times: Of each worker, in worker order; zeros where the share was empty.
        reduce_s: What the host spent on adding gradients.
        step_s: The whole step, seen by the host.
        notes: Of devices, each with its name in front.
    """

    gradient_sum: np.ndarray | None
    numbers: Mapping[str, float]
    times: tuple[WorkerTimes, ...]
    reduce_s: float
    step_s: float
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochTimes:
    """Where the time of an epoch went.

    Attributes:
        epoch: Its number.
        workers: Sums over all steps, of each worker.
        reduce_s: Of the host.
        steps_s: All steps as the host saw them; what lies between them is the caller's.
    """

    epoch: int
    workers: tuple[WorkerTimes, ...]
    reduce_s: float
    steps_s: float

    @classmethod
    def of(cls, epoch: int, steps: Sequence[StepSums]) -> Self:
        """Add up the steps of an epoch."""
        return cls(
            epoch=epoch,
            workers=tuple(
                WorkerTimes(
                    prepare_s=sum(times.prepare_s for times in worker),
                    waited_s=sum(times.waited_s for times in worker),
                    compute_s=sum(times.compute_s for times in worker),
                )
                for worker in zip(*(step.times for step in steps), strict=True)
            ),
            reduce_s=sum(step.reduce_s for step in steps),
            steps_s=sum(step.step_s for step in steps),
        )
