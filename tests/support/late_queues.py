"""A device on the CPU whose work is done no earlier than it is waited for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

_entered = threading.local()


class LateQueue:
    """Implements :class:`~retexo_fl.devices.queues.Queue`: does nothing before it must."""

    def __init__(self, device: torch.device) -> None:
        del device
        self._asked: list[Callable[[], object]] = []

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Take what :func:`copy_late` asks for in this thread."""
        _entered.queue = self
        try:
            yield
        finally:
            del _entered.queue

    def synchronize(self) -> None:
        """Do it."""
        asked, self._asked = self._asked, []
        for work in asked:
            work()


def copy_late(rows: torch.Tensor) -> torch.Tensor:
    """Return a copy whose values are there once the thread's queue has been waited for."""
    found = torch.full_like(rows, torch.nan)
    queue: LateQueue = _entered.queue
    queue._asked.append(lambda: found.copy_(rows))
    return found
