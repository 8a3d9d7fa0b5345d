"""Tasks, models, sources and losses for tests of devices, which worker processes can import."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Final

import numpy as np
import torch

from retexo_fl.additions.devices.workers.messages import Ready
from retexo_fl.additions.devices.workers.task import Share, ShareSums
from retexo_fl.errors import TrainingDiverged
from retexo_fl.layers.dropout import KeyedDropout

#: Longer than any test waits.
_FOREVER_S: Final = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Settings of :class:`RowSums`."""

    factor: float = 1.0


class RowSums:
    """Has the loss ``factor * sum over items i of (rows[i] . weights)``; knows ways to fail."""

    def __init__(self, arrays: Mapping[str, np.ndarray], settings: Scale) -> None:
        self._rows = arrays["rows"]
        self._factor = settings.factor
        self._prepared: list[int] = []

    def prepare(self, share: Share) -> object:
        """Gather rows; remember which batch that was for."""
        if share.purpose == "fail-preparing":
            raise ValueError("no rows\nfor this share")
        self._prepared.append(share.batch)
        return share, torch.from_numpy(self._rows[share.items])

    def sums(self, weights: torch.Tensor, prepared: object) -> ShareSums:
        """Do what the share's purpose says."""
        assert isinstance(prepared, tuple)
        share, rows = prepared
        numbers = _ANSWERS[share.purpose](self, share)
        gradient = self._factor * rows.sum(dim=0)
        if share.purpose == "misshapen":
            gradient = gradient[1:]
            weights = weights[1:]
        return ShareSums(
            gradient_sum=None if share.purpose == "numbers" else gradient,
            numbers={"loss_sum": float(gradient @ weights), "count": len(rows), **numbers},
        )

    def _write(self, share: Share) -> dict[str, float]:
        self._rows[share.items] = 0
        return {}

    def _told(self, share: Share) -> dict[str, float]:
        time.sleep(share.numbers.get("sleep_ms", 0) / 1000)
        mine = [signal.SIGINT, signal.SIGTERM]
        return {
            "process": os.getpid(),
            "threads": torch.get_num_threads(),
            "ignores_interrupts": float(signal.getsignal(mine[0]) is signal.SIG_IGN),
            "prepared": sum(10**place * batch for place, batch in enumerate(self._prepared)),
            "was_prepared": len(self._prepared),
        }


def _fail(_: RowSums, share: Share) -> dict[str, float]:
    raise KeyError(f"no item {share.items[0]}")


def _diverge(_: RowSums, share: Share) -> dict[str, float]:
    raise TrainingDiverged(f"loss is nan in batch {share.batch}")


def _end(*_: object) -> dict[str, float]:
    os._exit(3)


def _be_killed(*_: object) -> dict[str, float]:
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def _hang(*_: object) -> dict[str, float]:
    time.sleep(_FOREVER_S)
    return {}


def _stop(*_: object) -> dict[str, float]:
    os.kill(os.getpid(), signal.SIGSTOP)
    return {}


def _answer_something_else(*_: object) -> dict[str, float]:
    _own_connection().send(Ready())
    return {}


def _answer_noise(*_: object) -> dict[str, float]:
    _own_connection().send_bytes(b"\x80\x04noise")
    return {}


def _own_connection() -> Any:
    """Return a worker's pipe to its host, which no task is given."""
    (found,) = (one for one in gc.get_objects() if type(one) is Connection and not one.closed)
    return found


_ANSWERS: Final[Mapping[str, Callable[[RowSums, Share], dict[str, float]]]] = {
    "train": lambda task, share: {},
    "numbers": lambda task, share: {},
    "tell": RowSums._told,
    "write": RowSums._write,
    "fail": _fail,
    "diverge": _diverge,
    "end": _end,
    "be-killed": _be_killed,
    "hang": _hang,
    "stop": _stop,
    "answer-something-else": _answer_something_else,
    "answer-noise": _answer_noise,
    "misshapen": lambda task, share: {},
}


def make_row_sums(
    device: torch.device, arrays: Mapping[str, np.ndarray], settings: Scale
) -> RowSums:
    """Make the task."""
    assert device.type in ("cpu", "cuda")
    return RowSums(arrays, settings)


def make_nothing(device: torch.device, arrays: Mapping[str, np.ndarray], settings: Any) -> RowSums:
    """Fail to."""
    del device, arrays
    raise TrainingDiverged(f"cannot begin with {settings}")


def make_dead(device: torch.device, arrays: Mapping[str, np.ndarray], settings: Any) -> RowSums:
    """End the process instead."""
    del device, arrays, settings
    os._exit(4)


# ---- for the public interface -------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TableBatch:
    """What a loss is computed on: (n, D) rows, (n,) labels, and what keys dropout."""

    rows: torch.Tensor
    labels: torch.Tensor
    items: np.ndarray
    epoch: int
    batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A source: rows and labels of items."""

    rows: torch.Tensor
    labels: torch.Tensor

    def prepare(
        self, items: np.ndarray, *, epoch: int, batch: int, device: torch.device
    ) -> TableBatch:
        """Gather them."""
        places = torch.from_numpy(items)
        return TableBatch(
            rows=self.rows[places].to(device),
            labels=self.labels[places].to(device),
            items=items,
            epoch=epoch,
            batch=batch,
        )


def random_table(count: int, width: int, classes: int, dtype: torch.dtype) -> Table:
    """Return a table of random rows and labels."""
    draws = torch.Generator().manual_seed(0)
    return Table(
        rows=torch.randn(count, width, generator=draws, dtype=torch.float64).to(dtype),
        labels=torch.randint(classes, (count,), generator=draws),
    )


class Perceptron(torch.nn.Module):
    """Two layers, a dropout between them that is keyed by item, and parameters of every kind."""

    def __init__(self, inputs: int, hidden: int, classes: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.first = torch.nn.Linear(inputs, hidden, dtype=dtype)
        self.norm = torch.nn.LayerNorm(hidden, dtype=dtype)
        self.last = torch.nn.Linear(hidden, classes, dtype=dtype)
        self.frozen = torch.nn.Parameter(torch.full((1,), 0.5), requires_grad=False)
        self.without_part = torch.nn.Parameter(torch.ones(2, dtype=dtype))

    def forward(self, batch: TableBatch) -> torch.Tensor:
        """Return (n, classes) logits."""
        dropout = KeyedDropout(rate=0.5, seed=1, stage=0, round=batch.epoch + 1, step=batch.batch)
        hidden = self.norm(torch.relu(self.first(batch.rows))) * self.frozen.to(batch.rows.dtype)
        logits: torch.Tensor = self.last(dropout.dense(hidden, batch.items.astype(np.uint64)))
        return logits


def summed_cross_entropy(
    model: torch.nn.Module, batch: TableBatch
) -> tuple[torch.Tensor, dict[str, float]]:
    """Return loss and how many were right."""
    logits = model(batch.rows)
    correct = float((logits.argmax(dim=1) == batch.labels).sum())
    loss = torch.nn.functional.cross_entropy(logits, batch.labels, reduction="sum")
    return loss, {"correct": correct}


def summed_loss_only(model: torch.nn.Module, batch: TableBatch) -> torch.Tensor:
    """Return the loss."""
    return summed_cross_entropy(model, batch)[0]


def summed_loss_of_batch(model: torch.nn.Module, batch: TableBatch) -> torch.Tensor:
    """Return the loss of a model that takes the whole batch, as :class:`Perceptron`."""
    return torch.nn.functional.cross_entropy(model(batch), batch.labels, reduction="sum")


def loss_that_ends_the_process(model: torch.nn.Module, batch: TableBatch) -> torch.Tensor:
    """Return the loss; in epoch 1 end the process instead."""
    if batch.epoch == 1:
        os._exit(5)
    return summed_loss_only(model, batch)


class Counting(torch.nn.Module):
    """Keeps a running count in a buffer, which no two devices agree about."""

    seen: torch.Tensor

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(inputs, classes)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Count, and classify."""
        self.seen += len(rows)
        logits: torch.Tensor = self.linear(rows)
        return logits
