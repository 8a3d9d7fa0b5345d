"""What a device is given to compute: a share of a mini-batch, and the sums that come back.

A task can prepare a share (sample, gather, move to its device) and form the sums of
losses and gradients over it. The room depends on nothing else of it: no graph, no layer, no model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The part of a mini-batch that one device computes.

    Attributes:
        epoch: Number of the epoch; keys randomness, as do the next three.
        batch: Number of the mini-batch within the epoch.
        items: (n,) int64, what to compute: roots, rows, or numbers of units.
        purpose: What for; a task may have others than ``train``.
        numbers: Further whole numbers that the task needs (round, step).
    """

    epoch: int
    batch: int
    items: np.ndarray
    purpose: str = "train"
    numbers: Mapping[str, int] = field(default_factory=dict)

    def same_as(self, other: Share) -> bool:
        """Return whether another share asks for the same."""
        return self is other or (
            (self.epoch, self.batch, self.purpose) == (other.epoch, other.batch, other.purpose)
            and dict(self.numbers) == dict(other.numbers)
            and np.array_equal(self.items, other.items)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareSums:
    """Sums over the items of one share; the host adds those of all devices in worker order.

    Attributes:
        gradient_sum: (P,) of the summed loss, in the dtype of the weights, on any device; None
            where the purpose needs none.
        numbers: Further sums by name (``loss_sum``, ``count``, ``correct``).
        notes: What the user should know of the device, a line each.
    """

    gradient_sum: torch.Tensor | None
    numbers: Mapping[str, float]
    notes: tuple[str, ...] = ()


class Task(Protocol):
    """What one device does with shares; made there by a :data:`TaskFactory`.

    Both calls must be functions of their arguments alone: a share computed elsewhere, earlier, or
    cut otherwise gives the same sums.
    """

    def prepare(self, share: Share) -> object:
        """Return all that :meth:`sums` needs; called ahead of time, in threads of the worker.

        Called by several at once on a GPU for which several prepare (``WorkerPool.preparers``), on
        a CPU never. At most ``1 + ahead`` results are alive at any time, so a task that reuses
        buffers needs that many of each. On a GPU it runs in a stream of the thread's own and has
        finished there before :meth:`sums` sees the result.
        """

    def sums(self, weights: torch.Tensor, prepared: object) -> ShareSums:
        """Compute at (P,) ``weights``, which lie on the task's device and are only valid now."""


#: Makes the task of one device from (device, arrays by name, settings). A function at module level;
#: the arrays are read-only and shared by all workers, the settings a small frozen dataclass.
TaskFactory = Callable[[torch.device, Mapping[str, np.ndarray], Any], Task]
