"""How nodes rank others: against scikit-learn, and against ranks that are counted one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import ndcg_score

from retexo_fl.training.metrics import make_metric, metric_sums, metric_value


def made(seed: int, *, ties: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return scores and labels of 40 nodes and 30 others; each has an edge at least."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(40, 30))
    if ties:
        scores = np.round(scores)
    labels = rng.choice([-1, 0, 0, 0, 1], size=scores.shape)
    labels[:, 0] = 1
    return scores, labels


def value(name: str, scores: np.ndarray, labels: np.ndarray) -> float:
    """Return a metric of sums over the rows in three parts."""
    metric = make_metric(name)
    assert metric is not None
    total = np.zeros(3)
    for some in np.array_split(np.arange(len(scores)), 3):
        total += metric_sums(metric, torch.from_numpy(scores[some]), torch.from_numpy(labels[some]))
    found = metric_value(metric, total)
    assert found is not None
    assert metric.ranked_among(total) == pytest.approx((labels >= 0).sum(axis=1).mean())
    return found


def ranks(scores: np.ndarray, labels: np.ndarray) -> list[list[float]]:
    """Return the ranks of each node's edges, one by one."""
    found = []
    for row, of_row in zip(scores, labels, strict=True):
        others = row[of_row >= 0]
        found.append(
            [
                1 + np.sum(others > score) + (np.sum(others == score) - 1) / 2
                for score in row[of_row == 1]
            ]
        )
    return found


@pytest.mark.parametrize("most", [1, 5, 100])
def test_gain_is_that_of_scikit_learn(most: int) -> None:
    scores, labels = made(most, ties=False)
    expected = np.mean(
        [
            ndcg_score([(of_row[of_row >= 0])], [row[of_row >= 0]], k=most)
            for row, of_row in zip(scores, labels, strict=True)
        ]
    )
    assert value(f"node-ndcg:{most}", scores, labels) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", ["node-hits:4", "node-ndcg:4"])
def test_equal_scores_stand_in_any_order_alike(name: str) -> None:
    scores, labels = made(7, ties=True)
    rng = np.random.default_rng(0)
    drawn = [value(name, scores + 1e-6 * rng.random(scores.shape), labels) for _ in range(400)]
    spread = np.std(drawn) / np.sqrt(len(drawn))
    assert value(name, scores, labels) == pytest.approx(np.mean(drawn), abs=5 * spread + 1e-12)
    assert spread > 0


def test_hits_and_first_ranks_are_those_counted_one_by_one() -> None:
    scores, labels = made(7, ties=False)
    firsts = np.array([min(of_node) for of_node in ranks(scores, labels)])
    assert value("node-hits:4", scores, labels) == pytest.approx(np.mean(firsts <= 4))
    assert value("node-mrr", scores, labels) == pytest.approx(np.mean(1 / firsts))


def test_scores_that_say_nothing_find_by_chance() -> None:
    labels = np.zeros((3, 9), dtype=np.int64)
    labels[:, 4:6] = 1
    scores = np.zeros((3, 9))
    assert value("node-hits:9", scores, labels) == 1
    assert value("node-hits:1", scores, labels) == pytest.approx(2 / 9)
    assert value("node-hits:3", scores, labels) == pytest.approx(1 - 35 / 84)
    assert value("node-mrr", scores, labels) == pytest.approx(1 / 5)


def test_what_is_no_candidate_takes_no_rank() -> None:
    scores = np.array([[3.0, 2.0, 1.0]])
    assert value("node-mrr", scores, np.array([[0, 1, 0]])) == 0.5
    assert value("node-mrr", scores, np.array([[-1, 1, 0]])) == 1.0
