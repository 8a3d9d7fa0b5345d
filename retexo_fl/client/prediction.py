"""From the logits of a client's nodes to its predictions, and how many of them are right."""

from __future__ import annotations

import numpy as np
import torch

from retexo_fl.client.api import PredictAnswer
from retexo_fl.client.prediction_files import Predictions
from retexo_fl.errors import TrainingDiverged
from retexo_fl.graph import GraphPartition
from retexo_fl.training.layer_trainer import NodeSets


def predict_nodes(partition: GraphPartition, logits: torch.Tensor) -> Predictions:
    """Return class and probabilities of every inner node.

    The class is that of the largest logit, as in the training's test: where two probabilities are
    rounded to the same value, the first of them need not be it.

    Args:
        partition: The client's part, N inner nodes.
        logits: (N, C) of its inner nodes.

    Raises:
        TrainingDiverged: A logit is not finite.
    """
    broken = torch.nonzero(~torch.isfinite(logits).all(dim=1))
    if len(broken):
        raise TrainingDiverged(
            f"client {partition.client}: the logits of row {int(broken[0])} are not finite; "
            "check its features"
        )
    return Predictions(
        keys=np.asarray(partition.node_keys),
        classes=logits.argmax(dim=1).numpy(),
        probabilities=torch.softmax(logits, dim=1).numpy(),
        names=partition.class_names,
    )


def count_right(nodes: NodeSets, classes: np.ndarray) -> PredictAnswer:
    """Return how many labelled nodes of each use have been predicted rightly.

    Args:
        nodes: The client's nodes by use.
        classes: [N] int64 predicted class of each inner node.
    """

    def right(rows: np.ndarray) -> int:
        return int(np.count_nonzero(classes[rows] == nodes.labels[rows]))

    return PredictAnswer(
        nodes=len(classes),
        train=len(nodes.train),
        train_correct=right(nodes.train),
        validation=len(nodes.validation),
        validation_correct=right(nodes.validation),
        test=len(nodes.test),
        test_correct=right(nodes.test),
    )
