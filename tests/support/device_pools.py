"""Pools of devices with a task of rows, and what they leave behind."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from retexo_fl.additions.devices.workers.pool import OpenTask, WorkerPool
from retexo_fl.additions.devices.workers.task import Share
from retexo_fl.device_names import parse_devices
from tests.support.device_tasks import Scale, make_row_sums

ROWS = np.random.default_rng(0).normal(size=(100, 7))
WEIGHTS = np.linspace(-1, 1, 7)
#: Bounds how long a test may hang; nothing is asserted about it.
TIMEOUT_S = 300.0


def open_rows(pool: WorkerPool, factor: float = 1.0, dtype: str = "f8") -> OpenTask:
    """Open a task whose gradient is ``factor`` times the sum of the items' :data:`ROWS`."""
    return pool.open(
        make_row_sums,
        {"rows": ROWS.astype(dtype)},
        Scale(factor=factor),
        num_weights=ROWS.shape[1],
        dtype=np.dtype(dtype),
    )


def share(items: Sequence[int], purpose: str = "train", batch: int = 0, **numbers: int) -> Share:
    """Return a share of epoch 0."""
    array = np.array(items, np.int64)
    return Share(epoch=0, batch=batch, items=array, purpose=purpose, numbers=numbers)


def pool_of(devices: str, **settings: Any) -> WorkerPool:
    """Return a pool that waits a bounded time."""
    return WorkerPool(parse_devices(devices).settle(), **{"timeout_s": TIMEOUT_S, **settings})


def exists(process: int) -> bool:
    """Say whether a process runs, or has ended and was not asked how."""
    return Path(f"/proc/{process}").exists()


def open_descriptors() -> dict[int, str]:
    """Return what this process has open, by descriptor."""
    gc.collect()
    found = {}
    for path in Path("/proc/self/fd").iterdir():
        # That of the folder itself is closed again.
        with suppress(FileNotFoundError):
            found[int(path.name)] = str(path.readlink())
    return found


def left_open(before: dict[int, str]) -> dict[int, str]:
    """Return what is open beside ``before``, once it is nothing or has stayed for a second.

    What another test's thread opens for a moment is not kept; what a pool forgets is.
    """
    deadline = time.monotonic() + 1.0
    while (left := dict(open_descriptors().items() - before.items())) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.05)
    return left
