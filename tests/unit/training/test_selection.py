from __future__ import annotations

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
