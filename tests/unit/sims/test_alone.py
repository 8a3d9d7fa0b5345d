"""Clients that train alone know nothing of the others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from retexo_fl.graph import Graph, Split
from retexo_fl.graph.splits import own_split
from sims import alone
from sims.alone import train_alone
from sims.trained import Trained

pytestmark = pytest.mark.slow

KEYS: dict[str, Any] = {
    "dataset": "synthetic:nodes=600,features=8,degree=4,classes=3,signal=3",
    "clients": 3,
    "partitioner": "random",
    "split": "per-client-class:0.2/0.4/0.4",
    "model": "gcn",
    "algorithm": "drop",
    "hidden": 8,
    "rounds": 10,
}


def test_every_part_is_trained_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    parts: list[Graph] = []

    def trained(keys: dict[str, Any], graph: Graph) -> Trained:
        parts.append(graph)
        assert (keys["clients"], keys["split"]) == (1, "published")
        result = {"test_accuracy": 0.5 if len(parts) == 1 else 1.0}
        return Trained(result=result, moved=[], history=[], wall_s=1.0)

    monkeypatch.setattr(alone, "train_whole", trained)
    found = train_alone({**KEYS, "seed": 0})
    assert [part.num_nodes for part in parts] == [200, 200, 200]
    edges = sum(part.num_edges for part in parts)
    assert 0 < edges < 600  # of about 1,200: two of three lead to another client
    tests = [int(own_split(part, "published").split.test.sum()) for part in parts]
    right = round(0.5 * tests[0]) + tests[1] + tests[2]
    assert found.accuracy == pytest.approx(right / sum(tests))
    assert found.result["bytes"]["payload"]["total"] == 0
    assert found.wall_s == 3.0


def test_a_client_without_train_nodes_gets_none_right() -> None:
    keys = {**KEYS, "split": f"{__name__}:of_first_client", "seed": 0}
    found = train_alone(keys)
    assert 0.2 < found.accuracy < 0.5


def of_first_client(graph: Graph, assignment: np.ndarray, seed: int) -> Split:
    """Let the first client train; test everywhere."""
    first, use = assignment == 0, np.arange(graph.num_nodes) % 3
    del seed
    return Split(train=first & (use == 0), val=first & (use == 1), test=use == 2)
