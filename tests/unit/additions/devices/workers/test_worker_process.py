from __future__ import annotations

import os
import re
from multiprocessing import resource_tracker

import pytest

from retexo_fl.additions.devices.workers.messages import Open, Opened, Ready
from retexo_fl.additions.devices.workers.worker_process import WorkerProcess, answers_of
from retexo_fl.errors import DeviceFailed, TrainingDiverged
from tests.support.device_pools import (
    TIMEOUT_S,
    WEIGHTS,
    exists,
    left_open,
    open_descriptors,
    open_rows,
    pool_of,
    share,
)

FAILURES = [
    ("fail", DeviceFailed, r"^cpu:0: raised KeyError: 'no item 1'$"),
    ("fail-preparing", DeviceFailed, r"^cpu:0: raised ValueError: no rows for this share$"),
    ("write", DeviceFailed, r"^cpu:0: raised ValueError: .*read-only$"),
    (
        "misshapen",
        DeviceFailed,
        r"^cpu:0: raised AssertionError: .*gradient.*$",
    ),
    ("diverge", TrainingDiverged, r"^cpu:0: loss is nan in batch 0$"),
    ("end", DeviceFailed, r"^cpu:0: .*ended with code 3.*$"),
    ("hang", DeviceFailed, r"^cpu:0: no answer within 0\.5 s.*$"),
    ("answer-noise", DeviceFailed, r"^cpu:0: its answer cannot be read; it was ended$"),
    (
        "answer-something-else",
        DeviceFailed,
        r"^cpu:0: answered Ready, expected Done.*$",
    ),
]


#: Each needs a process of its own to end; these stand for the others where time is short, and
#: others are like one of them to the pool.
FEW, MORE = ("fail", "hang"), ("misshapen", "answer-something-else")


def marks_of(purpose: str) -> list[pytest.MarkDecorator]:
    if purpose in FEW:
        return []
    return [pytest.mark.slow if purpose in MORE else pytest.mark.system]


@pytest.mark.system
@pytest.mark.parametrize(
    ("purpose", "kind", "message"),
    [pytest.param(*case, id=case[0], marks=marks_of(case[0])) for case in FAILURES],
)
def test_failing_worker_is_named_and_the_pool_closed(
    purpose: str, kind: type[Exception], message: str
) -> None:
    resource_tracker.ensure_running()
    before = open_descriptors()
    with pool_of("cpu:1", threads=1) as pool:
        task = open_rows(pool)
        processes = pool.process_ids
        if purpose == "hang":
            pool.timeout_s = 0.5
        with pytest.raises(kind) as caught:
            task.step(WEIGHTS, [share([1], purpose)])
        assert re.search(message, str(caught.value))
        assert not any(exists(one) for one in processes)
        with pytest.raises(DeviceFailed, match="were closed"):
            task.step(WEIGHTS, [share([1])])
        with pytest.raises(DeviceFailed, match="closed after a failure: cpu:0: "):
            open_rows(pool)
        task.close()
    if purpose == "fail":
        assert "in _fail" in caught.value.__notes__[0]
    del caught, task
    assert left_open(before) == {}


@pytest.mark.system
@pytest.mark.parametrize(
    ("purpose", "message"),
    [
        ("be-killed", r"^cpu:1: its process ended by signal 9, see"),
        ("stop", r"^cpu:1: no answer within 1 s; it was ended$"),
    ],
)
def test_worker_that_ends_takes_the_others_with_it(purpose: str, message: str) -> None:
    with pool_of("cpu:2", threads=1) as pool:
        task = open_rows(pool)
        processes = pool.process_ids
        if purpose == "stop":
            pool.timeout_s = 1.0
        with pytest.raises(DeviceFailed, match=message):
            task.step(WEIGHTS, [share([2]), share([1], purpose)])
        assert not any(exists(one) for one in processes)


@pytest.mark.system
def test_worker_killed_between_steps_is_noticed_by_the_next() -> None:
    with pool_of("cpu:1", threads=1) as pool:
        task = open_rows(pool)
        os.kill(pool.process_ids[0], 9)
        with pytest.raises(DeviceFailed, match="cpu:0: its process ended by signal 9"):
            task.step(WEIGHTS, [share([1])])


@pytest.mark.system
def test_closing_what_a_killed_worker_had_open_raises_nothing() -> None:
    with pool_of("cpu:1", threads=1) as pool:
        task = open_rows(pool)
        os.kill(pool.process_ids[0], 9)
        # Until it has ended, and leaving it to the pool to ask how.
        os.waitid(os.P_PID, pool.process_ids[0], os.WEXITED | os.WNOWAIT)
        task.close()
        with pytest.raises(DeviceFailed, match="closed after a failure: cpu:0: its process ended"):
            open_rows(pool)


def _started() -> WorkerProcess:
    worker = WorkerProcess("cpu:0", 0, threads=1, ahead=1, preparers=1)
    answers_of({0: worker}, Ready, timeout_s=TIMEOUT_S)
    return worker


@pytest.mark.system
def test_worker_ends_where_its_host_ends_between_a_message_and_its_descriptors() -> None:
    worker = _started()
    worker.send(Open(task_number=1, maker=b"", arrays=(), exchange=()))
    worker.hang_up()
    ended = os.waitid(os.P_PID, worker.process_id, os.WEXITED | os.WNOWAIT)
    worker.close()
    assert ended is not None
    assert (ended.si_code, ended.si_status) == (os.CLD_EXITED, 0)


@pytest.mark.system
def test_worker_that_cannot_read_a_message_ends_and_says_why(
    capfd: pytest.CaptureFixture[str],
) -> None:
    worker = _started()
    worker.send(Ready())
    with pytest.raises(DeviceFailed, match="ended with code 1, see its error output"):
        answers_of({0: worker}, Opened, timeout_s=TIMEOUT_S)
    worker.close()
    assert "no message of a host: Ready()" in capfd.readouterr().err
