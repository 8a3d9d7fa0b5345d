from __future__ import annotations

import numpy as np
import pytest
import torch

from retexo_fl.errors import TrainingDiverged
from retexo_fl.layers.named import layer_class
from retexo_fl.training import stage_pass
from retexo_fl.training.layer_trainer import LayerTrainer, NodeSets
from retexo_fl.training.stage_model import ModelShape, initial_weights
from tests.support.layer_contract import NODES, WIDTH, cut_input, whole_input

LABELS = np.arange(NODES) % 3


def shape(model: str = "sage", layers: int = 2) -> ModelShape:
    return ModelShape(
        model=model, layers=layers, inputs=WIDTH, hidden=6, heads=2, classes=3, dtype="float64"
    )


def node_sets(train: list[int], validation: list[int] | None = None) -> NodeSets:
    return NodeSets(
        train=np.array(train, np.int64),
        validation=np.array(validation or [], np.int64),
        test=np.array([0], np.int64),
        labels=LABELS,
    )


def trainer(model: str = "sage", train: list[int] | None = None) -> LayerTrainer:
    nodes = node_sets([1, 2, 3, 4, 5] if train is None else train, [6, 7])
    return LayerTrainer(shape(model), 0, whole_input(1), nodes, seed=0)


@pytest.mark.parametrize("model", ["gcn", "sage", "gat", "gin", "sage-pool"])
def test_update_sum_equals_finite_differences_of_the_loss_sum(model: str) -> None:
    made = trainer(model)
    weights = initial_weights(shape(model), 0, seed=1)
    update = made.update(weights, round_number=1, dropout=0.3)
    for place in np.random.default_rng(0).choice(len(weights), 8, replace=False):
        sums = []
        for step in (1e-6, -1e-6):
            moved = weights.copy()
            moved[place] += step
            sums.append(made.update(moved, round_number=1, dropout=0.3).train.loss_sum)
        slope = (sums[0] - sums[1]) / 2e-6
        assert update.update_sum[place] == pytest.approx(slope, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("model", ["gcn", "sage", "gat", "gin", "sage-pool"])
def test_updates_of_two_parts_add_up_to_that_of_the_whole(model: str) -> None:
    whole = whole_input(2)
    weights = initial_weights(shape(model), 0, seed=1)
    expected = LayerTrainer(shape(model), 0, whole, node_sets(list(range(NODES))), seed=0).update(
        weights, round_number=3, dropout=0.5
    )
    total, loss_sum = np.zeros_like(weights), 0.0
    for inner in (np.arange(0, NODES, 2), np.arange(1, NODES, 2)):
        every = np.arange(len(inner))
        nodes = NodeSets(train=every, validation=every[:0], test=every[:0], labels=LABELS[inner])
        inputs = cut_input(whole, inner, layer_class(model))
        part = LayerTrainer(shape(model), 0, inputs, nodes, seed=0)
        update = part.update(weights, round_number=3, dropout=0.5)
        total += update.update_sum
        loss_sum += update.train.loss_sum
    np.testing.assert_allclose(total, expected.update_sum, rtol=1e-11, atol=1e-12)
    assert loss_sum == pytest.approx(expected.train.loss_sum, rel=1e-12)


def test_update_is_a_pure_function_of_its_arguments() -> None:
    weights = initial_weights(shape(), 0, seed=1)
    one = trainer()
    first = one.update(weights, round_number=1, dropout=0.3)
    one.update(weights * 2, round_number=2, dropout=0.3)
    again = one.update(weights, round_number=1, dropout=0.3)
    fresh = trainer().update(weights, round_number=1, dropout=0.3)
    for other in (again, fresh):
        np.testing.assert_array_equal(other.update_sum, first.update_sum)
        assert other.train == first.train


@pytest.mark.parametrize("rows_per_batch", [1, 2, 100])
def test_batches_add_up(monkeypatch: pytest.MonkeyPatch, rows_per_batch: int) -> None:
    weights = initial_weights(shape("gat"), 0, seed=1)
    expected = trainer("gat").update(weights, round_number=1, dropout=0.3)
    monkeypatch.setattr(stage_pass, "ROWS_PER_BATCH", rows_per_batch)
    update = trainer("gat").update(weights, round_number=1, dropout=0.3)
    np.testing.assert_allclose(update.update_sum, expected.update_sum, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(trainer("gat").embed(weights), trainer("gat").embed(weights))


@pytest.mark.parametrize("model", ["gcn", "sage", "gat", "gin", "sage-pool"])
def test_client_without_train_nodes_returns_zeros(model: str) -> None:
    update = trainer(model, train=[]).update(
        initial_weights(shape(model), 0, seed=1), round_number=1, dropout=0.3
    )
    assert not update.update_sum.any()
    assert update.train.count == 0
    assert update.train.loss_sum == 0.0
    assert update.validation.count == 2


def test_evaluate_counts_by_hand() -> None:
    made = trainer()
    weights = initial_weights(shape(), 0, seed=1)
    logits = made.logits(weights)[torch.tensor([6, 7])]
    tally = made.evaluate(weights, "validation")
    labels = torch.from_numpy(LABELS[[6, 7]])
    chances = torch.softmax(logits, dim=1)[torch.arange(2), labels]
    assert tally.count == 2
    assert tally.correct == int((logits.argmax(dim=1) == labels).sum())
    assert tally.loss_sum == pytest.approx(float(-chances.log().sum()))


@pytest.mark.parametrize("model", ["gcn", "sage", "gat", "gin"])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_round_counts_right_train_nodes_by_the_rows_that_it_trains_on(
    model: str, dropout: float
) -> None:
    made, right = trainer(model), []
    for seed in range(5):
        weights = initial_weights(shape(model), 0, seed=seed)
        update = made.update(weights, round_number=1, dropout=dropout)
        right.append(update.train.correct)
        if not dropout:
            assert update.train.correct == made.evaluate(weights, "train").correct
    assert 0 < max(right) <= 5


def test_infinite_weights_are_named() -> None:
    weights = initial_weights(shape(), 0, seed=1)
    weights[0] = np.inf
    with pytest.raises(TrainingDiverged, match="stage 0, round 4: .*learning-rate"):
        trainer().update(weights, round_number=4, dropout=0.0)


@pytest.mark.parametrize("model", ["gcn", "gin"])
def test_clients_in_turn_compute_what_each_does_alone(model: str) -> None:
    weights = [initial_weights(shape(model), 0, seed=seed) for seed in (1, 2)]

    def made(client: int) -> LayerTrainer:
        nodes = node_sets([client, client + 2])
        return LayerTrainer(shape(model), 0, whole_input(client + 1), nodes, seed=0)

    def results(client: int, trainer: LayerTrainer) -> list[np.ndarray]:
        update = trainer.update(weights[client], round_number=1, dropout=0.5)
        return [update.update_sum, trainer.embed(weights[client]).numpy()]

    alone = [results(client, made(client)) for client in (0, 1)]
    beside = [made(0), made(1)]
    for client in (1, 0, 1):
        for ours, theirs in zip(results(client, beside[client]), alone[client], strict=True):
            np.testing.assert_array_equal(ours, theirs)
