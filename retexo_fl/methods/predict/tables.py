"""From a model's outputs for a client's nodes to predictions, and how many of them are right."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

from retexo_fl.client.api import PredictAnswer, SparseSums
from retexo_fl.errors import LocalProtocolError, TrainingDiverged
from retexo_fl.graph.parts.partition import GraphPartition
from retexo_fl.methods.predict.files import LinkPredictions, Predictions
from retexo_fl.relations import keys_in_tables
from retexo_fl.training.judging import count_right, label_tensor
from retexo_fl.training.layer_trainer import NodeSets
from retexo_fl.training.metrics import metric_sums
from retexo_fl.training.recipe import Recipe
from retexo_fl.training.tally import sums_by_type

#: Links that are written down of each node.
MOST_SUGGESTED: Final = 10


def predict_nodes(
    partition: GraphPartition, outputs: torch.Tensor, label_facts: tuple[float, ...]
) -> Predictions:
    """Return what a model says of every inner node; with types of those of a type with labels.

    Their keys are then those of their table, with their type beside where several have labels. A
    class is that of the largest logit, as in the training's test: where two probabilities are
    rounded to the same value, the first of them need not be it. A label is predicted where its
    logit is above 0.

    Args:
        partition: The client's part, N inner nodes.
        outputs: (N, C) of its inner nodes.
        label_facts: Of a regression, mean and scale of the labels that it was trained on.

    Raises:
        TrainingDiverged: An output is not finite.
        LocalProtocolError: A regression comes without mean and scale.
    """
    broken = torch.nonzero(~torch.isfinite(outputs).all(dim=1))
    if len(broken):
        raise TrainingDiverged(
            f"client {partition.client}: the logits of row {int(broken[0])} are not finite; "
            "check its features"
        )
    keys, relations, types = np.asarray(partition.node_keys), partition.relations, None
    if relations is not None:
        kinds = relations.kinds(keys)
        rows = np.flatnonzero(np.isin(kinds, relations.with_labels))
        if len(relations.with_labels) > 1:
            types = np.array([name.encode() for name in relations.types])[kinds[rows]]
        keys = keys_in_tables(relations, keys[rows])
        outputs = outputs[torch.from_numpy(rows)]
    match partition.task:
        case "regression":
            if len(label_facts) != 2:
                raise LocalProtocolError("label-facts: expected mean and scale of a regression")
            mean, scale = label_facts
            # Far from zero float32 would round them to more than their errors.
            numbers = mean + scale * outputs[:, 0].double()
            return Predictions(keys=keys, answers=numbers.numpy(), types=types)
        case "multi-label":
            answers, probabilities = (outputs > 0).to(torch.int64), torch.sigmoid(outputs)
        case _:
            answers, probabilities = outputs.argmax(dim=1), torch.softmax(outputs, dim=1)
    return Predictions(
        keys=keys,
        answers=answers.numpy(),
        probabilities=probabilities.numpy(),
        names=partition.class_names,
        types=types,
    )


def predict_links(
    partition: GraphPartition, first: np.ndarray, second: np.ndarray, logits: np.ndarray
) -> LinkPredictions:
    """Return the likeliest links as they are written down; with types by the keys of their tables.

    Args:
        partition: The client's part.
        first: (n,) int64 inner nodes.
        second: (n,) int64 other ends, boundary nodes after the inner ones.
        logits: (n,).

    Raises:
        TrainingDiverged: A logit is not finite.
    """
    if not np.isfinite(logits).all():
        raise TrainingDiverged(
            f"client {partition.client}: the logits of links are not finite; check its features"
        )
    widest = max(partition.node_keys.dtype, partition.boundary_keys.dtype)
    keys = np.concatenate(
        [partition.node_keys.astype(widest), partition.boundary_keys.astype(widest)]
    )
    if partition.relations is not None:
        keys = keys_in_tables(partition.relations, keys)
    shares = torch.sigmoid(torch.from_numpy(logits)).numpy()
    return LinkPredictions(keys=keys[first], others=keys[second], shares=shares)


def count_right_nodes(nodes: NodeSets, outputs: torch.Tensor, recipe: Recipe) -> PredictAnswer:
    """Return how many labelled nodes of each use have been predicted rightly; 0 of numbers.

    Args:
        nodes: The client's nodes by use.
        outputs: (N, C) of its inner nodes.
        recipe: Of the training, with the metric that is added up.
    """

    def right(rows: np.ndarray) -> int:
        return int(count_right(outputs[rows], label_tensor(nodes.labels[rows])))

    def added_up(rows: np.ndarray) -> SparseSums:
        if recipe.metric is None or not len(rows):
            return SparseSums()
        answers, labels = recipe.in_units(outputs[rows]), label_tensor(nodes.labels[rows])
        return SparseSums.of(metric_sums(recipe.metric, answers, labels))

    def by_type(rows: np.ndarray) -> SparseSums:
        if not len(rows):
            return SparseSums()
        labels = label_tensor(nodes.labels[rows])
        answers = recipe.in_units(outputs[rows])
        return SparseSums.of(sums_by_type(answers, labels, recipe, nodes.types_of(rows)))

    return PredictAnswer(
        nodes=len(outputs),
        train=len(nodes.train),
        train_correct=right(nodes.train),
        validation=len(nodes.validation),
        validation_correct=right(nodes.validation),
        test=len(nodes.test),
        test_correct=right(nodes.test),
        validation_metric=added_up(nodes.validation),
        test_metric=added_up(nodes.test),
        validation_types=by_type(nodes.validation),
        test_types=by_type(nodes.test),
    )
