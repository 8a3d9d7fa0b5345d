"""Any PyTorch module trained on all devices of a machine at once: the public interface.

In the spirit of listing 2 of Lin, Deng, Prasanna, "A Unified CPU-GPU Protocol for GNN Training"
(CF'24), whose released code weighs items by the device that got them; here the gradient is that of
one device, whatever the split.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch

from retexo_fl.additions.devices.workers.balancer import Balancer, Decision
from retexo_fl.additions.devices.workers.flat_module import FlatModule
from retexo_fl.additions.devices.workers.module_task import (
    COUNT,
    LOSS_SUM,
    Loss,
    ModuleSettings,
    Source,
    make_module_task,
)
from retexo_fl.additions.devices.workers.plan import EpochPlan, epoch_plan
from retexo_fl.additions.devices.workers.pool import DEFAULT_TIMEOUT_S, OpenTask, WorkerPool
from retexo_fl.additions.devices.workers.timings import EpochTimes, StepSums
from retexo_fl.device_names import Settled, parse_devices
from retexo_fl.errors import ConfigurationError
from retexo_fl.units import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One mini-batch, whose gradient is in the parameters' ``grad``.

    Attributes:
        batch: Its number within the epoch.
        count: Its items, over all devices.
        loss: Mean over them.
        numbers: What the loss function returned beside the loss, summed over them.
    """

    batch: int
    count: int
    loss: float
    numbers: Mapping[str, float]


class Unified:
    """Trains a module on CPU and GPUs together; a context manager that ends its workers.

    ::

        with Unified(model, source, loss, items=train_nodes, devices="auto") as unified:
            for epoch in range(epochs):
                for step in unified.epoch(epoch):
                    optimizer.step()

    Each mini-batch is cut among the devices; every one computes the gradient of the loss summed
    over its part, and the sums are added and divided once, by the number of items. ``model``,
    ``source`` and ``loss`` are sent to the worker processes once, so their classes and functions
    must be at module level, and a script does its work under ``if __name__ == "__main__":``. The
    model may be trained nowhere else meanwhile but between steps: its trained weights are sent
    with each step, and nothing else of it.

    What the model draws by itself, as PyTorch's own dropout does, is drawn for (seed, epoch, batch,
    first item of the share): the same in every run on the same split, of the same law in another.
    A mask keyed by item (:class:`retexo_fl.layers.dropout.KeyedDropout`) is the same in any split.
    """

    def __init__(  # noqa: PLR0913 - all but four have a value that suits most
        self,
        model: torch.nn.Module,
        source: Source,
        loss: Loss,
        *,
        items: np.ndarray,
        devices: str = "auto",
        batch_size: int = 1024,
        workloads: np.ndarray | None = None,
        balance: str = "dynamic",
        speeds: Sequence[float] | None = None,
        seed: int = 0,
        threads: int | None = None,
        ahead: int = 1,
        preparers: int = 1,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        """Set up; worker processes start with the first epoch.

        Args:
            model: With all trained parameters float32, or all float64, and without BatchNorm.
            source: Prepares batches.
            loss: ``loss(model, batch)``, *summed* over the items of the batch.
            items: (n,) whole numbers, each computed once an epoch: train nodes. Those that share
                work are near each other (``Adjacency.near_together``): a device gets a contiguous
                piece of each mini-batch, in this order.
            devices: ``auto``, ``cpu``, ``cpu:N``, ``cuda``, ``cuda:I`` or a list of these.
            batch_size: Items of a mini-batch, over all devices.
            workloads: (n,) what each item costs, to cut by; None cuts by their number.
            balance: ``dynamic`` follows the devices' measured speeds; ``static`` keeps the ratio of
                the first epoch's, or of ``speeds``; ``equal`` parts stay equal.
            speeds: Of each device, to begin with; None begins with equal ones.
            seed: Of the order of items, and of what the model draws.
            threads: Of each CPU worker process; None divides the cores.
            ahead: Shares that each worker prepares while it computes.
            preparers: Threads of each GPU's worker that prepare; with more than one,
                ``source.prepare`` is called by several at once.
            timeout_s: How long the devices may take over one mini-batch.
            tell: Called with a sentence about the devices that are used.

        Raises:
            ConfigurationError: An argument is out of its range, or the model cannot be trained so.
        """
        _demand_batches(items, workloads, batch_size)
        self._flat = FlatModule(model)
        self.settled: Settled = parse_devices(devices).settle(threads=threads or 1)
        if tell is not None:
            tell(self.settled.sentence)
        self._balancer = Balancer(len(self.settled.names), mode=balance, speeds=speeds)
        self._pool = WorkerPool(
            self.settled, threads=threads, ahead=ahead, preparers=preparers, timeout_s=timeout_s
        )
        self._settings = ModuleSettings(model=model, source=source, loss=loss, seed=seed)
        self._items = np.asarray(items, np.int64)
        self._workloads = workloads
        self._batch_size = batch_size
        self._task: OpenTask | None = None
        self.timings: list[EpochTimes] = []

    @property
    def decisions(self) -> list[Decision]:
        """What the balancer decided after each epoch."""
        return self._balancer.decisions

    def epoch(self, epoch: int) -> Iterator[Step]:
        """Compute an epoch's mini-batches, each when the one before has been used.

        An epoch that is not iterated to its end teaches the balancer nothing.

        Raises:
            DeviceFailed: A device raised an error, ended, or did not answer in time.
        """
        plan = epoch_plan(
            self._items,
            self._workloads,
            batch_size=self._batch_size,
            ratios=self._balancer.ratios,
            seed=self._settings.seed,
            epoch=epoch,
        )
        task = self._opened()
        task.announce(plan.announced())
        done: list[StepSums] = []
        for batch in range(plan.num_batches):
            sums = task.step(self._flat.weights(), plan.shares(batch))
            done.append(sums)
            yield self._taken(plan, batch, sums)
        self._learn(plan, done)

    def close(self) -> None:
        """End the workers."""
        if self._task is not None:
            self._task.close()
            self._task = None
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _opened(self) -> OpenTask:
        if self._task is None:
            self._task = self._pool.open(
                make_module_task,
                {},
                self._settings,
                num_weights=self._flat.size,
                dtype=self._flat.weights().dtype,
            )
        return self._task

    def _taken(self, plan: EpochPlan, batch: int, sums: StepSums) -> Step:
        count = plan.count(batch)
        assert sums.gradient_sum is not None
        gradient = sums.gradient_sum
        gradient /= count
        self._flat.set_gradients(gradient)
        numbers = dict(sums.numbers)
        loss = numbers.pop(LOSS_SUM) / count
        del numbers[COUNT]
        return Step(batch=batch, count=count, loss=loss, numbers=numbers)

    def _learn(self, plan: EpochPlan, done: Sequence[StepSums]) -> None:
        times = EpochTimes.of(plan.epoch, done)
        self.timings.append(times)
        seconds = [worker.busy_s for worker in times.workers]
        self._balancer.observe(plan.epoch, seconds=seconds, work=plan.work.tolist())


def _demand_batches(items: np.ndarray, workloads: np.ndarray | None, batch_size: int) -> None:
    if batch_size < 1:
        raise ConfigurationError(f"batch_size is {batch_size}; expected at least 1")
    if items.ndim != 1 or not len(items) or not np.issubdtype(items.dtype, np.integer):
        raise ConfigurationError(
            f"items are {items.dtype} of shape {items.shape}; expected whole numbers of shape (n,)"
        )
    if workloads is None:
        return
    if workloads.shape != items.shape or not np.isfinite(workloads).all() or workloads.min() < 0:
        raise ConfigurationError(
            f"workloads are {workloads.dtype} of shape {workloads.shape}; expected a number for "
            f"each of {counted(len(items), 'item')}, none below 0"
        )
