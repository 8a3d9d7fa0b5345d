"""When workers are tried for a stage, and whether they stay."""

from __future__ import annotations

import pytest

from retexo_fl.additions.devices.training.trial import Experience, Trial


def trial(rounds: int = 200, *, share: float = 0.5, before: Experience | None = None) -> Trial:
    return Trial(rounds, share=share, before=before or Experience())


def after_own(made: Trial, seconds: float, rounds: int = 4) -> Trial:
    for _ in range(rounds):
        made.own_round(seconds)
    return made


@pytest.mark.parametrize(
    ("rounds", "seconds", "share", "wants"),
    [
        (200, 1.0, 0.5, True),
        (200, 0.1, 0.5, False),  # 20 s are left.
        (200, 1.0, 1.0, False),  # One device has all of it.
        (200, 1.0, 0.8, False),  # A fifth would be saved.
        (40, 10.0, 0.5, False),  # A trial of two rounds is 5 % of 40.
    ],
)
def test_workers_are_wanted_where_what_is_left_is_worth_it(
    rounds: int, seconds: float, share: float, wants: bool
) -> None:
    assert after_own(trial(rounds, share=share), seconds).wants_workers(4) is wants


def test_nothing_is_wanted_before_rounds_are_known() -> None:
    made = trial()
    for number in range(4):
        assert not made.wants_workers(number)
        # The first, which prepares, says nothing of the others.
        made.own_round(50.0 if number == 0 else 1.0)
    assert made.wants_workers(4)
    assert made.own_s == 1.0


def test_workers_that_are_faster_stay_and_run_for_the_next_stage() -> None:
    before = Experience()
    made = after_own(trial(before=before), 1.0)
    assert [made.shared_round(seconds) for seconds in (3.0, 0.6, 0.6, 0.6, 0.6)] == [
        *(False, False, False),
        *(True, False),
    ]
    assert before.are_running
    assert made.goes_to_workers(11)
    # They run: a second saved is enough.
    assert after_own(trial(20, before=before), 0.2).wants_workers(4)


def test_workers_that_are_slower_lose_at_their_second_round() -> None:
    before = Experience()
    made = after_own(trial(before=before), 1.0)
    assert not made.shared_round(0.5)
    assert made.shared_round(1.1)
    assert made.is_over
    assert not made.goes_to_workers(12)
    assert not made.wants_workers(12)
    # The next stage tries none, unless its rounds are of another kind.
    assert not after_own(trial(before=before), 2.0).wants_workers(4)
    assert after_own(trial(before=before), 5.0).wants_workers(4)


def test_workers_that_save_little_are_not_worth_other_cores() -> None:
    made = after_own(trial(), 1.0)
    assert [made.shared_round(0.95) for _ in range(4)] == [False, False, False, True]
    assert made.is_over


def test_a_round_here_shows_whether_workers_are_faster_yet() -> None:
    made = after_own(trial(), 1.0)
    for _ in range(5):
        made.shared_round(0.6)
    here = [number for number in range(1, 121) if not made.goes_to_workers(number)]
    assert here == [40, 80, 120]
    made.own_round(1.0)
    assert not made.is_over
    for _ in range(10):
        made.shared_round(0.9 if made.own_s == 1.0 else 0.0)
    made.own_round(0.5)
    assert made.is_over
