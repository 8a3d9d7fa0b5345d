"""The workers of one device list, started once and used by several tasks."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Final, Protocol, Self

import numpy as np

from retexo_fl.additions.devices.workers.local_task import LocalTask
from retexo_fl.additions.devices.workers.messages import Ready
from retexo_fl.additions.devices.workers.packing import pack_apart
from retexo_fl.additions.devices.workers.process_task import ProcessTask
from retexo_fl.additions.devices.workers.task import Share, TaskFactory
from retexo_fl.additions.devices.workers.timings import StepSums
from retexo_fl.additions.devices.workers.worker_process import (
    START_TIMEOUT_S,
    WorkerProcess,
    answers_of,
)
from retexo_fl.device_names import Settled, available_cores, preparers_of, threads_of
from retexo_fl.errors import DeviceFailed

#: How long workers may take over one step, by default.
DEFAULT_TIMEOUT_S: Final = 3600.0


class OpenTask(Protocol):
    """A task that all workers of a pool have made."""

    def announce(self, shares: Sequence[Sequence[Share]]) -> None:
        """Say what comes: ``shares[w]`` of worker w, in the order of the steps to come.

        Replaces what was announced before and not yet computed; what both have at their beginning
        is not prepared twice. Shares may be empty.
        """

    def step(self, weights: np.ndarray, shares: Sequence[Share]) -> StepSums:
        """Compute ``shares[w]`` on worker w at (P,) ``weights``; an empty share costs nothing.

        A share need not have been announced.

        Raises:
            DeviceFailed: A worker raised an error, ended, or did not answer in time. The pool and
                all its tasks are then closed.
            RetexoError: A worker raised a named failure; likewise.
        """

    def close(self) -> None:
        """Free what the workers hold for this task; the workers live on."""


class WorkerPool:
    """Workers, one for each name; a context manager that ends them.

    In-process (``settled.in_process``) there is no child: the one worker is this process. Children
    start with the first task (seconds: each imports PyTorch), and end with this process, however
    that ends. A script that uses them needs ``if __name__ == "__main__":`` around what it does,
    since every child imports the script. One thread may use a pool at a time; others wait.
    """

    _shared: ClassVar[dict[tuple[object, ...], WorkerPool]] = {}
    _shared_lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(
        self,
        settled: Settled,
        *,
        threads: int | None = None,
        ahead: int = 1,
        preparers: int | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        """Set up; nothing is started.

        Args:
            settled: The devices.
            threads: Of each CPU worker that is a process of its own; None divides the cores.
            ahead: Announced shares that each worker prepares while it computes; a GPU's at least
                one for each thread that prepares.
            preparers: Such threads of each GPU's worker; None takes the cores that are left.
            timeout_s: How long the workers may take over one step, or over making a task.
        """
        self.settled = settled
        self.ahead = ahead
        self.timeout_s = timeout_s
        cores = available_cores()
        self._threads = threads_of(settled.names, num_cores=cores, threads=threads)
        self._preparers = preparers_of(
            settled.names, num_cores=cores, threads=self._threads, preparers=preparers
        )
        self._lock = threading.RLock()
        self._workers: tuple[WorkerProcess, ...] = ()
        self._failure: str | None = None
        self._tasks_opened = 0

    @classmethod
    def shared(cls, settled: Settled, *, threads: int | None = None) -> WorkerPool:
        """Return this process's pool for a device list; a new one if that failed."""
        key = (settled.names, settled.in_process, threads, os.getpid())
        with cls._shared_lock:
            found = cls._shared.get(key)
            if found is None or found._failure is not None:
                found = cls._shared[key] = cls(settled, threads=threads)
            return found

    @property
    def num_workers(self) -> int:
        """W."""
        return len(self.settled.names)

    @property
    def process_ids(self) -> tuple[int, ...]:
        """Numbers of the running children; none before the first task."""
        return tuple(worker.process_id for worker in self._workers)

    def open(
        self,
        factory: TaskFactory,
        arrays: Mapping[str, np.ndarray],
        settings: Any,
        *,
        num_weights: int,
        dtype: np.dtype[Any],
        num_sums: int | None = None,
    ) -> OpenTask:
        """Make a task on every worker.

        Args:
            factory: What makes it.
            arrays: What every worker reads; copied once, into memory that they share.
            settings: Handed to the factory.
            num_weights: P.
            num_sums: Values of a gradient's sum, where a task forms several and lays them side by
                side; None for P.
            dtype: Of weights and gradients, float32 or float64.

        Raises:
            DeviceFailed: A worker cannot start or make the task, or the arrays find no memory.
            ConfigurationError: Factory or settings cannot be sent to processes.
            RetexoError: The factory raised a named failure.
        """
        if self.settled.in_process:
            exchange = np.zeros(num_weights if num_sums is None else num_sums, dtype)
            return LocalTask(factory, arrays, settings, exchange=exchange, ahead=self.ahead)
        maker, apart = pack_apart((factory, settings))
        with self.in_use():
            self._start()
            self._tasks_opened += 1
            task = ProcessTask(
                self,
                self._tasks_opened,
                sizes=(num_weights, num_weights if num_sums is None else num_sums),
                dtype=dtype,
            )
            task.make(maker, {**arrays, **apart})
            return task

    def close(self) -> None:
        """End the workers; a task opened later starts new ones."""
        with self._lock:
            workers, self._workers = self._workers, ()
            for worker in workers:
                worker.hang_up()
            for worker in workers:
                worker.close()

    @property
    def workers(self) -> tuple[WorkerProcess, ...]:
        """The running processes, for tasks; none before the first."""
        return self._workers

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Talk to the workers; whatever is raised meanwhile ends them, for none waits for more."""
        with self._lock:
            if self._failure is not None:
                raise DeviceFailed(f"the devices were closed after a failure: {self._failure}")
            try:
                yield
            except BaseException as error:
                self._failure = str(error) or type(error).__name__
                self.close()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        if self._workers:
            return
        started: list[WorkerProcess] = []
        try:
            for place, name in enumerate(self.settled.names):
                preparers = self._preparers[place]
                # With one thread as ever; several have each a share to prepare.
                ahead = self.ahead if preparers == 1 else max(self.ahead, preparers)
                started.append(
                    WorkerProcess(
                        name,
                        place,
                        threads=self._threads[place],
                        ahead=ahead,
                        preparers=preparers,
                    )
                )
        finally:
            self._workers = tuple(started)
        answers_of(dict(enumerate(started)), Ready, timeout_s=START_TIMEOUT_S)
