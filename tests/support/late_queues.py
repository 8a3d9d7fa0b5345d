"""A device on the CPU whose work is done no earlier than it is waited for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

_entered = threading.local()


class LateQueue:
    """Implements :class:`.Queue`: does nothing before it must."""

    def __init__(self, device: torch.device) -> None:
        del device
        self._asked: list[Callable[[], object]] = []
        self._thread = 0

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Take what :func:`copy_late` asks for in this thread, the only one that uses the queue."""
        self._thread = self._thread or threading.get_ident()
        assert self._thread == threading.get_ident(), "each thread has a queue of its own"
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


class LateTensor(torch.Tensor):
    """Lies on a device; :func:`late_returns` says when a copy of it is there."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """One that is no CPU."""
        return torch.device("meta")

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Copy later; do the rest at once."""
        if func is not torch.Tensor.copy_:
            return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]
        to, late = args
        assert kwargs == {"non_blocking": True}
        _returning._asked.append(lambda: to.copy_(late.as_subclass(torch.Tensor)))
        return to


_returning = LateQueue(torch.device("meta"))


def late_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let copies of late tensors come when a GPU's stream is waited for, into locked pages."""
    empty = torch.empty

    def locked(size: torch.Size, *, dtype: torch.dtype, pin_memory: bool) -> torch.Tensor:
        assert pin_memory
        return empty(size, dtype=dtype).fill_(torch.nan)

    monkeypatch.setattr(torch, "empty", locked)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: _returning)
