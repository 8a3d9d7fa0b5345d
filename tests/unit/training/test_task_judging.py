"""Losses and metrics of several labels and of numbers, against PyTorch and scikit-learn."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn import metrics as reference

from retexo_fl.config import make_config
from retexo_fl.training.judging import count_right, report_sums
from retexo_fl.training.label_facts import MeanAndScale, classes_by_use
from retexo_fl.training.losses import check_loss, make_label_loss
from retexo_fl.training.metrics import make_metric, metric_sums, metric_value
from retexo_fl.training.recipe import Objective, Recipe, objective_of

MULTI, NUMBERS = "multi-label", "regression"


def labels_and_logits(nodes: int = 400) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (R, 3) labels, of which the last column has none unknown, and logits."""
    rng = np.random.default_rng(2)
    labels = (rng.random((nodes, 3)) < [0.5, 0.2, 0.05]).astype(np.int64)
    logits = rng.normal(size=labels.shape) + 2 * labels - 1
    labels[rng.random(labels.shape) < [0.2, 0.1, 0.0]] = -1
    return torch.from_numpy(labels), torch.from_numpy(logits)


def numbers_and_outputs() -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(2)
    numbers = rng.normal(2005, 3, 300)
    return torch.from_numpy(numbers), torch.from_numpy(numbers[:, None] + rng.normal(size=(300, 1)))


def objective(**keys: str) -> Objective:
    return objective_of(make_config(keys))


def value_of(
    name: str,
    task: str,
    outputs: torch.Tensor,
    labels: torch.Tensor,
    facts: tuple[float, ...] = (),
) -> float | None:
    """Return a metric of nodes that three clients share."""
    metric = objective(task=task, metric=name).metric(facts)
    assert metric is not None
    parts = [
        metric_sums(metric, outputs[rows], labels[rows])
        for rows in torch.arange(len(labels)).tensor_split(3)
    ]
    assert {len(part) for part in parts} == {metric.length(outputs.shape[1])}
    return metric_value(metric, np.sum(parts, axis=0))


# ---- several labels -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "score"),
    [
        ("roc-auc", reference.roc_auc_score),
        ("average-precision", reference.average_precision_score),
    ],
)
def test_rankings_of_labels_are_of_the_known_ones(name: str, score: Callable[..., float]) -> None:
    labels, logits = labels_and_logits()
    expected = np.mean(
        [
            score(y[y >= 0].numpy(), z[y >= 0].numpy())
            for y, z in zip(labels.T, logits.T, strict=True)
        ]
    )
    assert value_of(name, MULTI, logits, labels) == pytest.approx(expected, abs=2e-3)


def test_two_labels_are_two_rankings_and_two_classes_are_one() -> None:
    labels, logits = labels_and_logits()
    ranked = value_of("roc-auc", MULTI, logits[:, :2], labels[:, :2])
    alone = [value_of("roc-auc", MULTI, logits[:, c, None], labels[:, c, None]) for c in (0, 1)]
    assert ranked == pytest.approx(np.mean([each for each in alone if each is not None]))


def test_metrics_of_labels_are_those_of_scikit_learn() -> None:
    labels, logits = labels_and_logits()
    found = []
    for label, (y, z) in enumerate(zip(labels.T, logits.T, strict=True)):
        truth, predicted = y[y >= 0].numpy(), (z > 0)[y >= 0].numpy()
        for name, score in (
            ("f1", reference.f1_score),
            ("recall", reference.recall_score),
            ("precision", reference.precision_score),
        ):
            expected = score(truth, predicted)
            assert value_of(f"{name}:{label}", MULTI, logits, labels) == pytest.approx(expected)
        found.append(reference.f1_score(truth, predicted))
    assert value_of("macro-f1", MULTI, logits, labels) == pytest.approx(np.mean(found))
    known = labels >= 0
    each = F.binary_cross_entropy_with_logits(logits, (labels == 1).double(), reduction="none")
    assert value_of("log-loss", MULTI, logits, labels) == pytest.approx(each[known].mean().item())


@pytest.mark.parametrize("name", ["log-loss", "macro-f1", "roc-auc", "f1:0"])
def test_labels_that_nobody_knows_leave_a_metric_undefined(name: str) -> None:
    expected = 0 if name == "f1:0" else None
    assert value_of(name, MULTI, torch.ones(4, 2), torch.full((4, 2), -1)) == expected


@pytest.mark.parametrize("name", ["macro-f1", "roc-auc"])
def test_labels_that_apply_to_no_node_leave_a_metric_undefined(name: str) -> None:
    """Of rare labels a client's few validation nodes may have none, and none is predicted."""
    none = torch.zeros(4, 2, dtype=torch.int64)
    assert value_of(name, MULTI, -torch.ones(4, 2), none) is None


def test_a_node_is_right_where_all_its_known_labels_are() -> None:
    labels = torch.tensor([[1, 0], [1, -1], [-1, -1], [1, 1]])
    logits = torch.tensor([[1.0, -1.0], [1.0, 1.0], [0.0, 0.0], [1.0, -1.0]])
    assert count_right(logits, labels) == 3


@pytest.mark.parametrize("weights", [(), (2.0, 3.0, 20.0)])
def test_cross_entropy_of_labels_is_that_of_pytorch(weights: tuple[float, ...]) -> None:
    labels, logits = labels_and_logits()
    factors = torch.tensor(weights, dtype=torch.float64) if weights else None
    each = F.binary_cross_entropy_with_logits(
        logits, (labels == 1).double(), pos_weight=factors, reduction="none"
    )
    loss = make_label_loss("cross-entropy", weights)
    assert loss(logits, labels).item() == pytest.approx(each[labels >= 0].sum().item() / 3)
    check_loss(loss, logits, labels)


@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_focal_loss_of_labels_is_that_of_its_paper(gamma: float) -> None:
    labels, logits = labels_and_logits()
    share = torch.sigmoid(logits)
    share = torch.where(labels == 1, share, 1 - share)[labels >= 0]
    expected = -((1 - share) ** gamma * share.log()).sum() / 3
    loss = make_label_loss(f"focal:{gamma}")
    assert loss(logits, labels).item() == pytest.approx(expected.item())
    leaf = logits[:9].requires_grad_()
    assert torch.autograd.gradcheck(lambda rows: loss(rows, labels[:9]), (leaf,))


def test_balanced_labels_weigh_positives_by_how_rare_they_are() -> None:
    label_facts = objective(task=MULTI, **{"class-weights": "balanced"}).label_facts
    labels = np.array([[1, 0], [0, 0], [0, -1], [0, 0]], np.int8)
    sums = label_facts.sums(labels, 2)
    assert list(sums) == [1, 0, 3, 3]
    assert len(sums) == label_facts.num_sums(2)
    facts = label_facts.of_sums(np.array(sums), 4)
    assert facts == (3.0, 1.0)
    label_facts.check(facts, 2)


# ---- numbers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "score"),
    [
        ("rmse", lambda y, p: math.sqrt(reference.mean_squared_error(y, p))),
        ("mae", reference.mean_absolute_error),
        ("r2", reference.r2_score),
    ],
)
@pytest.mark.parametrize(
    ("offset", "spread"),
    [
        (0, 1),
        (1e3, 1),
        (1e6, 1),
        (1e9, 1),
        (-1e9, 1),
        (0, 1e-6),
        (1, 1e-6),
        (0, 1e30),
        (1e30, 1e29),
    ],
)
def test_errors_are_those_of_scikit_learn(
    name: str, score: Callable[..., float], offset: float, spread: float
) -> None:
    numbers, outputs = numbers_and_outputs()
    standard = (numbers - numbers.mean()) / numbers.std()
    outputs = (outputs - numbers.mean()) / numbers.std()
    numbers, outputs = offset + spread * standard, offset + spread * outputs
    expected = score(numbers.numpy(), outputs[:, 0].numpy())
    label_facts = MeanAndScale()
    facts = label_facts.of_sums(np.array(label_facts.sums(numbers.numpy(), 1)), len(numbers))
    assert value_of(name, NUMBERS, outputs, numbers, facts) == pytest.approx(expected, rel=1e-9)
    # Nodes that lie far from those that were trained on.
    facts = (facts[0] - 1e3 * facts[1], facts[1])
    assert value_of(name, NUMBERS, outputs, numbers, facts) == pytest.approx(expected, rel=1e-6)
    metric = make_metric(name)
    assert metric is not None
    assert metric.lower_is_better is (name != "r2")


@pytest.mark.parametrize("number", [3.7, 0.1, 0.0, -1e6 / 3, 1e-9])
def test_equal_numbers_have_no_r2(number: float) -> None:
    """Sums of their squares leave a rounding of either sign."""
    numbers = torch.full((13,), number, dtype=torch.float64)
    assert value_of("r2", NUMBERS, numbers[:, None] + 1, numbers) is None


def test_a_loss_of_numbers_and_their_answers_are_in_units_of_the_train_nodes() -> None:
    numbers, outputs = numbers_and_outputs()
    config, label_facts = make_config({"task": NUMBERS}), MeanAndScale()
    parts = [label_facts.sums(part, 1) for part in np.array_split(numbers.numpy(), 4)]
    facts = label_facts.of_sums(np.sum(parts, axis=0), len(numbers))
    assert facts == pytest.approx((numbers.mean().item(), numbers.std(correction=0).item()), 1e-12)
    recipe = Recipe.of(config, facts)
    standard = (outputs - facts[0]) / facts[1]
    errors = ((outputs[:, 0] - numbers) / facts[1]) ** 2
    assert recipe.loss(standard, numbers).item() == pytest.approx(errors.sum().item())
    torch.testing.assert_close(recipe.in_units(standard), outputs)


def test_equal_numbers_are_scaled_by_one() -> None:
    label_facts = MeanAndScale()
    sums = np.array(label_facts.sums(np.full(7, 0.1), 1))
    assert label_facts.of_sums(sums, 7) == (0.1, 1.0)


@pytest.mark.parametrize(
    "numbers",
    [
        1e9 + np.random.default_rng(0).normal(size=101) * 1e-3,
        -1e9 + np.random.default_rng(0).normal(size=101),
        np.random.default_rng(0).normal(size=101) * 1e-30,
        np.array([np.finfo(np.float32).max, -np.finfo(np.float32).max, 1e-45, 0.0, -3.0]),
        np.zeros(4),
    ],
    ids=["far", "far below", "tiny", "all of float32", "zeros"],
)
def test_mean_and_deviation_are_exact_whoever_adds_up_what(numbers: np.ndarray) -> None:
    label_facts = MeanAndScale()
    exact = [Fraction(number) for number in numbers.tolist()]
    mean = sum(exact, Fraction()) / len(exact)
    variance = sum(((number - mean) ** 2 for number in exact), Fraction()) / len(exact)
    rng = np.random.default_rng(1)
    found = set()
    for clients in (1, 3, len(numbers)):
        parts = np.array_split(rng.permutation(numbers), clients)
        sums = [label_facts.sums(part, 1) for part in parts]
        assert {len(one) for one in sums} == {label_facts.num_sums(1)}
        found.add(label_facts.of_sums(np.sum(sums, axis=0), len(numbers)))
    ((center, scale),) = found
    assert center == float(mean)
    assert scale == pytest.approx(math.sqrt(variance) or 1.0, rel=1e-12)


# ---- what a report is made of -------------------------------------------------------------------


def test_sums_of_a_report_are_as_many_as_their_task_has() -> None:
    labels, logits = labels_and_logits()
    numbers, outputs = numbers_and_outputs()
    for task, given, truth in (
        ("classes", logits, labels[:, 0].clamp(min=0)),
        (MULTI, logits, labels),
        (NUMBERS, outputs, numbers),
    ):
        assert len(report_sums(given, truth)) == objective(task=task).report_length(given.shape[1])


def test_uses_of_labels_are_of_nodes_that_have_them() -> None:
    labels = np.array([[1, 0], [0, -1]], np.int8)
    assert classes_by_use({"train": labels, "validation": labels[1:], "test": labels}, 2) == (5, 0)
    none = np.zeros(0)
    assert classes_by_use({"train": np.ones(2), "validation": none, "test": none}, 1) == (1,)
