"""Copies from the host to ``meta``, which stands for a device that takes them from locked pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode


class WatchedCopies(TorchFunctionMode):
    """Notes what is copied, and whether the thread had to wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self._locked: list[torch.Tensor] = []
        self._copies: list[bool] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Lock pages in name only; note what goes to the device, and do the rest."""
        given = dict(kwargs or {})
        if func is torch.Tensor.pin_memory:
            self._locked.append(args[0].clone())
            return self._locked[-1]
        found = func(*args, **given)
        if func in {torch.Tensor.to, torch.Tensor.copy_} and _crosses(args[0], found):
            is_locked = any(args[0] is tensor for tensor in self._locked)
            self._copies.append(is_locked and given.get("non_blocking", False))
        return found

    def demand_locked(self) -> None:
        """Demand that something was copied, and all of it from locked pages, beside the thread."""
        assert self._copies
        assert all(self._copies)


@contextmanager
def watched_copies() -> Iterator[WatchedCopies]:
    """Watch what this thread copies to ``meta`` as if that were a GPU."""
    with mock.patch("torch.cuda.is_available", return_value=True), WatchedCopies() as copies:
        yield copies


def _crosses(given: torch.Tensor, found: torch.Tensor) -> bool:
    return given.device.type == "cpu" and found.device.type == "meta"
