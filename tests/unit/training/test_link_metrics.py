"""Metrics of links against what they are by definition, and against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn import metrics as reference

from retexo_fl.training.metrics import BINS, make_metric, metric_sums, metric_value

_EDGES, _BESIDE = 300, 9


@pytest.fixture(scope="module")
def scored() -> tuple[torch.Tensor, torch.Tensor]:
    """Return scores at edges of bins, and labels, each edge before its pairs."""
    rng = np.random.default_rng(3)
    labels = np.zeros((_EDGES, 1 + _BESIDE), np.int64)
    labels[:, 0] = 1
    scores = np.round((rng.normal(size=labels.shape) + labels) * 128) / 128
    return torch.from_numpy(scores.reshape(-1, 1)), torch.from_numpy(labels.reshape(-1, 1))


def value(name: str, scores: torch.Tensor, labels: torch.Tensor) -> float | None:
    metric = make_metric(name, of_classes=False)
    assert metric is not None
    assert metric.unfit_for(1) is None
    halves = [metric_sums(metric, s, y) for s, y in zip(*_halves(scores, labels), strict=True)]
    assert all(len(sums) == metric.length(1) for sums in halves)
    return metric_value(metric, np.sum(halves, axis=0))


def _halves(*rows: torch.Tensor) -> list[list[torch.Tensor]]:
    place = 100 * (1 + _BESIDE)
    return [[each[:place], each[place:]] for each in rows]


def test_rankings_are_scikit_learns(scored: tuple[torch.Tensor, torch.Tensor]) -> None:
    scores, labels = scored
    flat, wanted = scores.flatten().numpy(), labels.flatten().numpy()
    assert value("roc-auc", scores, labels) == pytest.approx(
        reference.roc_auc_score(wanted, flat), abs=1e-12
    )
    assert value("average-precision", scores, labels) == pytest.approx(
        reference.average_precision_score(wanted, flat), abs=1e-12
    )


@pytest.mark.parametrize("most", [1, 20, 500])
def test_hits_are_edges_above_the_kth_pair(
    scored: tuple[torch.Tensor, torch.Tensor], most: int
) -> None:
    scores, labels = scored
    flat, is_edge = scores.flatten().numpy(), labels.flatten().numpy() == 1
    threshold = np.sort(flat[~is_edge])[-most]
    assert value(f"hits:{most}", scores, labels) == np.mean(flat[is_edge] > threshold)


def test_hits_of_fewer_pairs_are_undefined(scored: tuple[torch.Tensor, torch.Tensor]) -> None:
    assert value(f"hits:{_EDGES * _BESIDE + 1}", *scored) is None
    assert value(f"hits:{_EDGES * _BESIDE}", *scored) is not None
    scores, labels = scored
    assert value("hits:1", scores, torch.zeros_like(labels)) is None
    assert BINS == 4096


def test_reciprocal_ranks_are_of_each_edge_among_its_own_pairs(
    scored: tuple[torch.Tensor, torch.Tensor],
) -> None:
    scores, labels = scored
    table = scores.reshape(_EDGES, 1 + _BESIDE).numpy()
    higher = (table[:, 1:] > table[:, :1]).sum(axis=1)
    equal = (table[:, 1:] == table[:, :1]).sum(axis=1)
    assert value("mrr", scores, labels) == pytest.approx(np.mean(1 / (1 + higher + equal / 2)))
