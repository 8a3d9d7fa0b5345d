"""Events folded into the course of a run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from retexo_fl.run_log.course import RunCourse
from retexo_fl.run_log.events import (
    ExchangeClosed,
    Finished,
    RoundClosed,
    RoundsLost,
    StageClosed,
    Started,
    TriedCandidate,
    Waiting,
)

START = Started(time_s=0.0, clients=3, stages=2)


def exchange(stage: int, moved: int, **changes: Any) -> ExchangeClosed:
    made = ExchangeClosed(stage=stage, vectors=5, missing=0, bytes_payload=moved, time_s=1.0)
    return replace(made, **changes)


def trained(stage: int, number: int, moved: int, **changes: Any) -> RoundClosed:
    made = RoundClosed(
        stage=stage,
        round=number,
        rounds=4,
        loss=1.0 / number,
        val_loss=0.5,
        val_accuracy=0.1 * number,
        best_round=number,
        best_val_accuracy=0.1 * number,
        bytes_payload=moved,
        seconds=2.0,
        time_s=float(number),
    )
    return replace(made, **changes)


def states(course: RunCourse) -> list[str]:
    return [stage.state for stage in course.stages]


def test_stages_wait_exchange_train_and_end_in_turn() -> None:
    course = RunCourse()
    seen = []
    for event in (
        START,
        exchange(0, 10),
        trained(0, 1, 30),
        StageClosed(stage=0, best_round=1, bytes_payload=30),
        exchange(1, 40),
    ):
        course.take(event)
        seen.append(states(course))
    assert seen == [
        ["exchange", "waiting"],
        ["training", "waiting"],
        ["training", "waiting"],
        ["done", "exchange"],
        ["done", "training"],
    ]
    assert [stage.start_bytes for stage in course.stages] == [0, 30]
    assert not course.finished
    end = Finished(test_accuracy=0.5, bytes_payload=50)
    course.take(end)
    assert [course.end, course.finished, course.moved_bytes] == [end, True, 50]


def test_a_resumed_run_begins_in_the_middle() -> None:
    course = RunCourse.of([replace(START, attempt=2), trained(1, 3, 90)])
    assert states(course) == ["done", "training"]
    assert (course.attempt, course.attempts) == (2, 1)
    assert [stage.index for stage in course.begun] == [1]


def test_a_round_that_is_repeated_is_as_the_later_attempt_had_it() -> None:
    course = RunCourse.of(
        [
            START,
            trained(0, 1, 10),
            trained(0, 2, 20, time_s=5.0),
            replace(START, attempt=2),
            trained(0, 2, 25, loss=9.0, time_s=3.0),
        ]
    )
    assert [(point.round, point.loss) for point in course.stages[0].points] == [(1, 1.0), (2, 9.0)]
    assert course.stages[0].end_bytes == 25
    assert (course.attempts, course.seconds) == (2, 8.0)


def test_the_end_of_a_stage_says_which_round_was_best() -> None:
    course = RunCourse.of([START, trained(0, 1, 10), trained(0, 2, 20)])
    stage = course.stages[0]
    assert (stage.best_round, stage.best_value) == (2, 0.2)
    course.take(StageClosed(stage=0, best_round=1, val_accuracy=0.1, bytes_payload=20))
    assert (stage.best_round, stage.best_value) == (1, 0.1)
    assert stage.best is stage.rounds[1]
    course.take(StageClosed(stage=0, best_round=None, bytes_payload=20))
    assert [stage.best_round, stage.best] == [None, None]


def test_the_time_left_is_at_the_pace_of_the_last_rounds() -> None:
    course = RunCourse.of([START, trained(0, 1, 10)])
    assert course.stages[0].left_s == 3 * 2.0
    for number, time_s in ((2, 11.0), (3, 21.0)):
        course.take(trained(0, number, 10, time_s=time_s))
    assert course.stages[0].left_s == pytest.approx(10.0)
    course.take(StageClosed(stage=0, best_round=3, bytes_payload=10))
    assert course.stages[0].left_s is None


def test_who_is_waited_for_and_who_was_absent() -> None:
    course = RunCourse.of([replace(START, absent=(2,))])
    course.take(Waiting(stage=0, purpose="train", clients=(0, 1)))
    assert (course.awaited, course.absent) == ((0, 1), (2,))
    course.take(trained(0, 1, 10, absent=(0,)))
    assert (course.awaited, course.absent) == ((), (0, 2))


def test_what_was_missed_and_lost_is_counted_once() -> None:
    spans = ((0, 1, 2), (1, 4, 4))
    course = RunCourse.of(
        [
            START,
            exchange(0, 10, missing=3),
            RoundsLost(rounds=spans),
            exchange(0, 10, missing=2),
            exchange(1, 20, missing=4),
            RoundsLost(rounds=spans[:1]),
        ]
    )
    assert course.missing == 6
    assert tuple(course.lost) == spans


def test_a_stage_says_what_its_weights_were_chosen_among() -> None:
    course = RunCourse.of(
        [
            START,
            trained(0, 1, 30),
            StageClosed(
                stage=0,
                best_round=1,
                val_accuracy=0.75,
                train_accuracy=0.8,
                candidate="no own rows",
                tried=(
                    TriedCandidate(name="", rounds=1, val_accuracy=0.7),
                    TriedCandidate(name="no own rows", rounds=2, val_accuracy=0.75),
                ),
                bytes_payload=30,
            ),
            trained(1, 1, 40),
            StageClosed(stage=1, best_round=1, val_accuracy=0.75, bytes_payload=40),
        ]
    )
    first, last = course.stages
    assert first.kept == ("train accuracy 80.0 %", "no own rows (else as it is 70.0 %)")
    assert last.kept == ()
