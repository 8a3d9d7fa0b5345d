from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from retexo_fl.client.api import PredictAnswer, SparseSums
from retexo_fl.client.preparation import make_parts
from retexo_fl.config import make_config
from retexo_fl.errors import TrainingDiverged
from retexo_fl.graph import GraphPartition
from retexo_fl.methods.predict.tables import count_right_nodes, predict_nodes
from retexo_fl.training.layer_trainer import NodeSets
from retexo_fl.training.recipe import Recipe


@pytest.fixture(scope="module")
def part() -> GraphPartition:
    return make_parts(make_config({"clients": 3}))[1]


def test_predict_nodes_takes_the_largest_logit_and_its_share(part: GraphPartition) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(part.num_inner, 10, generator=generator, dtype=torch.float64)
    found = predict_nodes(part, logits, ())
    assert found.probabilities is not None
    powers = np.exp(logits.numpy())
    np.testing.assert_allclose(found.probabilities, powers / powers.sum(axis=1, keepdims=True))
    np.testing.assert_array_equal(found.answers, powers.argmax(axis=1))
    np.testing.assert_array_equal(found.keys, part.node_keys)
    assert found.probabilities.dtype == np.float64


def test_predict_nodes_decides_where_rounded_probabilities_tie(part: GraphPartition) -> None:
    logits = torch.zeros(part.num_inner, 10)
    logits[:, 3] = 1e-9
    assert set(predict_nodes(part, logits, ()).answers.tolist()) == {3}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_predict_nodes_names_a_row_that_is_not_finite(part: GraphPartition, value: float) -> None:
    logits = torch.zeros(part.num_inner, 10)
    logits[7, 4] = value
    with pytest.raises(TrainingDiverged, match="client 1: .*row 7 .*not finite"):
        predict_nodes(part, logits, ())


def test_right_nodes_are_counted_by_use() -> None:
    nodes = NodeSets(
        train=np.array([0, 1, 2]),
        validation=np.array([3]),
        test=np.array([], dtype=np.int64),
        labels=np.array([5, 5, 1, 2, -1]),
    )
    outputs, counted = torch.eye(6)[[5, 1, 1, 0, 3]], {}
    for metric in ("accuracy", "macro-f1"):
        counted[metric] = count_right_nodes(
            nodes, outputs, Recipe.of(make_config({"metric": metric}))
        )
    expected = PredictAnswer(
        nodes=5,
        train=3,
        train_correct=2,
        validation=1,
        validation_correct=0,
        test=0,
        test_correct=0,
    )
    assert counted["accuracy"] == expected
    # Hits, predictions and nodes by class: one is of class 2, and predicted as 0.
    sums = SparseSums(length=18, places=(6, 14), counts=bytes([1, 1]))
    assert counted["macro-f1"] == replace(expected, validation_metric=sums)
