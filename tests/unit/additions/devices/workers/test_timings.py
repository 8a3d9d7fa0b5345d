from __future__ import annotations

import pytest

from retexo_fl.additions.devices.workers.timings import EpochTimes, StepSums, WorkerTimes


def step(*workers: WorkerTimes, reduce_s: float, step_s: float) -> StepSums:
    return StepSums(gradient_sum=None, numbers={}, times=workers, reduce_s=reduce_s, step_s=step_s)


def test_epoch_is_the_sum_of_its_steps_for_each_worker() -> None:
    first = WorkerTimes(prepare_s=1.0, waited_s=0.5, compute_s=2.0)
    second = WorkerTimes(prepare_s=3.0, compute_s=4.0)
    steps = [
        step(first, WorkerTimes(), reduce_s=0.1, step_s=3.0),
        step(second, first, reduce_s=0.2, step_s=5.0),
    ]
    times = EpochTimes.of(7, steps)
    assert times.epoch == 7
    assert times.workers == (WorkerTimes(prepare_s=4.0, waited_s=0.5, compute_s=6.0), first)
    assert times.reduce_s == pytest.approx(0.3)
    assert times.steps_s == 8.0


def test_busy_is_waiting_for_the_preparation_and_computing() -> None:
    assert WorkerTimes(prepare_s=9.0, waited_s=1.0, compute_s=2.0).busy_s == 3.0
