"""Several local steps: a client's part of federated averaging."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from retexo_fl.errors import TrainingDiverged
from retexo_fl.layers.dropout import KeyedDropout
from retexo_fl.training.layer_trainer import LayerTrainer, NodeSets
from retexo_fl.training.recipe import LocalSteps, Recipe
from retexo_fl.training.stage_model import FlatParameters, ModelShape, StageModel, initial_weights
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
STEPS = LocalSteps(count=4, optimizer="adam", learning_rate=0.05, weight_decay=0.01)


def trainer(local: LocalSteps, model: str = "sage", nodes: NodeSets = NODE_SETS) -> LayerTrainer:
    shape = replace(SHAPE, model=model)
    return LayerTrainer(shape, 0, whole_input(5), nodes, seed=0, recipe=Recipe(local=local))


@pytest.mark.parametrize("model", ["sage", "gat"])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_local_steps_equal_pytorchs_optimizers(model: str, optimizer: str) -> None:
    local = replace(STEPS, optimizer=optimizer)
    start = initial_weights(replace(SHAPE, model=model), 0, seed=1)
    found = trainer(local, model).update(start, round_number=3, dropout=0.3)

    module = StageModel(replace(SHAPE, model=model), 0)
    flat = FlatParameters(module)
    flat.bind(start.copy())
    kind = torch.optim.Adam if optimizer == "adam" else torch.optim.SGD
    judge = kind(module.parameters(), lr=0.05, weight_decay=0.01)
    batch = module.layer.batch(module.layer.prepare(whole_input(5)), NODE_SETS.train)
    labels = torch.from_numpy(NODE_SETS.labels[NODE_SETS.train])
    for step in range(4):
        judge.zero_grad()
        dropout = KeyedDropout(rate=0.3, seed=0, stage=0, round=3, step=step)
        loss = torch.nn.functional.cross_entropy(module.classify(batch, dropout), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        judge.step()
    change = (flat.values() - start) * len(labels)
    np.testing.assert_allclose(found.update_sum, change, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("model", ["sage", "gat"])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_pull_and_correction_are_terms_of_the_loss(model: str, optimizer: str) -> None:
    """FedProx, equation 2: ``mu / 2 |w - w_t|^2``; a correction is the gradient of ``<v, w>``."""
    local = replace(STEPS, optimizer=optimizer, proximal_mu=0.7)
    start = initial_weights(replace(SHAPE, model=model), 0, seed=1)
    correction = np.random.default_rng(2).normal(size=len(start)) / 10
    found = trainer(local, model).update(start, round_number=3, dropout=0.3, correction=correction)

    module = StageModel(replace(SHAPE, model=model), 0)
    flat = FlatParameters(module)
    flat.bind(start.copy())
    kind = torch.optim.Adam if optimizer == "adam" else torch.optim.SGD
    judge = kind(module.parameters(), lr=0.05, weight_decay=0.01)
    batch = module.layer.batch(module.layer.prepare(whole_input(5)), NODE_SETS.train)
    labels = torch.from_numpy(NODE_SETS.labels[NODE_SETS.train])
    for step in range(4):
        judge.zero_grad()
        dropout = KeyedDropout(rate=0.3, seed=0, stage=0, round=3, step=step)
        loss = torch.nn.functional.cross_entropy(module.classify(batch, dropout), labels)
        now = torch.cat([item.reshape(-1) for item in module.parameters()])
        moved = now - torch.from_numpy(start)
        (loss + 0.35 * moved @ moved + torch.from_numpy(correction) @ now).backward()  # type: ignore[no-untyped-call]
        judge.step()
    change = (flat.values() - start) * len(labels)
    np.testing.assert_allclose(found.update_sum, change, rtol=1e-9, atol=1e-12)


def test_one_step_sends_the_gradient_with_any_local_optimizer() -> None:
    start = initial_weights(SHAPE, 0, seed=1)
    plain = LayerTrainer(SHAPE, 0, whole_input(5), NODE_SETS, seed=0)
    one = trainer(replace(STEPS, count=1)).update(start, round_number=1, dropout=0.3)
    expected = plain.update(start, round_number=1, dropout=0.3)
    np.testing.assert_array_equal(one.update_sum, expected.update_sum)


def test_losses_and_validation_are_those_of_the_incoming_weights() -> None:
    start = initial_weights(SHAPE, 0, seed=1)
    one = trainer(replace(STEPS, count=1)).update(start, round_number=2, dropout=0.3)
    many = trainer(STEPS).update(start, round_number=2, dropout=0.3)
    assert many.train == one.train
    assert many.validation == one.validation
    assert not np.allclose(many.update_sum, one.update_sum)


def test_a_client_without_train_nodes_changes_nothing() -> None:
    nodes = replace(NODE_SETS, train=NODE_SETS.train[:0])
    start = initial_weights(SHAPE, 0, seed=1)
    update = trainer(STEPS, nodes=nodes).update(start, round_number=1, dropout=0.0)
    assert not update.update_sum.any()
    assert update.train.count == 0


def test_an_update_depends_on_nothing_that_came_before() -> None:
    start = initial_weights(SHAPE, 0, seed=1)
    used = trainer(STEPS)
    used.update(start + 0.1, round_number=1, dropout=0.3)
    again = used.update(start, round_number=2, dropout=0.3)
    fresh = trainer(STEPS).update(start, round_number=2, dropout=0.3)
    np.testing.assert_array_equal(again.update_sum, fresh.update_sum)


def test_divergence_names_the_step_and_the_key() -> None:
    local = LocalSteps(count=50, optimizer="sgd", learning_rate=1e300)
    with (
        np.errstate(over="ignore", invalid="ignore"),
        pytest.raises(TrainingDiverged, match=r"local step \d+: .* lower local-learning-rate"),
    ):
        trainer(local).update(initial_weights(SHAPE, 0, seed=1), round_number=1, dropout=0.0)
