"""The built-in metrics against scikit-learn, over nodes that are split in any way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics as reference

from retexo_fl.client.part import node_sets
from retexo_fl.client.preparation import make_parts
from retexo_fl.client.stage_rows import stage_input
from retexo_fl.federation.trained_model import read_trained_model
from retexo_fl.graph import BoundaryPlan
from retexo_fl.training.layer_trainer import LayerTrainer
from retexo_fl.training.metrics import (
    _COUNTED,
    _ERRORS,
    _NAMED,
    _RANKINGS,
    BINS,
    REACH,
    make_metric,
    metric_sums,
    metric_value,
)
from tests.support.data import data_dir
from tests.support.runs import train

Rng = np.random.Generator


def value_of(name: str, logits: torch.Tensor, labels: torch.Tensor, parts: int = 3) -> float | None:
    """Return a metric of nodes that so many clients share."""
    metric = make_metric(name)
    assert metric is not None
    classes = logits.shape[1]
    assert metric.unfit_for(classes) is None
    sums = [
        metric_sums(metric, logits[rows], labels[rows])
        for rows in torch.arange(len(labels)).tensor_split(parts)
    ]
    assert {len(each) for each in sums} == {metric.length(classes)}
    return metric_value(metric, np.sum(sums, axis=0))


def drawn(classes: int, nodes: int = 500, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, nodes)
    logits = rng.normal(size=(nodes, classes)) + 1.5 * np.eye(classes)[labels]
    return torch.from_numpy(logits.astype(np.float32)), torch.from_numpy(labels)


def probabilities(logits: torch.Tensor) -> np.ndarray:
    found: np.ndarray = torch.softmax(logits.double(), dim=1).numpy()
    return found


def _of_class(score: Callable[..., Any], target: int) -> Callable[..., Any]:
    return lambda labels, found: score(labels, found, labels=[target], average=None)[0]


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize(
    ("name", "score"),
    [
        ("balanced-accuracy", reference.balanced_accuracy_score),
        ("macro-f1", lambda y, p: reference.f1_score(y, p, average="macro")),
        *((f"f1:{c}", _of_class(reference.f1_score, c)) for c in (0, 1)),
        *((f"recall:{c}", _of_class(reference.recall_score, c)) for c in (0, 1)),
        *((f"precision:{c}", _of_class(reference.precision_score, c)) for c in (0, 1)),
    ],
)
def test_metrics_of_classes_are_those_of_scikit_learn(
    name: str, score: Callable[..., Any], classes: int
) -> None:
    logits, labels = drawn(classes)
    expected = score(labels.numpy(), logits.argmax(1).numpy())
    assert 0 < expected < 1
    assert value_of(name, logits, labels) == pytest.approx(expected, rel=1e-12)


def test_classes_that_do_not_occur_leave_means_as_scikit_learn_has_them() -> None:
    logits, labels = drawn(5)
    few, seen = logits[labels < 3], labels[labels < 3]
    predicted = few.argmax(1).numpy()
    assert {3, 4} & {*predicted.tolist()}
    with pytest.warns(UserWarning, match="y_pred contains classes not in y_true"):
        balanced = reference.balanced_accuracy_score(seen.numpy(), predicted)
    assert value_of("balanced-accuracy", few, seen) == pytest.approx(balanced)
    macro = reference.f1_score(seen.numpy(), predicted, average="macro")
    assert value_of("macro-f1", few, seen) == pytest.approx(macro)
    # Of one class alone, which is not there and which no node is taken for, it is 0.
    for name in ("f1:1", "recall:1", "precision:1"):
        assert value_of(name, torch.eye(2)[[0, 0]], torch.tensor([0, 0])) == 0


@pytest.mark.parametrize("classes", [2, 5])
def test_log_loss_is_that_of_scikit_learn_and_less_is_better(classes: int) -> None:
    logits, labels = drawn(classes)
    expected = reference.log_loss(labels.numpy(), probabilities(logits))
    assert value_of("log-loss", logits, labels) == pytest.approx(expected, rel=1e-9)
    metric = make_metric("log-loss")
    assert metric is not None
    assert metric.lower_is_better


# ---- rankings ------------------------------------------------------------------------------------


def exact(name: str, logits: torch.Tensor, labels: torch.Tensor) -> float:
    """Return what scikit-learn makes of the scores as they are."""
    if logits.shape[1] == 2:
        scores: np.ndarray = (logits[:, 1].double() - logits[:, 0].double()).numpy()
        truth = labels.numpy()
    else:
        scores = probabilities(logits)
        truth = np.eye(logits.shape[1])[labels.numpy()]
    score = reference.roc_auc_score if name == "roc-auc" else reference.average_precision_score
    return float(score(truth, scores, average="macro"))


@pytest.mark.parametrize("name", ["roc-auc", "average-precision"])
def test_scores_at_the_edges_of_bins_are_ranked_exactly(name: str) -> None:
    """Also equal ones, and those at both ends."""
    rng = np.random.default_rng(1)
    edges = -REACH + 2 * REACH / BINS * rng.integers(0, BINS, 3000)
    edges[:3] = -REACH, -REACH, REACH - 2 * REACH / BINS
    labels = torch.from_numpy((edges + rng.normal(0, 4, len(edges)) > 6).astype(np.int64))
    logits = torch.stack([torch.zeros(len(edges)), torch.from_numpy(edges)], dim=1)
    assert 0.001 < exact(name, logits, labels) < 0.999
    found = value_of(name, logits, labels)
    assert found == pytest.approx(exact(name, logits, labels), rel=1e-12)


@pytest.mark.parametrize("name", ["roc-auc", "average-precision"])
@pytest.mark.parametrize("seed", range(5))
def test_one_positive_in_a_hundred_is_ranked_to_a_thousandth(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = torch.from_numpy((np.arange(20_000) % 100 == 0).astype(np.int64))
    scores = rng.normal(-4.6, 1.5, len(labels)) + 3 * labels.numpy()
    logits = torch.from_numpy(np.stack([-scores / 2, scores / 2], axis=1).astype(np.float32))
    found = value_of(name, logits, labels)
    assert found == pytest.approx(exact(name, logits, labels), abs=1e-3)
    assert abs(exact(name, logits, labels) - (found or 0)) <= _bound(name, logits, labels)


@pytest.mark.parametrize("name", ["roc-auc", "average-precision"])
def test_several_classes_are_ranked_one_against_the_rest(name: str) -> None:
    logits, labels = drawn(5, nodes=3000)
    assert value_of(name, logits, labels) == pytest.approx(exact(name, logits, labels), abs=1e-3)


@pytest.mark.parametrize("name", ["roc-auc", "average-precision"])
def test_scores_of_an_untrained_model_stay_within_the_bound(name: str) -> None:
    """All within a few bins: the documented bound holds where a thousandth does not."""
    rng = np.random.default_rng(3)
    labels = torch.from_numpy((rng.random(2000) < 0.1).astype(np.int64))
    scores = 0.01 * rng.normal(size=2000) + 0.005 * labels.numpy()
    logits = torch.from_numpy(np.stack([np.zeros(2000), scores], axis=1))
    off = abs(exact(name, logits, labels) - (value_of(name, logits, labels) or 0))
    assert 1e-3 < off <= _bound(name, logits, labels)


def test_scores_beyond_the_bins_count_in_the_outermost() -> None:
    metric = make_metric("roc-auc")
    assert metric is not None
    scores = torch.tensor([-1e9, -REACH, REACH, 1e9])
    logits = torch.stack([torch.zeros(4), scores], dim=1)
    negatives, positives = metric_sums(metric, logits, torch.tensor([0, 1, 0, 1])).reshape(2, BINS)
    for counts in (negatives, positives):
        assert np.flatnonzero(counts).tolist() == [0, BINS - 1]


def test_nodes_of_one_class_have_no_ranking() -> None:
    logits = drawn(2, nodes=20)[0]
    for name in ("roc-auc", "average-precision"):
        assert value_of(name, logits, torch.zeros(20, dtype=torch.int64)) is None


@pytest.mark.real_graphs
@pytest.mark.parametrize("name", ["roc-auc", "average-precision"])
def test_tolokers_is_ranked_to_a_thousandth(tmp_path: Path, name: str) -> None:
    """The logits are those of a GraphSAGE trained on it."""
    keys = {"dataset": "tolokers", "data_dir": data_dir(), "split": "random:0.2/0.1/0.7"}
    keys |= {"clients": 1, "layers": 1, "rounds": 20}
    model = read_trained_model(train(tmp_path / "run", **keys))
    (part,) = make_parts(model.config)
    rows = part.features.astype(model.shape.dtype)
    inputs = stage_input(part, BoundaryPlan.from_partition(part), rows, rows[:0], ())
    nodes = node_sets(part)
    logits = LayerTrainer(model.shape, 0, inputs, nodes, seed=0).logits(model.weights[0])
    shown, labels = logits[nodes.test], torch.from_numpy(nodes.labels[nodes.test])
    expected = exact(name, shown, labels)
    assert expected > (0.6 if name == "roc-auc" else 0.3)
    assert value_of(name, shown, labels) == pytest.approx(expected, abs=1e-3)


def _bound(name: str, logits: torch.Tensor, labels: torch.Tensor) -> float:
    """Return how far a ranking of two classes may be off, as its docstring says."""
    metric = make_metric(name)
    assert metric is not None
    negatives, positives = metric_sums(metric, logits, labels).reshape(2, BINS)
    if name == "roc-auc":
        return float(negatives @ positives / (2 * negatives.sum() * positives.sum()))
    right = np.cumsum(positives[::-1])[::-1] - positives
    wrong = np.cumsum(negatives[::-1])[::-1] - negatives
    highest = (right + positives) / np.maximum(right + positives + wrong, 1)
    lowest = (right + 1) / (right + 1 + wrong + negatives)
    return float(positives @ (highest - lowest) / positives.sum())


# ---- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "classes", "fits"),
    [
        ("f1:1", 2, True),
        ("recall:2", 2, False),
        ("precision:7", 7, False),
        ("f1:fraud", 2, False),
        ("roc-auc", 1, False),
        ("average-precision", 64, True),
        ("roc-auc", 65, False),
        ("macro-f1", 1, True),
    ],
)
def test_a_metric_says_which_classes_it_cannot_judge(name: str, classes: int, fits: bool) -> None:
    metric = make_metric(name)
    assert metric is not None
    assert (metric.unfit_for(classes) is None) is fits


@pytest.mark.parametrize("name", [*_NAMED, *_ERRORS, *_RANKINGS, *(f"{n}:1" for n in _COUNTED)])
def test_sums_that_are_counts_are_said_to_be(name: str) -> None:
    """Under masks they take fewer bits, and nothing else may be taken for one."""
    metric = make_metric(name.replace("ndcg:1", "ndcg:3"))
    assert metric is not None
    logits, labels = drawn(2, nodes=300)
    labels[:3] = torch.tensor([1, 0, 0])
    if name in _ERRORS or name in {"mrr", "hits:1"}:
        logits = logits[:, :1]
    if name.startswith("node-"):
        logits, labels = drawn(5, nodes=300)
        labels = torch.nn.functional.one_hot(labels, logits.shape[1])
        # Of equal scores it is a chance.
        logits = logits.round()
    sums = metric.sums(logits, labels[:, None] if name == "hits:1" else labels)
    assert metric.counts is bool(((sums == sums.round()) & (sums >= 0)).all())
