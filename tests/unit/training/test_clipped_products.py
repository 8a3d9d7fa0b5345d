"""Products to which each node adds the same length: brute force, and what is solved from them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy.sparse import csr_array

from retexo_fl.graph.features import Features
from retexo_fl.training.clipped_products import (
    NOISED_SUM_BITS,
    clipped_direction_sums,
    clipped_label_products,
    clipped_sums,
    clipped_values,
    noised_step,
)
from retexo_fl.training.ridge import noised_fit
from retexo_fl.updates.masked import step_of, steps_changed

CLASSES, WIDTH, NODES = 3, 7, 40
CLIPS = (1e-3, 0.5, 1.0, 30.0)
NOBODY = np.zeros((0, WIDTH)), np.zeros(0, np.int64)


def drawn(seed: int = 0, nodes: int = NODES) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of very different lengths, and labels that they tell."""
    made = np.random.default_rng(seed)
    labels = made.integers(0, CLASSES, nodes)
    rows = made.normal(size=(nodes, WIDTH)) + 3 * np.eye(CLASSES, WIDTH)[labels]
    return rows * 10.0 ** made.integers(-9, 9, (nodes, 1)), labels


def of_train(rows: np.ndarray, labels: np.ndarray, clip: float) -> np.ndarray:
    found = clipped_sums((rows, labels), NOBODY, CLASSES, clip)
    size = clipped_values(rows.shape[1], CLASSES)
    assert len(found) == 2 * size + 1
    assert not found[size:].any()
    return found[:size]


def of_labels(rows: Features, labels: np.ndarray, clip: float) -> np.ndarray:
    return clipped_label_products(rows, labels, CLASSES, clip).reshape(-1)


def of_directions(rows: Features, labels: np.ndarray, clip: float) -> np.ndarray:
    del labels
    directions = np.linalg.qr(np.random.default_rng(5).normal(size=(WIDTH, 2)))[0]
    return clipped_direction_sums(rows, directions, clip).reshape(-1)


SUMS = pytest.mark.parametrize("sums", [of_train, of_labels, of_directions])


@SUMS
@pytest.mark.parametrize("clip", CLIPS)
def test_each_node_adds_the_length_that_the_noise_is_for(
    sums: Callable[..., np.ndarray], clip: float
) -> None:
    rows, labels = drawn()
    whole = sums(rows, labels, clip)
    alone = [sums(rows[[node]], labels[[node]], clip) for node in range(NODES)]
    assert np.linalg.norm(alone, axis=1) == pytest.approx(np.full(NODES, clip), rel=1e-12)
    assert np.sum(alone, axis=0) == pytest.approx(whole, abs=1e-12 * NODES * clip)


@SUMS
@pytest.mark.parametrize("clip", CLIPS)
def test_with_and_without_a_node_numbers_differ_by_no_more_than_is_promised(
    sums: Callable[..., np.ndarray], clip: float
) -> None:
    rows, labels = drawn(1)
    whole = sums(rows, labels, clip)
    unit = noised_step(clip, len(whole)).unit
    assert unit == step_of(clip, len(whole))
    for node in range(NODES):
        others = np.arange(NODES) != node
        changed = np.rint(whole / unit) - np.rint(sums(rows[others], labels[others], clip) / unit)
        length = np.linalg.norm(changed)
        assert 0.98 * clip / unit < length <= steps_changed(clip, len(whole))


@SUMS
def test_a_row_without_a_direction_adds_nothing(sums: Callable[..., np.ndarray]) -> None:
    rows, labels = drawn(2, 4)
    rows[1:] = [[0.0] * WIDTH, [np.nan] * WIDTH, [1.0, np.inf] + [0.0] * (WIDTH - 2)]
    alone = sums(rows[:1], labels[:1], 1.0)
    assert sums(rows, labels, 1.0) == pytest.approx(alone, abs=1e-15)
    rows[0] *= 1e300 / np.abs(rows[0]).max()
    assert np.linalg.norm(sums(rows, labels, 1.0)) == pytest.approx(1.0)


@pytest.mark.parametrize("sums", [of_labels, of_directions])
def test_sparse_rows_are_as_dense_ones(sums: Callable[..., np.ndarray]) -> None:
    rows, labels = drawn(3)
    rows[rows < 0] = 0.0
    rows[4], rows[5, 2] = 0.0, np.nan
    assert sums(csr_array(rows), labels, 0.7) == pytest.approx(sums(rows, labels, 0.7), abs=1e-12)


def test_products_are_those_of_the_scaled_rows() -> None:
    rows, labels = drawn(4)
    found = of_train(rows, labels, 2.0)
    gram = np.zeros((WIDTH, WIDTH))
    gram[np.triu_indices(WIDTH)] = found[: WIDTH * (WIDTH + 1) // 2]
    gram = gram + np.triu(gram, 1).T
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    # What each was scaled to, from the products of rows and labels.
    lengths = [
        np.linalg.norm(of_train(rows[[n]], labels[[n]], 2.0)[-WIDTH * CLASSES :])
        for n in range(NODES)
    ]
    scaled = unit * np.array(lengths)[:, None]
    assert gram == pytest.approx(scaled.T @ scaled)


def test_rings_have_room_for_what_many_nodes_add_up_to() -> None:
    """With the largest noise, of 65 clients with four million train nodes each."""
    for size in (10, 10**6):
        step = noised_step(1.0, size)
        most = 65 * (2**22 * 1.0 / step.unit)
        noise = 16 * 65**0.5 * step_of(1.0, size) ** -1 * 2**13
        assert most + noise < 2 ** (NOISED_SUM_BITS - 1)


# ---- the solution --------------------------------------------------------------------------------


def judged(train: int, validation: int) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
    rows, labels = drawn(7, train + validation)
    sums = clipped_sums(
        (rows[:train], labels[:train]), (rows[train:], labels[train:]), CLASSES, 1.0
    )
    return sums, (rows[train:], labels[train:])


def right(weight: np.ndarray, nodes: tuple[np.ndarray, np.ndarray]) -> float:
    return float(np.mean((nodes[0] @ weight).argmax(axis=1) == nodes[1]))


def test_without_noise_it_is_a_ridge_regression_that_tells_classes() -> None:
    sums, nodes = judged(300, 300)
    found = noised_fit(sums, width=WIDTH, classes=CLASSES, deviation=0.0)
    assert right(found.weight, nodes) > 0.9
    assert not found.bias.any()


def test_however_large_the_noise_is_what_is_solved_is_positive_definite() -> None:
    made, deviation = np.random.default_rng(8), 5.0
    least: list[float] = []
    for _ in range(20):
        sums, _ = judged(30, 30)
        size = clipped_values(WIDTH, CLASSES)
        sums[:size] += made.normal(0, deviation, size)
        # Validation nodes that would have the least penalty there is.
        sums[size : 2 * size] = 0.0
        sums[2 * size - WIDTH * CLASSES : 2 * size] = sums[size - WIDTH * CLASSES : size]
        found = noised_fit(sums, width=WIDTH, classes=CLASSES, deviation=deviation)
        # (G + penalty) W = B of a G that is none: W is no longer than B over the floor.
        products = sums[size - WIDTH * CLASSES : size]
        floor = 0.5 * deviation * WIDTH**0.5
        least.append(float(np.linalg.norm(products) / np.linalg.norm(found.weight)) / floor)
    assert min(least) >= 1 - 1e-9


def test_where_nobody_is_validated_the_penalty_is_the_reach_of_the_noise() -> None:
    sums, nodes = judged(300, 1)
    sums[len(sums) // 2 :] = 0.0
    found = noised_fit(sums, width=WIDTH, classes=CLASSES, deviation=1.0)
    assert right(found.weight, nodes) == 1.0
    trace = sum(sums[at] for at in np.cumsum([0, *range(WIDTH, 1, -1)]))
    assert found.penalty == pytest.approx(2 * WIDTH**0.5 / (trace / WIDTH))
