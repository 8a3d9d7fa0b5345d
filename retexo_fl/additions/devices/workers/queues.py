"""The order in which a device works: on a GPU its streams, of which preparing has its own."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

import torch


class Queue(Protocol):
    """Work that a device does in its order, and later than it was asked for."""

    def entered(self) -> AbstractContextManager[object]:
        """Ask for what follows in this queue, beside what the device computes."""
        ...

    def synchronize(self) -> None:
        """Wait until everything that was asked for is done."""
        ...


class CudaQueue:
    """A stream of a GPU."""

    def __init__(self, device: torch.device) -> None:
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._stream: torch.cuda.Stream = stream

    def entered(self) -> AbstractContextManager[object]:
        """Make it the thread's current stream."""
        return torch.cuda.stream(self._stream)

    def synchronize(self) -> None:
        """Wait for it; the device's other streams continue."""
        self._stream.synchronize()


def preparation_queue(device: torch.device) -> Queue | None:
    """Return a queue for copies beside a device's computing; None on a CPU, which does at once."""
    return CudaQueue(device) if device.type == "cuda" else None
