"""One device at work: prepares ahead, computes, and reports where the time went."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from retexo_fl.additions.devices.workers.prefetch import Prefetcher
from retexo_fl.additions.devices.workers.queues import Queue, preparation_queue
from retexo_fl.additions.devices.workers.task import Share, Task
from retexo_fl.additions.devices.workers.timings import WorkerTimes
from retexo_fl.transfers import back, onto


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareResult:
    """What came of a share.

    Attributes:
        has_gradient: The gradient's sum was written.
        numbers: Further sums by name.
        times: Where the time went.
        notes: Of the task.
    """

    has_gradient: bool
    numbers: Mapping[str, float]
    times: WorkerTimes
    notes: tuple[str, ...] = ()


class ShareRunner:
    """Runs the shares of one task on one device."""

    def __init__(
        self,
        task: Task,
        device: torch.device,
        *,
        ahead: int,
        preparers: int = 1,
        make_queue: Callable[[torch.device], Queue | None] = preparation_queue,
    ) -> None:
        """Set up.

        Args:
            task: Made for ``device``.
            device: Where it computes.
            ahead: Announced shares that are prepared ahead.
            preparers: Threads that prepare them.
            make_queue: Makes what the device does the preparation of one thread in.
        """
        self._task = task
        self._device = device
        # Not a method of this object: a ring of references would keep the task after its end.
        prepare = _Preparation(task, partial(make_queue, device))
        self._prefetcher = Prefetcher(prepare, ahead=ahead, threads=preparers)

    def announce(self, keep: int, shares: Sequence[Share]) -> None:
        """See :meth:`.Prefetcher.announce`."""
        self._prefetcher.announce(keep, shares)

    def run(self, order: Share | int, weights: torch.Tensor, sums: torch.Tensor) -> ShareResult:
        """Compute a share.

        Args:
            order: See ``messages.Step``.
            weights: (P,) in the host's memory.
            sums: (P,) there; receives the gradient's sum.
        """
        prepared = self._prefetcher.take(order)
        begun = time.perf_counter()
        found = self._task.sums(onto(weights, self._device), prepared.content)
        if found.gradient_sum is not None:
            assert found.gradient_sum.shape == sums.shape, "a task's gradient has (P,) values"
            assert found.gradient_sum.dtype == sums.dtype, "a gradient is of its weights' dtype"
            sums.copy_(back(found.gradient_sum))
        self._finish()
        compute_s = time.perf_counter() - begun
        times = WorkerTimes(
            prepare_s=prepared.prepare_s, waited_s=prepared.waited_s, compute_s=compute_s
        )
        return ShareResult(
            has_gradient=found.gradient_sum is not None,
            numbers={name: float(value) for name, value in found.numbers.items()},
            times=times,
            notes=found.notes,
        )

    def close(self) -> None:
        """End the preparing threads."""
        self._prefetcher.close()

    def _finish(self) -> None:
        if self._device.type == "cuda":
            # Not the whole device: the next share is being copied there.
            torch.cuda.current_stream(self._device).synchronize()


class _Preparation:
    """Prepares shares, each thread in a queue of its own."""

    def __init__(self, task: Task, make_queue: Callable[[], Queue | None]) -> None:
        self._task = task
        self._make_queue = make_queue
        self._of_thread = threading.local()

    def __call__(self, share: Share) -> object:
        queue = self._queue()
        if queue is None:
            return self._task.prepare(share)
        # In a queue of its own, copies run beside the kernels of the share before. It is waited
        # for here, and compute in `run`: neither ever sees memory that the other still writes.
        with queue.entered():
            prepared = self._task.prepare(share)
        queue.synchronize()
        return prepared

    def _queue(self) -> Queue | None:
        if not hasattr(self._of_thread, "queue"):
            self._of_thread.queue = self._make_queue()
        found: Queue | None = self._of_thread.queue
        return found
