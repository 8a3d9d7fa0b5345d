"""A small graph as mini-batch trainings read it, and rows that a model can learn from."""

from __future__ import annotations

import numpy as np

from sims.mini_batch_graphs import MiniBatchGraph
from tests.support.sampler_contract import NODES, random_adjacency

CLASSES, WIDTH = 3, 4


def small_graph() -> MiniBatchGraph:
    """Return 60 nodes whose features tell their class, a third of them for training."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, NODES)
    features = np.eye(CLASSES, WIDTH)[labels] + rng.normal(scale=0.2, size=(NODES, WIDTH))
    train, validation, test = np.split(rng.permutation(NODES), [20, 40])
    return MiniBatchGraph(
        name="small",
        adjacency=random_adjacency(),
        features=features.astype(np.float32),
        labels=labels,
        num_classes=CLASSES,
        train=train,
        validation=validation,
        test=test,
    )
