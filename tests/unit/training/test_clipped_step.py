"""Clipped gradients equal a loop over train nodes by automatic differentiation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from retexo_fl.layers.dropout import KeyedDropout
from retexo_fl.training import linear_step
from retexo_fl.training.layer_trainer import LayerTrainer, NodeSets
from retexo_fl.training.stage_model import ModelShape, initial_weights
from tests.support.layer_contract import NODES, WIDTH, whole_input

SHAPE = ModelShape(
    model="sage", layers=2, inputs=WIDTH, hidden=6, heads=2, classes=3, dtype="float64"
)
NODE_SETS = NodeSets(
    train=np.array([0, 2, 3, 5, 8, 9]),
    validation=np.array([1, 4, 7]),
    test=np.array([6]),
    labels=np.arange(NODES) % 3,
)


def weights_of(shape: ModelShape, scale: float = 0.5) -> np.ndarray:
    size = len(initial_weights(shape, 0, seed=0))
    return np.random.default_rng(4).normal(scale=scale, size=size)


def gradient_of(
    shape: ModelShape, nodes: NodeSets, weights: np.ndarray, *, sparse: bool, rate: float
) -> np.ndarray:
    """Return the gradient of some nodes by the step without clipping."""
    trainer = LayerTrainer(shape, 0, whole_input(5, sparse=sparse), nodes, seed=0)
    return trainer.update(weights, round_number=2, dropout=rate).update_sum


def clipped(
    shape: ModelShape,
    nodes: NodeSets,
    weights: np.ndarray,
    clip: float,
    *,
    sparse: bool = False,
    rate: float = 0.0,
) -> np.ndarray:
    inputs = whole_input(5, sparse=sparse)
    trainer = LayerTrainer(shape, 0, inputs, nodes, seed=0, clip=clip)
    update = trainer.update(weights, round_number=2, dropout=rate)
    assert update.train.count == len(nodes.train)
    # Of train nodes nothing else leaves.
    assert update.train.loss_sum == update.train.correct == 0
    assert update.validation.count == len(nodes.validation)
    return update.update_sum


@pytest.mark.parametrize("height", [1, 2, 10**6])
@pytest.mark.parametrize("rate", [0.0, 0.4])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("model", ["gcn", "sage"])
def test_it_equals_a_loop_over_nodes(
    monkeypatch: pytest.MonkeyPatch,
    model: str,
    layers: int,
    sparse: bool,
    rate: float,
    height: int,
) -> None:
    monkeypatch.setattr(linear_step, "_MOST_DENSE_BYTES", 8 * 14 * height)
    shape = replace(SHAPE, model=model, layers=layers)
    weights = weights_of(shape)
    single = [
        gradient_of(shape, replace(NODE_SETS, train=node), weights, sparse=sparse, rate=rate)
        for node in NODE_SETS.train[:, None]
    ]
    norms = np.linalg.norm(single, axis=1)
    clip = float(np.median(norms))
    assert norms.min() < clip < norms.max()
    expected = sum(one * min(1, clip / norm) for one, norm in zip(single, norms, strict=True))
    found = clipped(shape, NODE_SETS, weights, clip, sparse=sparse, rate=rate)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("scale", [0.1, 3.0, 1e4])
def test_no_node_changes_the_sum_by_more_than_the_bound(scale: float) -> None:
    weights = weights_of(SHAPE, scale)
    whole = clipped(SHAPE, NODE_SETS, weights, 0.25)
    for at in range(len(NODE_SETS.train)):
        others = replace(NODE_SETS, train=np.delete(NODE_SETS.train, at))
        assert np.linalg.norm(whole - clipped(SHAPE, others, weights, 0.25)) <= 0.25


def test_a_gradient_that_is_not_finite_adds_nothing() -> None:
    weights = weights_of(SHAPE)
    weights[:] = 1e200
    found = clipped(SHAPE, NODE_SETS, weights, 1.0)
    assert np.isfinite(found).all()


def test_without_train_nodes_there_are_zeros() -> None:
    nodes = replace(NODE_SETS, train=NODE_SETS.train[:0])
    assert not clipped(SHAPE, nodes, weights_of(SHAPE), 1.0).any()


def test_dropout_is_that_of_the_round() -> None:
    inputs = whole_input(5)
    found = []
    for round_number in (1, 2):
        trainer = LayerTrainer(SHAPE, 0, inputs, NODE_SETS, seed=0, clip=1.0)
        place = KeyedDropout(rate=0.5, seed=0, stage=0, round=round_number)
        gradient = trainer._sums(weights_of(SHAPE), place).gradient_sum
        assert gradient is not None
        found.append(gradient)
    assert not np.array_equal(found[0], found[1])
