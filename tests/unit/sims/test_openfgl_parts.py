from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from retexo_fl.client.preparation import make_parts
from retexo_fl.config import make_config
from retexo_fl.graph import GraphPartition
from sims.local_scores import LOCAL_ACCURACY, LocalScores, train_with_local_scores
from sims.splits import OPENFGL, OPENFGL_CLIENTS

pytestmark = pytest.mark.slow

GRAPH = "synthetic:nodes=600,features=8,degree=4,classes=3,signal=3"


def masks_by_key(parts: list[GraphPartition]) -> dict[bytes, tuple[bool, bool, bool]]:
    return {
        key: (bool(train), bool(val), bool(test))
        for part in parts
        for key, train, val, test in zip(
            part.node_keys[: part.num_inner],
            part.train_mask,
            part.val_mask,
            part.test_mask,
            strict=True,
        )
    }


@pytest.mark.parametrize("partitioner", ["louvain", "metis", "random"])
def test_one_client_has_the_masks_of_ten(partitioner: str) -> None:
    ten = {"clients": OPENFGL_CLIENTS, "partitioner": partitioner, "split": OPENFGL}
    one = {"clients": 1, "partitioner": "random", "split": f"sims.splits:openfgl_{partitioner}"}
    shared = {"dataset": GRAPH, "seed": 2}
    masks = masks_by_key(make_parts(make_config({**shared, **ten})))
    assert masks == masks_by_key(make_parts(make_config({**shared, **one})))
    assert 0 < sum(train for train, _, _ in masks.values()) < len(masks) / 2


def test_best_validation_round_decides_and_the_first_of_equals() -> None:
    scores = LocalScores()
    for number, right in ((1, 2), (2, 4), (3, 4)):
        for share in (1, 1):
            scores.add(number, "validation", right * share, 8)
            scores.add(number, "test", number, 10)
    assert scores.selected() == 0.2


def test_own_models_are_graded_and_training_is_as_without() -> None:
    keys: dict[str, Any] = {
        "dataset": GRAPH,
        "clients": 3,
        "algorithm": "drop",
        "model": "gcn",
        "hidden": 8,
        "rounds": 4,
        "split": "per-client-class:0.2/0.4/0.4",
    }
    several = train_with_local_scores({**keys, "local-steps": 3})
    assert 0 < several.result[LOCAL_ACCURACY] <= 1
    # With a step size of almost nothing, each client's own model is the global one.
    still = train_with_local_scores({**keys, "local-steps": 2, "local-learning-rate": 1e-12})
    assert still.result[LOCAL_ACCURACY] == pytest.approx(still.accuracy, abs=1e-6)
    assert np.isfinite(still.accuracy)
