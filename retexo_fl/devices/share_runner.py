"""One device at work: prepares ahead, computes, and says where the time went."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from retexo_fl.devices.prefetch import Prefetcher
from retexo_fl.devices.queues import Queue, preparation_queue
from retexo_fl.devices.task import Share, Task
from retexo_fl.devices.timings import WorkerTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareResult:
    """What came of a share.

    Attributes:
        has_gradient: The gradient's sum was written.
        numbers: Further sums by name.
        times: Where the time went.
    """

    has_gradient: bool
    numbers: Mapping[str, float]
    times: WorkerTimes


class ShareRunner:
    """Runs the shares of one task on one device."""

    def __init__(
        self,
        task: Task,
        device: torch.device,
        *,
        ahead: int,
        make_queue: Callable[[torch.device], Queue | None] = preparation_queue,
    ) -> None:
        """Set up.

        Args:
            task: Made for ``device``.
            device: Where it computes.
            ahead: Announced shares that are prepared ahead.
            make_queue: Makes what the device does for preparation in.
        """
        self._task = task
        self._device = device
        # Not a method of this object: a ring of references would keep the task after its end.
        self._prefetcher = Prefetcher(partial(_prepare, task, make_queue(device)), ahead=ahead)

    def announce(self, keep: int, shares: Sequence[Share]) -> None:
        """See :meth:`retexo_fl.devices.prefetch.Prefetcher.announce`."""
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
        found = self._task.sums(weights.to(self._device), prepared.content)
        if found.gradient_sum is not None:
            assert found.gradient_sum.shape == sums.shape, "a task's gradient has (P,) values"
            assert found.gradient_sum.dtype == sums.dtype, "a gradient is of its weights' dtype"
            sums.copy_(found.gradient_sum)
        self._finish()
        compute_s = time.perf_counter() - begun
        times = WorkerTimes(
            prepare_s=prepared.prepare_s, waited_s=prepared.waited_s, compute_s=compute_s
        )
        return ShareResult(
            has_gradient=found.gradient_sum is not None,
            numbers={name: float(value) for name, value in found.numbers.items()},
            times=times,
        )

    def close(self) -> None:
        """End the preparing thread."""
        self._prefetcher.close()

    def _finish(self) -> None:
        if self._device.type == "cuda":
            # Not the whole device: the next share is being copied there.
            torch.cuda.current_stream(self._device).synchronize()


def _prepare(task: Task, queue: Queue | None, share: Share) -> object:
    if queue is None:
        return task.prepare(share)
    # In a queue of its own, copies run beside the kernels of the share before. It is waited for
    # here, and compute in `run`: neither ever sees memory that the other still writes.
    with queue.entered():
        prepared = task.prepare(share)
    queue.synchronize()
    return prepared
