from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from retexo_fl.training.selection import BestWeights, Score


def score(correct: int, loss: float, count: int = 10) -> Score:
    return Score(count=count, correct=correct, loss_sum=loss)


@pytest.mark.parametrize(
    ("later", "earlier", "expected"),
    [
        (score(6, 9.0), score(5, 1.0), True),
        (score(5, 1.0), score(6, 9.0), False),
        (score(5, 1.0), score(5, 2.0), True),
        (score(5, 2.0), score(5, 1.0), False),
        (score(5, 2.0), score(5, 2.0), False),
        (score(0, 0.0, count=0), score(0, 0.0, count=0), True),
    ],
)
def test_beats_by_accuracy_then_loss_then_age(later: Score, earlier: Score, expected: bool) -> None:
    assert later.beats(earlier) is expected


def test_best_weights_keep_a_copy_of_the_best_round() -> None:
    best, weights = BestWeights(), np.zeros(2)
    for number, item in enumerate([score(3, 1.0), score(5, 1.0), score(4, 0.1)], start=1):
        weights += 1
        best.offer(weights, number, item)
    assert best.round_number == 2
    assert best.weights is not None
    assert best.weights.tolist() == [2.0, 2.0]


def test_scores_without_nodes_have_no_accuracy() -> None:
    assert score(0, 0.0, count=0).accuracy is None
    assert score(0, 0.0, count=0).loss is None
    assert score(5, 2.0).accuracy == 0.5
    assert score(5, 2.0).loss == 0.2


def test_one_is_clearly_better_by_more_than_a_standard_error() -> None:
    # Of 1,000 nodes of which half are right: 0.0158.
    before = Score(count=1000, correct=500, loss_sum=1.0)
    assert not replace(before, correct=515).clearly_beats(before)
    assert replace(before, correct=516).clearly_beats(before)
    assert not replace(before, correct=484).clearly_beats(before)


def test_what_is_better_follows_the_metric() -> None:
    before = Score(count=1000, correct=500, loss_sum=1.0, metric=0.5, by_metric=True)
    assert replace(before, correct=0, metric=0.52).clearly_beats(before)
    assert not replace(before, correct=1000, metric=0.5).clearly_beats(before)
    lower = replace(before, lower_is_better=True)
    assert replace(lower, metric=0.48).clearly_beats(lower)
    assert not replace(lower, metric=0.52).clearly_beats(lower)


def test_without_nodes_nothing_is_clearly_better() -> None:
    nothing = Score(count=0, correct=0, loss_sum=0.0)
    assert not nothing.clearly_beats(nothing)
