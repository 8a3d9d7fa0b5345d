"""A pass over labelled nodes lies on the device that it is made for."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from retexo_fl.layers.base import moved
from retexo_fl.layers.dropout import KeyedDropout
from retexo_fl.training.recipe import Recipe
from retexo_fl.training.stage_model import ModelShape, StageModel, initial_weights
from retexo_fl.training.stage_pass import NodeSets, StageFacts, StagePass
from tests.support.layer_contract import NODES, WIDTH, whole_input
from tests.support.watched_copies import watched_copies

MODELS = ("gcn", "sage", "gat", "gin", "sage-pool")
DROPOUT = KeyedDropout(rate=0.3, seed=0, stage=0, round=1)
EVERY = np.arange(NODES)
SETS = NodeSets(train=EVERY[:7], validation=EVERY[7:], test=EVERY[:0], labels=EVERY % 3)


def shape(model: str) -> ModelShape:
    return ModelShape(
        model=model, layers=2, inputs=WIDTH, hidden=6, heads=2, classes=3, dtype="float64"
    )


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("model", MODELS)
def test_a_batch_moves_as_a_whole(model: str, sparse: bool) -> None:
    """On ``meta`` every operation that mixes devices is refused, and no value is computed."""
    meta = torch.device("meta")
    made = StageModel(shape(model), 0)
    prepared = made.layer.prepare(whole_input(1, sparse=sparse))
    with watched_copies() as copies:
        batch = moved(made.layer.batch(prepared, SETS.train), meta)
    copies.demand_locked()
    facts = StageFacts(made, prepared, Recipe(), meta)
    assert not facts.is_linear
    facts.flat.bind_tensor(torch.empty(facts.flat.size, dtype=torch.float64, device=meta))
    logits = facts.model.classify(batch, DROPOUT)
    assert logits.device == meta
    parts = torch.autograd.grad(logits.sum(), list(facts.model.parameters()), allow_unused=True)
    assert {part.device for part in parts if part is not None} == {meta}


@pytest.mark.parametrize("model", MODELS)
def test_units_add_up_to_the_whole(model: str) -> None:
    made = StageModel(shape(model), 0)
    facts = StageFacts(made, made.layer.prepare(whole_input(1)), Recipe())
    weights = torch.from_numpy(initial_weights(shape(model), 0, seed=1))
    whole = StagePass(facts, SETS).sums(weights, DROPOUT)
    halves = [
        NodeSets(train=part, validation=EVERY[:0], test=EVERY[:0], labels=SETS.labels)
        for part in (SETS.train[:3], SETS.train[3:])
    ]
    sums = [StagePass(facts, half).sums(weights, DROPOUT) for half in halves]
    assert whole.gradient_sum is not None
    total = sum(one.gradient_sum for one in sums if one.gradient_sum is not None)
    np.testing.assert_allclose(total, whole.gradient_sum, rtol=1e-11, atol=1e-12)
    assert sum(one.train.loss_sum for one in sums) == pytest.approx(whole.train.loss_sum)


@pytest.mark.gpu
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("model", MODELS)
def test_a_gpu_finds_the_sums_of_the_cpu(model: str, sparse: bool) -> None:
    weights = torch.from_numpy(initial_weights(shape(model), 0, seed=1))
    found = []
    for device in (torch.device("cpu"), torch.device("cuda")):
        made = StageModel(shape(model), 0)
        facts = StageFacts(
            made, made.layer.prepare(whole_input(1, sparse=sparse)), Recipe(), device
        )
        one = StagePass(facts, SETS)
        sums = one.sums(weights.to(device), DROPOUT)
        found.append((sums, one.tally(weights.to(device), "validation")))
    (expected, judged), (sums, tally) = found
    assert sums.gradient_sum is not None
    assert expected.gradient_sum is not None
    np.testing.assert_allclose(sums.gradient_sum, expected.gradient_sum, rtol=1e-10, atol=1e-12)
    assert tally.correct == judged.correct
