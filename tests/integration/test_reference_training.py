"""Every number of a configuration that decides a model, against a plain loop of PyTorch.

Only layers, keyed dropout and the draw of the first weights are ours here: loss, optimizers,
rounds, local steps and the choice of the best weights are written once more, over an uncut graph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from retexo_fl.client.part import node_sets
from retexo_fl.client.preparation import make_parts
from retexo_fl.client.stage_rows import stage_input
from retexo_fl.config import RunConfig
from retexo_fl.graph import BoundaryPlan
from retexo_fl.layers.base import StageInput
from retexo_fl.layers.dropout import KeyedDropout
from retexo_fl.training.layer_trainer import NodeSets
from retexo_fl.training.stage_model import ModelShape, StageModel
from tests.support.runs import configured, events_of, model_weights, train

TOLERANCE = 1e-9
#: No value is a default, so that one which does not reach training is seen.
KEYS: dict[str, Any] = {
    "dataset": "synthetic:nodes=120,edges=360,classes=3,features=7,homophily=0.5",
    "dtype": "float64",
    "hidden": 6,
    "rounds": 5,
    "seed": 3,
    "learning_rate": 0.03,
    "weight_decay": 0.02,
    "dropout": 0.4,
}
LOCAL: dict[str, Any] = {"local_steps": 3, "local_learning_rate": 0.02, "clients": 1}

#: A round's mean loss at the weights that began it, and validation loss and accuracy after it.
Curve = tuple[float, float, float]
#: (R, C) logits of some rows, from keyed dropout or None.
Classify = Callable[[np.ndarray, KeyedDropout | None], torch.Tensor]


@pytest.mark.parametrize(
    "keys",
    [
        {"algorithm": "lazy", "model": "sage", "clients": 3},
        {"algorithm": "lazy", "model": "gat", "clients": 3, "heads": 2, "layers": 3},
        {"algorithm": "standard", "model": "gcn", "clients": 3, "layers": 3},
        {"algorithm": "lazy", "model": "gcn", **LOCAL},
        {"algorithm": "lazy", "model": "sage", **LOCAL, "local_optimizer": "sgd"},
        {"algorithm": "central", "model": "sage", **LOCAL},
    ],
    ids=["lazy", "lazy-gat", "standard", "local-adam", "local-sgd", "central-local"],
)
def test_a_run_trains_the_weights_of_a_plain_loop(tmp_path: Path, keys: dict[str, Any]) -> None:
    run = train(tmp_path / "run", **KEYS, **keys)
    found = model_weights(run)
    expected, curves = a_plain_loop(configured(tmp_path / "none", **KEYS, **keys))
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_allclose(found[name], tensor, rtol=0, atol=TOLERANCE, err_msg=name)
    rounds = [event for event in events_of(run) if event["event"] == "round"]
    told = [(event["loss"], event["val_loss"], event["val_accuracy"]) for event in rounds]
    np.testing.assert_allclose(told, curves, rtol=1e-8)


def a_plain_loop(config: RunConfig) -> tuple[dict[str, np.ndarray], list[Curve]]:
    """Return the weights by their names in a run, and what every round came to."""
    (part,) = make_parts(replace(config, clients=1))
    plan, nodes = BoundaryPlan.from_partition(part), node_sets(part)
    shape = ModelShape.of(config, inputs=part.num_features, classes=part.num_classes)
    models = [StageModel(shape, stage) for stage in range(config.layers)]
    for stage, model in enumerate(models):
        model.reset_parameters(seed=config.seed, stage=stage)
    rows = part.features.astype(config.dtype)
    first = stage_input(part, plan, rows, rows[:0], ())
    if config.traits.end_to_end:
        curves = fit(config, models, whole_model(models, first), nodes, stage=0)
    else:
        inputs, curves = first, []
        for stage, model in enumerate(models):
            classify = one_layer(model, inputs)
            curves += fit(config, [model], classify, nodes, stage=stage)
            if not model.is_last:
                every = np.arange(inputs.num_nodes)
                with torch.no_grad():
                    embedded = model.embed(model.layer.batch(model.layer.prepare(inputs), every))
                inputs = stage_input(part, plan, embedded.numpy(), embedded.numpy()[:0], ())
    weights = {
        f"layer-{stage}/{name}": tensor.detach().numpy()
        for stage, model in enumerate(models)
        for name, tensor in model.named_parameters()
    }
    return weights, curves


def one_layer(model: StageModel, inputs: StageInput) -> Classify:
    prepared = model.layer.prepare(inputs)
    return lambda rows, dropout: model.classify(model.layer.batch(prepared, rows), dropout)


def whole_model(models: list[StageModel], inputs: StageInput) -> Classify:
    every = np.arange(inputs.num_nodes)

    def classify(rows: np.ndarray, dropout: KeyedDropout | None) -> torch.Tensor:
        layer = models[0].layer
        batch = layer.batch(layer.prepare(inputs), every)
        for stage, model in enumerate(models):
            keyed = None if dropout is None else replace(dropout, stage=stage)
            if model.is_last:
                return model.classify(batch, keyed)[rows]
            state = model.embed(batch, keyed)
            batch = models[stage + 1].layer.trained_batches(inputs, every)(state)
        raise AssertionError("a model has a last layer")

    return classify


def fit(
    config: RunConfig, models: list[StageModel], classify: Classify, nodes: NodeSets, *, stage: int
) -> list[Curve]:
    """Train the models' parameters, and leave the best."""
    curves = []
    parameters = [item for model in models for item in model.parameters()]
    labels = torch.from_numpy(np.asarray(nodes.labels, np.int64))
    adam = torch.optim.Adam(parameters, lr=config.learning_rate, weight_decay=config.weight_decay)
    best, kept = (-1, -np.inf), [item.detach().clone() for item in parameters]
    for number in range(1, config.rounds + 1):
        optimizer: torch.optim.Optimizer = adam
        if config.local_steps > 1:
            kind = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[config.local_optimizer]
            optimizer = kind(
                parameters, lr=config.local_learning_rate, weight_decay=config.weight_decay
            )
        for step in range(config.local_steps):
            dropout = KeyedDropout(
                rate=config.dropout, seed=config.seed, stage=stage, round=number, step=step
            )
            optimizer.zero_grad()
            loss = F.cross_entropy(classify(nodes.train, dropout), labels[nodes.train])
            if not step:
                first_loss = float(loss.detach())
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        with torch.no_grad():
            logits = classify(nodes.validation, None)
        wanted = labels[nodes.validation]
        correct = int((logits.argmax(dim=1) == wanted).sum())
        found = (correct, -float(F.cross_entropy(logits, wanted)))
        curves.append((first_loss, -found[1], correct / len(wanted)))
        if found > best:
            best, kept = found, [item.detach().clone() for item in parameters]
    for item, value in zip(parameters, kept, strict=True):
        item.data = value
    return curves
