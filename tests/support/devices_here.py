"""Several devices played by this process, so that any split of the work can be tried at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from retexo_fl.additions.devices.training.client_devices import ClientDevices
from retexo_fl.additions.devices.workers.local_task import LocalTask
from retexo_fl.additions.devices.workers.task import Share, TaskFactory
from retexo_fl.additions.devices.workers.timings import StepSums, WorkerTimes


class DevicesHere(ClientDevices):
    """Stands for worker processes; each computes with a task of its own, in turn.

    Attributes:
        steps: The shares of every step, by worker.
        open_tasks: How many tasks are open.
    """

    def __init__(self, seconds: Sequence[float]) -> None:
        """Set up.

        Args:
            seconds: By worker, how long it says it takes for an item.
        """
        super().__init__(f"cpu:{len(seconds)}", threads=1)
        self.seconds = list(seconds)
        self.steps: list[list[Share]] = []
        self.open_tasks = 0

    @property
    def ahead(self) -> int:
        """As real workers have."""
        return 1

    def open(
        self,
        factory: TaskFactory,
        arrays: Mapping[str, np.ndarray],
        settings: Any,
        *,
        num_weights: int,
        dtype: np.dtype[Any],
        num_sums: int | None = None,
    ) -> TasksHere:
        """Make a task for each worker."""
        size = num_weights if num_sums is None else num_sums
        self.open_tasks += 1
        tasks = [
            LocalTask(factory, arrays, settings, exchange=np.zeros(size, dtype), ahead=self.ahead)
            for _ in self.seconds
        ]
        return TasksHere(self, tasks)


class TasksHere:
    """Implements :class:`.OpenTask`."""

    def __init__(self, devices: DevicesHere, tasks: Sequence[LocalTask]) -> None:
        self._devices = devices
        self._tasks = tasks

    def announce(self, shares: Sequence[Sequence[Share]]) -> None:
        """Say what comes."""
        for task, own in zip(self._tasks, shares, strict=True):
            task.announce([own])

    def step(self, weights: np.ndarray, shares: Sequence[Share]) -> StepSums:
        """Compute every share, and add up in worker order."""
        self._devices.steps.append(list(shares))
        found = [task.step(weights, [own]) for task, own in zip(self._tasks, shares, strict=True)]
        gradients = [one.gradient_sum for one in found if one.gradient_sum is not None]
        numbers: dict[str, float] = {}
        for one in found:
            for name, value in one.numbers.items():
                numbers[name] = numbers.get(name, 0.0) + value
        return StepSums(
            gradient_sum=sum(gradients[1:], gradients[0]) if gradients else None,
            numbers=numbers,
            times=tuple(
                WorkerTimes(compute_s=seconds * len(own.items))
                for seconds, own in zip(self._devices.seconds, shares, strict=True)
            ),
            reduce_s=0.0,
            step_s=0.0,
        )

    def close(self) -> None:
        """End the preparing threads."""
        self._devices.open_tasks -= 1
        for task in self._tasks:
            task.close()
