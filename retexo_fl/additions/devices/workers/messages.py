"""Messages between host and worker process, over a pipe that only these two have.

They are objects of this library in two processes of one user: ``multiprocessing`` writes and reads
them. An :class:`Open` is followed by two descriptors: of the arrays, and of weights and sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from retexo_fl.additions.devices.workers.shared_arrays import Layout
from retexo_fl.additions.devices.workers.task import Share
from retexo_fl.additions.devices.workers.timings import WorkerTimes

#: Names of the arrays in the memory that each task's host and workers write.
WEIGHTS: Final = "weights"
SUMS: Final = "sums"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """What a worker process is.

    Attributes:
        name: Of its device, as users write it: ``cpu:1``.
        place: Its row among the sums.
        threads: That it computes with.
        ahead: Announced shares that it prepares ahead.
        preparers: Threads that prepare them.
        parent: Process number of the host if that is to take the worker with it, else 0.
    """

    name: str
    place: int
    threads: int
    ahead: int
    preparers: int
    parent: int


# ---- from the host ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """Make a task.

    Attributes:
        task_number: Of the task.
        maker: Factory and settings, packed.
        arrays: Where the shared arrays are, those of ``maker`` included.
        exchange: Where weights and sums are.
    """

    task_number: int
    maker: bytes
    arrays: Layout
    exchange: Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Announce:
    """Of the announced shares keep the first ``keep``; ``shares`` come after these."""

    task_number: int
    keep: int
    shares: tuple[Share, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Compute a share with the weights in the shared memory.

    Attributes:
        task_number: Of the task.
        order: The share, or how many announced shares to drop before the one to compute.
    """

    task_number: int
    order: Share | int


@dataclass(frozen=True, slots=True, kw_only=True)
class Close:
    """Release a task."""

    task_number: int


# ---- from a worker ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The worker has started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A task was made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A share was computed; its gradient, if any, is in the shared memory."""

    has_gradient: bool
    numbers: Mapping[str, float]
    times: WorkerTimes
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """Something was raised.

    Attributes:
        kind: Name of the error's class.
        text: Its message, on one line.
        trace: Where it was raised.
    """

    kind: str
    text: str
    trace: str
