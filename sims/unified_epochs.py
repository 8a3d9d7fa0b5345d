"""Epochs of the unified protocol on one set of devices, alone and together, and their times."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import torch

from retexo_fl.additions.devices.sampling.workloads import root_workloads
from retexo_fl.additions.devices.training.sampled_task import ClientGraph
from retexo_fl.additions.devices.workers.balancer import Balancer, imbalance
from retexo_fl.additions.devices.workers.plan import EpochPlan, epoch_plan
from retexo_fl.additions.devices.workers.pool import WorkerPool
from retexo_fl.additions.devices.workers.timings import EpochTimes, StepSums, WorkerTimes
from retexo_fl.training.schedule import Schedule
from retexo_fl.training.stage_model import ModelShape
from sims.mini_batch_graphs import MiniBatchGraph
from sims.unified_task import UnifiedSettings, make_unified_task

_LEARNING_RATE: Final = 0.003


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """What one epoch took.

    Attributes:
        seconds: From its first order to its last step of the optimiser.
        workers: Sums over its steps, of each worker.
        numbers: What the tasks counted, ``DEVICE: NAME``.
        imbalance: Of the workers' busy times.
        num_roots: That it trained.
    """

    seconds: float
    workers: tuple[WorkerTimes, ...]
    numbers: dict[str, float]
    imbalance: float
    num_roots: int

    @property
    def roots_per_s(self) -> float:
        """How fast it was."""
        return self.num_roots / self.seconds

    def total(self, name: str) -> float:
        """Return a number added up over devices."""
        return sum(value for key, value in self.numbers.items() if key.endswith(f": {name}"))

    def least_s(self, devices: Sequence[str]) -> float:
        """Return what the same work takes at the least, at the speeds that each device had in it.

        That is the work of all over the sum of what each does in a second that it is busy. No
        epoch is shorter: of the devices that share work, one is busy so long.
        """
        work = [self.of(device, "aggregations") for device in devices]
        pairs = zip(work, self.workers, strict=True)
        speeds = [done / worker.busy_s for done, worker in pairs if done]
        return sum(work) / sum(speeds)

    def of(self, device: str, name: str) -> float:
        """Return a number of one device; 0 where it had no share."""
        return self.numbers.get(f"{device}: {name}", 0.0)


class Rig:
    """One model, sampler and graph on the devices of a pool; a context manager."""

    def __init__(
        self,
        pool: WorkerPool,
        graph: MiniBatchGraph,
        settings: UnifiedSettings,
        *,
        roots: np.ndarray,
        batch_size: int,
    ) -> None:
        """Send the graph to the workers, and measure workloads.

        Args:
            pool: The devices.
            graph: Whole.
            settings: Of the workers' task.
            roots: (n,) that an epoch trains.
            batch_size: Of them, over all devices.
        """
        self.names = pool.settled.names
        self.roots = roots = graph.adjacency.near_together(roots)
        self.batch_size = batch_size
        self.workloads = root_workloads(
            settings.choice.make(graph.adjacency, roots), roots, cache=None
        )
        self._weights = _Weights(settings.shape)
        self._task = pool.open(
            make_unified_task,
            ClientGraph(
                adjacency=graph.adjacency,
                rows=graph.features,
                # Without dropout nothing is drawn by them.
                hashes=np.arange(graph.num_nodes, dtype=np.uint64),
                labels=graph.labels,
                train=roots,
            ).arrays(),
            settings,
            num_weights=self._weights.count,
            dtype=np.dtype(np.float32),
        )
        self._epochs = 0

    def alone(self, place: int, *, share: float = 1.0) -> Epoch:
        """Train on one device only, as training without the protocol does.

        Args:
            place: Its place among the devices.
            share: Part of the epoch's roots.
        """
        ratios = [float(place == other) for other in range(len(self.names))]
        count = max(1, round(share * len(self.roots)))
        epoch, _ = self._run(self._plan(ratios, by_number=False, count=count))
        return epoch

    def together(self, balancer: Balancer, *, by_number: bool = False) -> Epoch:
        """Train on all devices, and let the balancer learn.

        Args:
            balancer: Says what each gets.
            by_number: Cut by the number of roots, not by workload.
        """
        plan = self._plan(balancer.ratios, by_number=by_number, count=len(self.roots))
        epoch, times = self._run(plan)
        busy_s = [worker.busy_s for worker in times.workers]
        balancer.observe(plan.epoch, seconds=busy_s, work=plan.work.tolist())
        return epoch

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._task.close()

    def _plan(self, ratios: Sequence[float], *, by_number: bool, count: int) -> EpochPlan:
        self._epochs += 1
        # From all over the graph: neighbours stand together, and cost less together.
        some = np.arange(count) * len(self.roots) // count
        return epoch_plan(
            self.roots[some],
            None if by_number else self.workloads[some],
            batch_size=self.batch_size,
            ratios=ratios,
            seed=0,
            epoch=self._epochs,
        )

    def _run(self, plan: EpochPlan) -> tuple[Epoch, EpochTimes]:
        done: list[StepSums] = []
        begun = time.perf_counter()
        self._task.announce(plan.announced())
        for batch in range(plan.num_batches):
            done.append(self._task.step(self._weights.now(), plan.shares(batch)))
            self._weights.step(done[-1], plan.count(batch))
        seconds = time.perf_counter() - begun
        times = EpochTimes.of(plan.epoch, done)
        epoch = Epoch(
            seconds=seconds,
            workers=times.workers,
            numbers=_added([step.numbers for step in done]),
            imbalance=imbalance([worker.busy_s for worker in times.workers]),
            num_roots=len(plan.items),
        )
        return epoch, times


class _Weights:
    """The model's weights on the host, and their optimiser."""

    def __init__(self, shape: ModelShape) -> None:
        initial = Schedule(shape=shape).initial(0, seed=0)
        self.count = len(initial)
        self._flat = torch.nn.Parameter(torch.from_numpy(initial))
        self._optimizer = torch.optim.Adam([self._flat], lr=_LEARNING_RATE)

    def now(self) -> np.ndarray:
        """Return (P,) weights."""
        weights: np.ndarray = self._flat.detach().numpy()
        return weights

    def step(self, sums: StepSums, count: int) -> None:
        """Take a step along the mean gradient of ``count`` roots."""
        assert sums.gradient_sum is not None
        self._flat.grad = torch.from_numpy(sums.gradient_sum) / count
        self._optimizer.step()


def _added(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for numbers in parts:
        for name, value in numbers.items():
            total[name] = total.get(name, 0.0) + value
    return total
