from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.linear_model import Ridge

from retexo_fl.training.ridge import (
    fit,
    gram_sums,
    gram_values,
    judged_sums,
    judged_values,
    validated_fit,
)

WIDTH, CLASSES = 6, 3


@pytest.fixture
def data() -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(3)
    labels = draw.integers(0, CLASSES, 90)
    rows = draw.normal(size=(90, WIDTH)) @ draw.normal(size=(WIDTH, WIDTH)) + 5.0
    rows[:, :CLASSES] += 1.5 * np.eye(CLASSES)[labels]
    return rows, labels


def sums_of(rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return gram_sums(rows, labels, CLASSES)


def test_weights_are_those_of_the_regression_on_all_rows(
    data: tuple[np.ndarray, np.ndarray],
) -> None:
    rows, labels = data
    found = fit(sums_of(rows, labels), width=WIDTH, classes=CLASSES)
    alpha = found.penalty * float(np.var(rows, axis=0).sum()) * len(rows) / WIDTH
    reference = Ridge(alpha=alpha, solver="svd").fit(rows, np.eye(CLASSES)[labels])
    assert np.allclose(found.weight, reference.coef_.T, atol=1e-8)
    assert np.allclose(found.bias, reference.intercept_, atol=1e-8)


# With few rows the mean's own degree of freedom decides.
@pytest.mark.parametrize("count", [12, 90])
def test_the_penalty_has_the_least_cross_validation(
    data: tuple[np.ndarray, np.ndarray], count: int
) -> None:
    rows, labels = data[0][:count], data[1][:count]
    found = fit(sums_of(rows, labels), width=WIDTH, classes=CLASSES)
    about = rows - rows.mean(axis=0)
    targets = np.eye(CLASSES)[labels]
    scale = float((about**2).sum()) / WIDTH

    def validation(penalty: float) -> float:
        # Written out: the hat matrix of all rows, with the mean as one more free direction.
        inner = about.T @ about + penalty * scale * np.eye(WIDTH)
        hat = about @ np.linalg.solve(inner, about.T) + 1 / len(rows)
        residuals = targets - hat @ targets
        return float((residuals**2).sum() / (1 - np.trace(hat) / len(rows)) ** 2)

    candidates = [10 ** (step / 4 - 6) for step in range(29)]
    assert found.penalty == min(candidates, key=validation)
    assert found.penalty not in (candidates[0], candidates[-1])


def test_the_validated_penalty_has_the_least_error_on_other_rows(
    data: tuple[np.ndarray, np.ndarray],
) -> None:
    rows, labels = data
    train, judged = (rows[:30], labels[:30]), (rows[30:], labels[30:])
    sums = judged_sums(train, judged, CLASSES)
    assert len(sums) == judged_values(WIDTH, CLASSES)
    best, error = validated_fit(sums, width=WIDTH, classes=CLASSES)
    assert best is not None

    def missed(penalty: float) -> float:
        scale = float(np.var(train[0], axis=0).sum()) * 30 / WIDTH
        found = Ridge(alpha=penalty * scale, solver="svd").fit(train[0], np.eye(CLASSES)[train[1]])
        wrong = found.predict(judged[0]) - np.eye(CLASSES)[judged[1]]
        return float((wrong**2).sum()) / 60

    candidates = [10 ** (step / 4 - 6) for step in range(29)]
    assert best.penalty == min(candidates, key=missed)
    assert error == pytest.approx(missed(best.penalty), rel=1e-9)
    assert validated_fit(
        judged_sums(train, (rows[:0], labels[:0]), CLASSES), width=WIDTH, classes=CLASSES
    ) == (None, None)


def test_parts_add_up_to_the_whole_and_sparse_rows_count_alike(
    data: tuple[np.ndarray, np.ndarray],
) -> None:
    rows, labels = data
    parts = sum(sums_of(rows[some], labels[some]) for some in np.array_split(np.arange(90), 7))
    whole = gram_sums(csr_array(rows), labels, CLASSES)
    assert len(whole) == gram_values(WIDTH, CLASSES) == 28 + 21
    assert np.allclose(parts, whole, rtol=1e-12)
    assert not sums_of(rows[:0], labels[:0]).any()


@pytest.mark.parametrize("count", [1, 2, 5])
def test_few_rows_leave_finite_weights(data: tuple[np.ndarray, np.ndarray], count: int) -> None:
    rows, labels = data
    found = fit(sums_of(rows[:count], labels[:count]), width=WIDTH, classes=CLASSES)
    assert np.isfinite(found.weight).all()
    shares = np.bincount(labels[:count], minlength=CLASSES) / count
    assert np.allclose(rows[:count].mean(axis=0) @ found.weight + found.bias, shares)


def test_rows_that_say_nothing_leave_the_shares_of_the_classes() -> None:
    found = fit(sums_of(np.full((8, WIDTH), 2.0), np.arange(8) % 2), width=WIDTH, classes=CLASSES)
    assert not found.weight.any()
    assert found.bias.tolist() == [0.5, 0.5, 0.0]
