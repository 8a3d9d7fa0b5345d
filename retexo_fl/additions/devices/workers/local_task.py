"""A task on the one CPU worker that is this process itself."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from retexo_fl.additions.devices.workers.announcements import Announcements
from retexo_fl.additions.devices.workers.share_runner import ShareRunner
from retexo_fl.additions.devices.workers.task import Share, TaskFactory
from retexo_fl.additions.devices.workers.timings import StepSums, WorkerTimes


class LocalTask:
    """What a pool opens without children; see :class:`.OpenTask`.

    Errors of the task are raised as they are.
    """

    def __init__(
        self,
        factory: TaskFactory,
        arrays: Mapping[str, np.ndarray],
        settings: Any,
        *,
        exchange: np.ndarray,
        ahead: int,
    ) -> None:
        """Make the task.

        Args:
            factory: What makes it.
            arrays: Read where they are.
            settings: Handed to the factory.
            exchange: (P,) zeros in the dtype of the weights, for the gradient's sum.
            ahead: Announced shares that are prepared ahead.
        """
        device = torch.device("cpu")
        self._runner = ShareRunner(factory(device, arrays, settings), device, ahead=ahead)
        self._announced = Announcements()
        self._sums = exchange

    def announce(self, shares: Sequence[Sequence[Share]]) -> None:
        """Say what comes."""
        (own,) = shares
        self._runner.announce(*self._announced.replace(own))

    def step(self, weights: np.ndarray, shares: Sequence[Share]) -> StepSums:
        """Compute the one share."""
        begun = time.perf_counter()
        (share,) = shares
        if not len(share.items):
            return StepSums(
                gradient_sum=None, numbers={}, times=(WorkerTimes(),), reduce_s=0.0, step_s=0.0
            )
        assert weights.dtype == self._sums.dtype, "weights are of the dtype that was announced"
        given = torch.from_numpy(np.require(weights, requirements=["C", "W"]))
        result = self._runner.run(self._announced.order(share), given, torch.from_numpy(self._sums))
        return StepSums(
            gradient_sum=self._sums.copy() if result.has_gradient else None,
            numbers=result.numbers,
            times=(result.times,),
            reduce_s=0.0,
            step_s=time.perf_counter() - begun,
            notes=tuple(f"cpu: {note}" for note in result.notes),
        )

    def close(self) -> None:
        """End the preparing thread."""
        self._runner.close()
