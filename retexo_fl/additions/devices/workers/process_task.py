"""A task on worker processes, as their host sees it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, Protocol

import numpy as np

from retexo_fl.additions.devices.workers.announcements import Announcements
from retexo_fl.additions.devices.workers.messages import (
    SUMS,
    WEIGHTS,
    Announce,
    Close,
    Done,
    Open,
    Opened,
    Step,
)
from retexo_fl.additions.devices.workers.shared_arrays import SharedArrays
from retexo_fl.additions.devices.workers.task import Share
from retexo_fl.additions.devices.workers.timings import StepSums, WorkerTimes
from retexo_fl.additions.devices.workers.worker_process import WorkerProcess, answers_of
from retexo_fl.errors import DeviceFailed


class Workers(Protocol):
    """The processes of a pool, as a task uses them."""

    @property
    def workers(self) -> tuple[WorkerProcess, ...]:
        """Those that run."""

    @property
    def timeout_s(self) -> float:
        """Time for an answer."""

    def in_use(self) -> AbstractContextManager[None]:
        """Talk to them, alone; whatever is raised meanwhile ends them."""


class ProcessTask:
    """What a pool opens on its children; see :class:`.OpenTask`.

    Weights go to the workers, and gradients come back, through memory that all of them have mapped;
    only orders and a few numbers go through the pipes. The host adds gradients in worker order, so
    the sum does not depend on who was first.
    """

    def __init__(
        self, pool: Workers, number: int, *, sizes: tuple[int, int], dtype: np.dtype[Any]
    ) -> None:
        self._pool = pool
        self._number = number
        self._workers = pool.workers
        num_weights, num_sums = sizes
        self._shapes = {WEIGHTS: (num_weights,), SUMS: (len(self._workers), num_sums)}
        self._dtype = dtype
        self._announced = [Announcements() for _ in self._workers]

    def make(self, maker: bytes, arrays: Mapping[str, np.ndarray]) -> None:
        """Have every worker make the task; called once, by the pool.

        Args:
            maker: Factory and settings, packed.
            arrays: Those of the task, and those that were packed apart.
        """
        with (
            SharedArrays.holding(arrays) as shared,
            SharedArrays.zeros(self._shapes, self._dtype) as exchange,
        ):
            mapped = exchange.mapped("write")
            self._weights, self._sums = mapped[WEIGHTS], mapped[SUMS]
            message = Open(
                task_number=self._number,
                maker=maker,
                arrays=shared.layout,
                exchange=exchange.layout,
            )
            for worker in self._workers:
                worker.send(message, (shared.descriptor, exchange.descriptor))
            answers_of(dict(enumerate(self._workers)), Opened, timeout_s=self._pool.timeout_s)

    def announce(self, shares: Sequence[Sequence[Share]]) -> None:
        """Say what comes."""
        self._demand_workers()
        with self._pool.in_use():
            for worker, announced, coming in zip(
                self._workers, self._announced, shares, strict=True
            ):
                keep, added = announced.replace(coming)
                worker.send(Announce(task_number=self._number, keep=keep, shares=added))

    def step(self, weights: np.ndarray, shares: Sequence[Share]) -> StepSums:
        """Compute one share on each worker, and add up."""
        begun = time.perf_counter()
        self._demand_workers()
        with self._pool.in_use():
            assert weights.dtype == self._dtype, "weights are of the dtype that was announced"
            np.copyto(self._weights, weights)
            busy = self._order(shares)
            done = answers_of(busy, Done, timeout_s=self._pool.timeout_s)
            reducing = time.perf_counter()
            gradient_sum = self._added([p for p in sorted(done) if done[p].has_gradient])
        ended = time.perf_counter()
        return StepSums(
            gradient_sum=gradient_sum,
            numbers=_added_numbers([done[place].numbers for place in sorted(done)]),
            times=tuple(
                done[place].times if place in done else WorkerTimes()
                for place in range(len(self._workers))
            ),
            reduce_s=ended - reducing,
            step_s=ended - begun,
            notes=tuple(
                f"{busy[place].name}: {note}"
                for place in sorted(done)
                for note in done[place].notes
            ),
        )

    def close(self) -> None:
        """Have the workers release the task; nothing happens where they have ended."""
        if self._workers and self._workers == self._pool.workers:
            # A worker that has ended meanwhile holds nothing; the pool has marked it by now.
            with suppress(DeviceFailed), self._pool.in_use():
                for worker in self._workers:
                    worker.send(Close(task_number=self._number))
        self._workers = ()

    def _demand_workers(self) -> None:
        if not self._workers or self._workers != self._pool.workers:
            raise DeviceFailed("the devices of this task were closed; open the task again")

    def _order(self, shares: Sequence[Share]) -> dict[int, WorkerProcess]:
        busy = {}
        for place, share in enumerate(shares):
            if len(share.items):
                order = self._announced[place].order(share)
                self._workers[place].send(Step(task_number=self._number, order=order))
                busy[place] = self._workers[place]
        return busy

    def _added(self, places: list[int]) -> np.ndarray | None:
        if not places:
            return None
        rows: list[np.ndarray] = [self._sums[place] for place in places]
        if len(rows) == 1:
            return rows[0].copy()
        # Never in the workers' memory, which the next step writes.
        total: np.ndarray = rows[0] + rows[1]
        for row in rows[2:]:
            total += row
        return total


def _added_numbers(numbers: Sequence[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for given in numbers:
        for name, value in given.items():
            total[name] = total.get(name, 0.0) + value
    return total
