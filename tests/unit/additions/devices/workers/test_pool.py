from __future__ import annotations

import gc
import os
import re
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retexo_fl.additions.devices.workers.pool import OpenTask, WorkerPool
from retexo_fl.additions.devices.workers.task import Share
from retexo_fl.additions.devices.workers.timings import StepSums
from retexo_fl.device_names import parse_devices
from retexo_fl.errors import ConfigurationError, DeviceFailed, TrainingDiverged
from tests.support.device_pools import ROWS, TIMEOUT_S, WEIGHTS, exists, open_rows, pool_of, share
from tests.support.device_tasks import make_dead, make_nothing


@pytest.fixture(params=["own process", "processes"])
def pool(request: pytest.FixtureRequest) -> WorkerPool:
    if request.param == "own process":
        return pool_of("cpu")
    found: WorkerPool = request.getfixturevalue("process_pool")
    return found


@pytest.fixture
def task(pool: WorkerPool) -> Iterator[OpenTask]:
    task = open_rows(pool)
    yield task
    task.close()


def split(pool: WorkerPool, items: Sequence[int], at: int, **told: Any) -> list[Share]:
    """Give the items before place ``at`` to the first worker, those from there on to the last."""
    if pool.num_workers == 1:
        return [share(items, **told)]
    none = [share([], **told)] * (pool.num_workers - 2)
    return [share(items[:at], **told), *none, share(items[at:], **told)]


@pytest.mark.parametrize("at", [0, 1, 13, 30])
def test_sums_are_those_of_all_items_however_they_are_split(
    pool: WorkerPool, task: OpenTask, at: int
) -> None:
    items = list(range(10, 40))
    found = task.step(WEIGHTS, split(pool, items, at))
    assert found.gradient_sum is not None
    np.testing.assert_allclose(found.gradient_sum, ROWS[items].sum(axis=0), rtol=1e-12)
    assert found.numbers["count"] == 30
    assert found.numbers["loss_sum"] == pytest.approx(ROWS[items].sum(axis=0) @ WEIGHTS)


def test_gradient_stays_what_it_was_when_the_next_is_computed(
    pool: WorkerPool, task: OpenTask
) -> None:
    first = task.step(WEIGHTS, split(pool, [1, 2], 1)).gradient_sum
    assert first is not None
    kept = first.copy()
    task.step(WEIGHTS, split(pool, [3, 4, 5], 1))
    np.testing.assert_array_equal(first, kept)


def test_step_without_items_has_no_gradient(pool: WorkerPool, task: OpenTask) -> None:
    found = task.step(WEIGHTS, split(pool, [], 0))
    assert found.gradient_sum is None
    assert found.numbers == {}
    assert len(found.times) == pool.num_workers


def test_purpose_may_need_no_gradient(pool: WorkerPool, task: OpenTask) -> None:
    found = task.step(WEIGHTS, split(pool, [1, 2, 3], 1, purpose="numbers"))
    assert found.gradient_sum is None
    assert found.numbers["count"] == 3


def test_several_tasks_of_either_dtype_are_open_at_once(pool: WorkerPool) -> None:
    first, second = open_rows(pool), open_rows(pool, factor=2.0, dtype="f4")
    singles = second.step(WEIGHTS.astype("f4"), split(pool, [4, 5], 1)).gradient_sum
    doubles = first.step(WEIGHTS, split(pool, [4, 5], 1)).gradient_sum
    assert singles is not None
    assert doubles is not None
    assert [singles.dtype.name, doubles.dtype.name] == ["float32", "float64"]
    np.testing.assert_allclose(singles, 2 * doubles, rtol=1e-5)
    second.close()
    first.step(WEIGHTS, split(pool, [1], 1))
    first.close()


def test_announced_shares_are_prepared_ahead_and_in_order(pool: WorkerPool, task: OpenTask) -> None:
    batches = [split(pool, [1, 2], 2, purpose="tell", batch=n) for n in range(4)]
    task.announce([list(shares) for shares in zip(*batches, strict=True)])
    found = task.step(WEIGHTS, batches[0])
    # One had to be ready; the next may be by now, and no more.
    assert found.numbers["was_prepared"] in (1, 2)
    for shares in batches[1:]:
        found = task.step(WEIGHTS, shares)
    assert found.numbers["prepared"] == sum(10**n * n for n in range(4))


def test_times_of_each_worker_are_told(pool: WorkerPool, task: OpenTask) -> None:
    shares = [share([1], purpose="tell", sleep_ms=20)] * pool.num_workers
    found = task.step(WEIGHTS, shares)
    assert len(found.times) == pool.num_workers
    for times in found.times:
        assert times.compute_s >= 0.02
        assert times.busy_s <= found.step_s < 60
        assert times.prepare_s > 0


# ---- processes ----------------------------------------------------------------------------------


def told(pool: WorkerPool) -> StepSums:
    task = open_rows(pool)
    found = task.step(WEIGHTS, split(pool, [1], 1, purpose="tell"))
    task.close()
    return found


def test_workers_are_named_children_that_ignore_interrupts(process_pool: WorkerPool) -> None:
    found = told(process_pool)
    assert found.numbers["process"] == process_pool.process_ids[0] != os.getpid()
    assert found.numbers["ignores_interrupts"] == 1
    assert found.numbers["threads"] == 1
    names = [Path(f"/proc/{one}/comm").read_text().strip() for one in process_pool.process_ids]
    assert names == ["retexo cpu:0", "retexo cpu:1", "retexo cpu:2"]


def test_pool_is_used_by_one_thread_at_a_time(process_pool: WorkerPool) -> None:
    task = open_rows(process_pool)
    found: list[StepSums] = []

    def step(item: int) -> None:
        found.append(task.step(WEIGHTS, [share([item])] * 3))

    threads = [threading.Thread(target=step, args=(item,)) for item in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    losses = sorted(step.numbers["loss_sum"] for step in found)
    assert losses == pytest.approx(sorted(3 * ROWS[item] @ WEIGHTS for item in range(4)))
    task.close()


def test_workers_use_nothing_of_dev_shm(process_pool: WorkerPool) -> None:
    told(process_pool)
    for one in process_pool.process_ids:
        assert "/dev/shm" not in Path(f"/proc/{one}/maps").read_text()  # noqa: S108


def test_arrays_of_a_task_that_was_closed_are_freed(process_pool: WorkerPool) -> None:
    other = open_rows(process_pool)

    def descriptors() -> list[int]:
        # Messages are taken in order: when this is answered, every task before is closed.
        other.step(WEIGHTS, [share([1])] * 3)
        gc.collect()
        folders = [Path(f"/proc/{one}/fd") for one in (os.getpid(), *process_pool.process_ids)]
        return [len(list(folder.iterdir())) for folder in folders]

    told(process_pool)
    told(process_pool)
    before = descriptors()
    for _ in range(3):
        told(process_pool)
    assert descriptors() == before
    other.close()


def test_what_cannot_be_sent_is_named_and_nothing_started() -> None:
    with pool_of("cpu:1") as pool:
        with pytest.raises(ConfigurationError, match="cannot be sent"):
            pool.open(
                lambda *_: None,  # type: ignore[arg-type]
                {},
                None,
                num_weights=1,
                dtype=np.dtype("f8"),
            )
        assert pool.process_ids == ()


@pytest.mark.system
@pytest.mark.parametrize(
    ("factory", "kind", "message"),
    [
        (make_nothing, TrainingDiverged, "^cpu:0: cannot begin with 3$"),
        (make_dead, DeviceFailed, "^cpu:0: its process ended with code 4"),
    ],
)
def test_task_that_cannot_be_made_is_a_named_failure(
    factory: Any, kind: type[Exception], message: str
) -> None:
    with pool_of("cpu:1", threads=1) as pool, pytest.raises(kind) as caught:
        pool.open(factory, {}, 3, num_weights=1, dtype=np.dtype("f8"))
    assert re.search(message, str(caught.value))


@pytest.mark.system
def test_closed_pool_starts_anew_and_its_old_tasks_say_so() -> None:
    pool = pool_of("cpu:1", threads=1)
    with pool:
        old = open_rows(pool)
        first = pool.process_ids
    assert not any(exists(one) for one in first)
    with pool:
        new = open_rows(pool)
        assert pool.process_ids != first
        with pytest.raises(DeviceFailed, match="open the task again"):
            old.step(WEIGHTS, [share([1])])
        assert new.step(WEIGHTS, [share([1])]).numbers["count"] == 1
        old.close()


def test_shared_pool_is_one_for_each_device_list_until_it_fails() -> None:
    settled, other = parse_devices("cpu:1").settle(), parse_devices("cpu:2").settle()
    pool = WorkerPool.shared(settled, threads=1)
    assert WorkerPool.shared(settled, threads=1) is pool
    assert WorkerPool.shared(other, threads=1) is not pool
    with pool, pytest.raises(TrainingDiverged):
        pool.open(make_nothing, {}, 0, num_weights=1, dtype=np.dtype("f8"))
    assert WorkerPool.shared(settled, threads=1) is not pool
