"""Which of two bases explains labels better: by sums that say what all validation rows do."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from retexo_fl.config import make_config
from retexo_fl.training.basis_choice import (
    choice_errors,
    choice_values,
    probe_blocks,
    probe_width,
)
from retexo_fl.training.ridge import judged_sums
from retexo_fl.training.stage_model import ModelShape

RNG = np.random.default_rng(5)
NODES = 120


def shape_of(
    features: int = 30, classes: int = 2, *, blocks: int = 4, rows: str = "choose"
) -> ModelShape:
    keys = {"basis": "supervised", "basis-rows": rows, "basis-blocks": blocks, "model": "sage"}
    return ModelShape.of(make_config(keys), inputs=features, classes=classes)


def labels_of(kind: str) -> tuple[np.ndarray, int]:
    if kind == "numbers":
        return RNG.normal(size=NODES), 1
    if kind == "several":
        return RNG.integers(-1, 2, (NODES, 3)), 3
    return RNG.integers(0, 2, NODES), 2


@pytest.mark.parametrize("kind", ["classes", "numbers", "several"])
@pytest.mark.parametrize("clients", [1, 4])
def test_errors_are_the_least_of_regressions_on_all_rows(kind: str, clients: int) -> None:
    labels, classes = labels_of(kind)
    shape = shape_of(classes=classes)
    # GraphSAGE reads two halves.
    width = 2 * probe_width(shape)
    targets = labels.astype(float).reshape(NODES, -1)
    if kind == "classes":
        targets = np.eye(2)[labels]
    if kind == "several":
        targets = (labels == 1).astype(float)
    bases = [
        RNG.normal(size=(NODES, width)) + 3.0 * targets @ RNG.normal(size=(targets.shape[1], width))
        for _ in range(2)
    ]
    is_train, owners = np.arange(NODES) < 70, np.arange(NODES) % clients
    sums = np.zeros(choice_values(shape))
    for one in range(clients):
        train, validation = (np.flatnonzero((owners == one) & u) for u in (is_train, ~is_train))
        told = [
            judged_sums(
                (rows[train], labels[train]), (rows[validation], labels[validation]), classes
            )
            for rows in bases
        ]
        sums += np.concatenate(told)

    def least(rows: np.ndarray) -> float:
        scale = float(np.var(rows[is_train], axis=0).sum()) * is_train.sum() / width
        errors = []
        for step in range(29):
            found = Ridge(alpha=scale * 10 ** (step / 4 - 6), solver="svd")
            guessed = found.fit(rows[is_train], targets[is_train]).predict(rows[~is_train])
            missed = (guessed.reshape(-1, targets.shape[1]) - targets[~is_train]) ** 2
            errors.append(float(missed.sum()) / int((~is_train).sum()))
        return min(errors)

    assert choice_errors(sums, shape) == pytest.approx([least(rows) for rows in bases], rel=1e-8)


@pytest.mark.parametrize("lacks", ["train", "validation"])
def test_without_nodes_to_fit_or_to_judge_there_are_no_errors(lacks: str) -> None:
    shape = shape_of()
    rows = RNG.normal(size=(NODES, 2 * probe_width(shape)))
    labels = RNG.integers(0, 2, NODES)
    some, none = (rows, labels), (rows[:0], labels[:0])
    told = judged_sums(*((none, some) if lacks == "train" else (some, none)), 2)
    assert choice_errors(np.concatenate([told, told]), shape) == (None, None)


@pytest.mark.parametrize(
    ("blocks", "features", "compared"),
    # All of the space is the same, whatever rows it is of.
    [(2, 30, 2), (3, 30, 3), (9, 30, 3), (15, 30, 0), (5, 9, 0)],
)
def test_a_few_blocks_are_compared_where_bases_differ(
    blocks: int, features: int, compared: int
) -> None:
    shape = shape_of(features, blocks=blocks)
    assert shape.basis_of_sums
    assert (shape.chooses_basis, probe_blocks(shape)) == (compared > 0, compared)
    assert not shape_of(features, blocks=blocks, rows="sums").chooses_basis
