"""The written-out step equals automatic differentiation of the same stage."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array, hstack

from retexo_fl.errors import TrainingDiverged
from retexo_fl.layers import fixed_rows
from retexo_fl.layers.base import LayerShape, Rows, StageInput
from retexo_fl.layers.sage import SageLayer
from retexo_fl.training import linear_step, stage_pass
from retexo_fl.training.layer_trainer import LayerTrainer, NodeSets
from retexo_fl.training.linear_step import LinearBatch, is_linear
from retexo_fl.training.stage_model import ModelShape, StageModel, initial_weights
from retexo_fl.training.tally import LayerUpdate, PassSums
from retexo_fl.updates.zeros import without_zeros
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


def test_sums_are_finite_only_if_all_that_were_added_are() -> None:
    total = PassSums()
    for gradient in (1.0, np.inf, 2.0):
        found = np.array([gradient])
        total.add(PassSums(gradient_sum=found, is_finite=bool(np.isfinite(gradient))))
    assert not total.is_finite


def random_weights(shape: ModelShape) -> np.ndarray:
    """Return read-only weights, biases included, as they come out of a message."""
    size = len(initial_weights(shape, 0, seed=0))
    weights = np.random.default_rng(4).normal(scale=0.5, size=size)
    weights.flags.writeable = False
    return weights


def both(
    monkeypatch: pytest.MonkeyPatch,
    shape: ModelShape,
    nodes: NodeSets,
    *,
    sparse: bool,
    rate: float,
) -> tuple[LayerUpdate, LayerUpdate]:
    """Return an update of the written-out step and the same by automatic differentiation."""
    assert is_linear(StageModel(shape, 0))
    updates = []
    for linear in (True, False):
        monkeypatch.setattr(stage_pass, "is_linear", lambda model, found=linear: found)
        trainer = LayerTrainer(shape, 0, whole_input(5, sparse=sparse), nodes, seed=0)
        for round_number in (1, 2):  # the first leaves its mask behind
            update = trainer.update(random_weights(shape), round_number=round_number, dropout=rate)
        updates.append(update)
    return updates[0], updates[1]


def assert_same(one: LayerUpdate, other: LayerUpdate) -> None:
    np.testing.assert_allclose(one.update_sum, other.update_sum, rtol=1e-10, atol=1e-12)
    assert one.train.count == other.train.count
    assert one.train.loss_sum == pytest.approx(other.train.loss_sum, rel=1e-12)
    assert one.validation.loss_sum == pytest.approx(other.validation.loss_sum, rel=1e-12)
    assert one.validation.correct == other.validation.correct
    assert one.validation.count == other.validation.count


@pytest.mark.parametrize("rate", [0.0, 0.4])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("model", ["gcn", "sage"])
def test_step_equals_automatic_differentiation(
    monkeypatch: pytest.MonkeyPatch, model: str, layers: int, sparse: bool, rate: float
) -> None:
    shape = replace(SHAPE, model=model, layers=layers)
    assert_same(*both(monkeypatch, shape, NODE_SETS, sparse=sparse, rate=rate))


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(
    "nodes",
    [
        replace(NODE_SETS, train=NODE_SETS.train[:0]),
        replace(NODE_SETS, validation=NODE_SETS.validation[:0]),
        replace(NODE_SETS, train=NODE_SETS.validation, validation=NODE_SETS.train),
    ],
    ids=["no train", "no validation", "more validation than train"],
)
@pytest.mark.parametrize("rows_per_batch", [2, 4, 8192])
def test_any_nodes_in_any_batches(
    monkeypatch: pytest.MonkeyPatch, rows_per_batch: int, nodes: NodeSets, sparse: bool
) -> None:
    monkeypatch.setattr(stage_pass, "ROWS_PER_BATCH", rows_per_batch)
    assert_same(*both(monkeypatch, SHAPE, nodes, sparse=sparse, rate=0.4))


@pytest.mark.parametrize("rows_per_batch", [4, 8192])
@pytest.mark.parametrize(("layers", "hidden"), [(1, 6), (2, 6), (2, 16)])
def test_few_filled_columns_give_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, layers: int, hidden: int, rows_per_batch: int
) -> None:
    monkeypatch.setattr(stage_pass, "ROWS_PER_BATCH", rows_per_batch)
    empty, whole = 400, whole_input(5, sparse=True)
    order = np.random.default_rng(1).permutation(WIDTH + empty)

    def spread(rows: csr_array) -> csr_array:
        padded = hstack([rows, csr_array((rows.shape[0], empty))], format="csr")
        return csr_array(padded[:, order])

    inputs = replace(whole, own=spread(whole.own), received=spread(whole.received))
    shape = replace(SHAPE, layers=layers, hidden=hidden, inputs=WIDTH + empty)
    updates = []
    for few in (4, 10**9):
        monkeypatch.setattr(fixed_rows, "_FEW", few)
        trainer = LayerTrainer(shape, 0, inputs, NODE_SETS, seed=0)
        updates.append(trainer.update(random_weights(shape), round_number=1, dropout=0.3))
    narrow, wide = updates
    assert wide.spans is None
    assert narrow.update_sum.tobytes() == wide.update_sum.tobytes()
    # Of several batches nobody knows the spans.
    assert (narrow.spans is None) == (rows_per_batch == 4)
    coded = without_zeros(wide.update_sum)
    assert coded.dtype == np.uint8
    assert without_zeros(narrow.update_sum, narrow.spans).tobytes() == coded.tobytes()


def in_dtype(inputs: StageInput, dtype: str) -> StageInput:
    def taken(rows: Rows) -> Rows:
        if isinstance(rows, torch.Tensor):
            return rows.to(getattr(torch, dtype))
        return csr_array(rows.astype(dtype))

    return replace(inputs, own=taken(inputs.own), received=taken(inputs.received))


def clients_of(shape: ModelShape, *, sparse: bool) -> list[LayerTrainer]:
    """Return trainers of one model: more rows and fewer, some without train nodes, one of a row."""
    every = np.random.default_rng(2).permutation(NODES)
    cuts = [(4, 3), (2, 2), (0, 3), (5, 0), (1, 0), (0, 1), (3, 4)]
    none = every[:0]
    return [
        LayerTrainer(
            shape,
            0,
            in_dtype(whole_input(seed, sparse=sparse), shape.dtype),
            NodeSets(
                train=every[:train],
                validation=every[train : train + judged],
                test=none,
                labels=NODE_SETS.labels,
            ),
            seed=0,
        )
        for seed, (train, judged) in enumerate(cuts)
    ]


def batches_together(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets, from now on, how many batches are computed together."""
    together = []
    known = LinearBatch.sums_of

    def watched(batches: list[LinearBatch], *arguments: object) -> list[PassSums]:
        together.append(len(batches))
        return known(batches, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(LinearBatch, "sums_of", watched)
    return together


def bits_of(update: LayerUpdate) -> tuple[object, ...]:
    return (update.update_sum.tobytes(), update.train, update.validation)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("sparse", [False, True])
def test_clients_in_turn_have_the_bits_that_they_have_alone(
    monkeypatch: pytest.MonkeyPatch, sparse: bool, layers: int, dtype: str
) -> None:
    shape = replace(SHAPE, layers=layers, dtype=dtype, hidden=16, classes=11)
    weights = [random_weights(shape).astype(dtype) * scale for scale in (1, 2, 3)]
    together = batches_together(monkeypatch)
    turns = []
    for most in (1, 4096):
        monkeypatch.setattr(linear_step, "_MOST_ROOM", most)
        clients = clients_of(shape, sparse=sparse)
        together.clear()
        turns.append(
            [
                bits_of(client.update(weights[place], round_number=place, dropout=0.3))
                for place in range(3)
                # The second client is away in the second round, the first is asked twice.
                for client in (clients[:1] + clients if place != 1 else clients[:1] + clients[2:])
            ]
        )
    alone, in_turn = turns
    assert in_turn == alone
    assert max(together) > 2


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("sparse", [False, True])
def test_clients_that_are_only_judged_have_the_bits_that_they_have_alone(
    monkeypatch: pytest.MonkeyPatch, sparse: bool, layers: int, dtype: str
) -> None:
    shape = replace(SHAPE, layers=layers, dtype=dtype, hidden=16, classes=11)
    weights = [random_weights(shape).astype(dtype) * scale for scale in (1, 2)]
    together = batches_together(monkeypatch)
    turns = []
    for most in (1, 4096):
        monkeypatch.setattr(linear_step, "_MOST_ROOM", most)
        clients = clients_of(shape, sparse=sparse)
        together.clear()
        turns.append(
            [
                (client.evaluate(one, "validation"), bits_of(trained))
                for number, one in enumerate(weights)
                for client in clients
                # Others are asked for gradients in between.
                for trained in [client.update(one, round_number=number, dropout=0.3)]
            ]
        )
    alone, in_turn = turns
    assert in_turn == alone
    assert max(together) > 2
    monkeypatch.setattr(stage_pass, "is_linear", lambda model: False)
    clients = clients_of(shape, sparse=sparse)
    for client, (judged, _) in zip(clients, in_turn[-len(clients) :], strict=True):
        otherwise = client.evaluate(weights[-1], "validation")
        assert (judged.count, judged.correct) == (otherwise.count, otherwise.correct)
        close = 1e-12 if dtype == "float64" else 1e-5
        assert judged.loss_sum == pytest.approx(otherwise.loss_sum, rel=close)


@pytest.mark.parametrize("place", [0, -1, 50])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_weight_that_is_not_finite_is_named(place: int, value: float) -> None:
    weights = random_weights(SHAPE).copy()
    weights[place] = value
    trainer = LayerTrainer(SHAPE, 0, whole_input(5), NODE_SETS, seed=0)
    with pytest.raises(TrainingDiverged, match="stage 0, round 1"):
        trainer.update(weights, round_number=1, dropout=0.0)


class WithASpareParameter(SageLayer):
    def __init__(self, shape: LayerShape) -> None:
        super().__init__(shape)
        self.spare = torch.nn.Parameter(torch.zeros(3))


@pytest.mark.parametrize(
    "model", ["gat", "gin", "sage-pool", f"{__name__}:{WithASpareParameter.__name__}"]
)
def test_other_layers_are_differentiated(model: str) -> None:
    shape = replace(SHAPE, model=model)
    assert not is_linear(StageModel(shape, 0))
    trainer = LayerTrainer(shape, 0, whole_input(5), NODE_SETS, seed=0)
    weights = initial_weights(shape, 0, seed=0)
    update = trainer.update(weights, round_number=1, dropout=0.3)
    assert update.update_sum.shape == weights.shape
