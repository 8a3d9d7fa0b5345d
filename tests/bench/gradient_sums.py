"""Gradients of two processes added up: by the host in shared memory, and by gloo's all-reduce."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from retexo_fl.additions.devices.workers.pool import WorkerPool
from retexo_fl.additions.devices.workers.task import Share, ShareSums
from tests.bench.measure import Spread
from tests.bench.outcome import Row

#: How long a process may take to start, or over one sample.
_TIMEOUT_S: Final = 120.0
_RANKS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SumSeconds:
    """Wall seconds of one sum, sample i of both taken in turn i.

    Attributes:
        shared: A whole step: weights to the workers, their gradients back, added by the host.
        gloo: An all-reduce alone.
    """

    shared: list[float]
    gloo: list[float]


#: Ratios, and the times that they were made of.
Rows = tuple[list[Row], list[Row]]


def sum_rows(pool: WorkerPool, size: int, *, repeats: int) -> Rows:
    """Compare both ways.

    Args:
        pool: Of two CPU workers.
        size: Values of a gradient, float32.
        repeats: Turns.
    """
    found = sum_seconds(pool, size, repeats=repeats, calls=max(1, min(50, 5_000_000 // size)))
    pairs = zip(found.gloo, found.shared, strict=True)
    ratio = Spread.of([gloo / shared for gloo, shared in pairs])
    times = {"gloo all-reduce": found.gloo, "step through shared memory": found.shared}
    return [Row(metric=f"{size} values: gloo / shared memory", unit="x", spread=ratio)], [
        Row(
            metric=f"{size} values: {name}",
            unit="ms",
            spread=Spread.of([1e3 * one for one in seconds]),
        )
        for name, seconds in times.items()
    ]


def sum_seconds(pool: WorkerPool, size: int, *, repeats: int, calls: int) -> SumSeconds:
    """Time both ways in turn.

    Args:
        pool: Of two CPU workers.
        size: Values of a gradient, float32.
        repeats: Turns.
        calls: Sums of one sample, whose mean it is.
    """
    found = SumSeconds(shared=[], gloo=[])
    with shared_sums(pool, size) as shared, gloo_sums(size) as gloo:
        for turn in range(repeats + 1):
            samples = (shared(calls), gloo(calls))
            # The first turn warms both up.
            if turn:
                found.shared.append(samples[0])
                found.gloo.append(samples[1])
    return found


@contextmanager
def shared_sums(pool: WorkerPool, size: int) -> Iterator[Any]:
    """Return a call that takes so many steps and returns the mean seconds of one."""
    task = pool.open(make_ones, {}, size, num_weights=size, dtype=np.dtype(np.float32))
    weights = np.zeros(size, np.float32)
    shares = [Share(epoch=0, batch=0, items=np.zeros(1, np.int64))] * pool.num_workers

    def mean_s(calls: int) -> float:
        begun = time.perf_counter()
        for _ in range(calls):
            task.step(weights, shares)
        return (time.perf_counter() - begun) / calls

    try:
        yield mean_s
    finally:
        task.close()


class Ones:
    """A task whose gradient is ready, so that a step is nothing but its transport."""

    def __init__(self, size: int) -> None:
        self._gradient = torch.ones(size)

    def prepare(self, share: Share) -> object:
        """Nothing is to be prepared."""
        del share
        return None

    def sums(self, weights: torch.Tensor, prepared: object) -> ShareSums:
        """Return ones."""
        del weights, prepared
        return ShareSums(gradient_sum=self._gradient, numbers={})


def make_ones(device: torch.device, arrays: Mapping[str, np.ndarray], settings: int) -> Ones:
    """Make the task of ``settings`` values."""
    del device, arrays
    return Ones(settings)


@contextmanager
def gloo_sums(size: int) -> Iterator[Any]:
    """Return a call that all-reduces so often on two processes: the mean seconds of the slower."""
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        pipes = []
        for rank in range(_RANKS):
            ours, theirs = context.Pipe()
            meeting = (Path(folder) / "meeting").as_uri()
            process = context.Process(
                target=_reduce, args=(rank, meeting, size, theirs), daemon=True
            )
            process.start()
            theirs.close()
            stack.callback(process.join, _TIMEOUT_S)
            stack.callback(ours.close)
            pipes.append(ours)
        for pipe in pipes:
            _received(pipe)

        def mean_s(calls: int) -> float:
            for pipe in pipes:
                pipe.send(calls)
            return max(_received(pipe) for pipe in pipes)

        yield mean_s


def _reduce(rank: int, meeting: str, size: int, pipe: Connection[Any, Any]) -> None:
    """Serve sums until the pipe ends."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    group = torch.distributed
    group.init_process_group("gloo", init_method=meeting, rank=rank, world_size=_RANKS)
    gradient = torch.zeros(size)
    pipe.send(0.0)
    try:
        while True:
            calls = pipe.recv()
            group.barrier()
            begun = time.perf_counter()
            for _ in range(calls):
                group.all_reduce(gradient)
            pipe.send((time.perf_counter() - begun) / calls)
    except EOFError:
        group.destroy_process_group()


def _received(pipe: Connection[Any, Any]) -> float:
    assert pipe.poll(_TIMEOUT_S), "a process of gloo does not answer"
    seconds: float = pipe.recv()
    return seconds
