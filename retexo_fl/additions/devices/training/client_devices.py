"""The devices of a client; clients of one process that name the same ones share their workers."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

import numpy as np

from retexo_fl.additions.devices.workers.pool import OpenTask, WorkerPool
from retexo_fl.additions.devices.workers.task import TaskFactory
from retexo_fl.config import RunConfig, config_values
from retexo_fl.device_names import Machine, Settled, parse_devices
from retexo_fl.methods.keys import trains_full_batches
from retexo_fl.training.recipe import objective_of

_lock: Final = threading.Lock()
#: How many clients of this process hold each pool.
_holders: Final[Counter[WorkerPool]] = Counter()


def why_alone(config: RunConfig) -> str:
    """Return why a client computes in its own process whatever there is; empty: it shares."""
    if why := objective_of(config).why_alone:
        return why
    if trains_full_batches(config_values(config)):
        return "a full batch is not split over devices"
    return ""


class ClientDevices:
    """What a client computes on; worker processes live while a client of the process holds them.

    Attributes:
        settled: What of ``devices`` is there.
        speeds: (W,) that were measured last, for the next stage to begin with; None before.
    """

    def __init__(self, devices: str, *, threads: int) -> None:
        """Look what is there; nothing is started.

        Args:
            devices: As in a configuration.
            threads: Of each CPU worker.

        Raises:
            ConfigurationError: ``devices`` cannot be read, or names a device twice.
        """
        self.settled: Settled = parse_devices(devices).settle(threads=threads)
        self.speeds: Sequence[float] | None = None
        self._threads = threads
        self._held: WorkerPool | None = None

    @classmethod
    def of(cls, config: RunConfig) -> Self:
        """Look what is there of a configuration's devices.

        Raises:
            ConfigurationError: See above.
        """
        # Several CPU workers would add a mini-batch's sums with other roundings.
        is_alone = config.devices == "auto" and not Machine.here().num_gpus
        return cls("cpu" if is_alone else config.devices, threads=config.threads)

    @property
    def num_workers(self) -> int:
        """W."""
        return len(self.settled.names)

    @property
    def in_process(self) -> bool:
        """Whether the only worker is this process."""
        return self.settled.in_process

    @property
    def process_ids(self) -> tuple[int, ...]:
        """Numbers of the running children; none before the first task."""
        return () if self._held is None else self._held.process_ids

    @property
    def ahead(self) -> int:
        """Shares that a worker prepares while it computes another."""
        return self._pool().ahead

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
        """Make a task on every worker; see :meth:`.WorkerPool.open`.

        Where the workers of before have failed, new ones are started.

        Raises:
            DeviceFailed: A worker cannot start or make the task.
        """
        return self._pool().open(
            factory, arrays, settings, num_weights=num_weights, dtype=dtype, num_sums=num_sums
        )

    def close(self) -> None:
        """Release the workers, which end when no other client holds them."""
        held, self._held = self._held, None
        if held is None:
            return
        with _lock:
            _holders[held] -= 1
            if not _holders[held]:
                del _holders[held]
                held.close()

    def _pool(self) -> WorkerPool:
        found = WorkerPool.shared(self.settled, threads=self._threads)
        if found is not self._held:
            self.close()
            with _lock:
                _holders[found] += 1
            self._held = found
        return found
