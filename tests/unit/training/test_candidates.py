"""What else a stage is trained as: which weights it holds, and where it is tried."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from retexo_fl.config import make_config
from retexo_fl.layers.base import LayerShape, RowBatch
from retexo_fl.layers.named import layer_class
from retexo_fl.training.candidates import CANDIDATES, candidates_of, further_rounds, starts_of
from retexo_fl.training.selection import Score
from retexo_fl.training.stage_model import FlatParameters, ModelShape, StageModel, initial_weights

NO_OWN, FEW = CANDIDATES["no own rows"], CANDIDATES["few blocks"]
SHAPE = ModelShape(
    model="sage",
    layers=2,
    inputs=12,
    hidden=8,
    heads=2,
    classes=3,
    dtype="float64",
    features_before_basis=12,
    basis_of_sums=True,
)


def config_of(**keys: Any) -> Any:
    return make_config({"candidates": "auto", "model": "sage", **keys})


def outputs(shape: ModelShape, stage: int, weights: np.ndarray, own_times: float) -> torch.Tensor:
    """Return what a stage makes of some nodes, whose own rows are multiplied by a number."""
    model = StageModel(shape, stage)
    FlatParameters(model).bind(weights)
    width = model.layer.shape.inputs
    sums = 2 if shape.model.startswith("dir-") else 1
    drawn = np.random.default_rng(0).normal(size=(5, (1 + sums) * width))
    drawn[:, :width] *= own_times
    batch = RowBatch(rows=torch.from_numpy(drawn), hashes=np.arange(5, dtype=np.uint64))
    found: torch.Tensor = model.layer(batch, None).detach()
    return found


@pytest.mark.parametrize("model", ["sage", "gin", "dir-gcn", "dir-sage", "dir-gin"])
def test_the_last_layer_without_own_rows_does_not_read_them(model: str) -> None:
    shape = replace(SHAPE, model=model)
    assert NO_OWN.is_of(shape, 1)
    as_it_is = initial_weights(shape, 1, seed=0)
    fixed = NO_OWN.fixed(shape, 1)
    without = fixed.set_in(as_it_is)
    assert not torch.equal(outputs(shape, 1, as_it_is, 2.0), outputs(shape, 1, as_it_is, 1.0))
    torch.testing.assert_close(outputs(shape, 1, without, 2.0), outputs(shape, 1, without, 1.0))
    # All others are what they were.
    np.testing.assert_array_equal(without[~fixed.places], as_it_is[~fixed.places])
    update = np.ones(len(as_it_is))
    np.testing.assert_array_equal(fixed.left_out_of(update), ~fixed.places)


@pytest.mark.parametrize("model", ["sage-pool", "dir-gat", "gine"])
def test_other_layers_say_by_which_weights_they_read_own_rows(model: str) -> None:
    shape = LayerShape(inputs=4, outputs=3, hidden=8, heads=1, edge_features=2)
    ((weights, value),) = layer_class(model)(shape).own_weights()
    assert (tuple(weights.shape), value) in {((4, 3), 0.0), ((1,), -1.0)}


@pytest.mark.parametrize("model", ["gcn", "gat"])
def test_layers_that_read_no_own_row_apart_are_not_tried_without(model: str) -> None:
    assert not NO_OWN.is_of(replace(SHAPE, model=model), 1)


def test_few_blocks_leave_out_columns_of_own_rows_and_of_sums() -> None:
    fixed = FEW.fixed(SHAPE, 0)
    weight = fixed.places[: 2 * 12 * 8].reshape(2, 12, 8)
    assert weight[:, 9:].all()
    assert not weight[:, :9].any()
    assert not fixed.places[2 * 12 * 8 :].any()
    assert not fixed.values.any()


def test_blocks_are_those_of_which_nothing_moves() -> None:
    shape = replace(SHAPE, inputs=40, features_before_basis=40, hidden=64)
    fixed = FEW.fixed(shape, 0)
    held = {block for block in range(20) if fixed.places[256 * block : 256 * block + 256].all()}
    assert {*fixed.blocks.tolist()} == held
    # Of 40 columns 9 are read: in both halves blocks of four rows beyond them, but for shared ones.
    assert len(held) == 14


def test_each_is_tried_where_it_can_be() -> None:
    config = config_of()
    assert candidates_of(config, SHAPE, 0) == (FEW,)
    assert candidates_of(config, SHAPE, 1) == (NO_OWN,)
    assert candidates_of(config_of(candidates="own-row"), SHAPE, 0) == ()
    assert candidates_of(config_of(candidates="few-blocks"), SHAPE, 1) == ()
    # A basis that is not the whole space; no basis; few features.
    for shape in (
        replace(SHAPE, features_before_basis=13),
        replace(SHAPE, features_before_basis=0),
        replace(SHAPE, inputs=9, features_before_basis=9),
        replace(SHAPE, model="gcn"),
        replace(SHAPE, model="gin"),
    ):
        assert candidates_of(config, shape, 0) == ()
    # A last layer that is the first reads features, which have seen no label.
    assert candidates_of(config, replace(SHAPE, layers=1), 0) == (FEW,)


@pytest.mark.parametrize(
    "keys",
    [
        {"candidates": "none"},
        {"local-steps": 2},
        {"algorithm": "standard"},
        {"task": "links"},
        {"task": "regression"},
    ],
)
def test_nothing_is_tried_where_validation_cannot_choose(keys: dict[str, Any]) -> None:
    config = config_of(**keys)
    assert not config.has_candidates
    assert further_rounds(config, SHAPE) == (0,) * len(config.stage_rounds)


def test_further_rounds_are_as_many_again() -> None:
    assert further_rounds(config_of(rounds=7, **{"last-rounds": 9}), SHAPE) == (7, 9)


def score(correct: int, *, train: float | None = None, **more: Any) -> Score:
    return Score(count=1000, correct=correct, loss_sum=1.0, train_accuracy=train, **more)


@pytest.mark.parametrize(
    ("before", "pays"),
    [
        (score(677, train=0.975), True),
        (score(870, train=0.9), False),
        (score(677), False),
        (Score(count=0, correct=0, loss_sum=0.0, train_accuracy=0.975), False),
    ],
)
def test_own_rows_are_left_out_where_the_layer_before_fits_its_train_nodes_better(
    before: Score, pays: bool
) -> None:
    assert NO_OWN.may_pay(score(677, train=0.975).gap, before.gap) is pays


@pytest.mark.parametrize(
    ("own", "pays"),
    [
        (score(620, train=0.9), True),
        (score(980, train=1.0), False),
        (score(780, train=0.75), False),
        (score(620), False),
    ],
)
def test_few_blocks_are_tried_where_the_layer_as_it_is_fits_noise(own: Score, pays: bool) -> None:
    assert FEW.may_pay(own.gap, -math.inf) is pays


def test_a_stage_starts_as_something_else_by_its_fixed_weights() -> None:
    first = initial_weights(SHAPE, 0, seed=0)
    (few,) = starts_of(config_of(), SHAPE, 0, first)
    np.testing.assert_array_equal(few, FEW.fixed(SHAPE, 0).set_in(first))
    assert not [*starts_of(config_of(candidates="none"), SHAPE, 0, first)]
