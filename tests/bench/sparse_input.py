"""A stage-1 client step on a Cora client, its input sparse against the same input dense."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from retexo_fl.graph import GraphPartition
from retexo_fl.layers.base import StageInput
from retexo_fl.training.layer_trainer import LayerTrainer, NodeSets
from retexo_fl.training.stage_model import ModelShape, initial_weights
from tests.bench.cora_parts import densified, load_parts, stage_input
from tests.bench.measure import LEAST_REPEATS, Timings, interleaved
from tests.bench.outcome import Outcome, Row

#: The least ratio that a layer must reach; GAT is only reported.
_TARGETS: Final = {"gcn": 4.0, "sage": 4.0, "gat": None}
_DROPOUT: Final = 0.3


def run(quick: bool, data_dir: Path | None) -> Outcome:
    """Time both inputs in turn for every layer."""
    hidden, repeats, least_s = (16, 2, 0.0) if quick else (256, 3 * LEAST_REPEATS, 0.1)
    parts, origin = load_parts(data_dir)
    ratios, times = [], []
    for model, target in _TARGETS.items():
        timings = _timings(parts, model, hidden=hidden, repeats=repeats, least_s=least_s)
        times += [
            Row(metric=f"{model}: {case}", unit="ms", spread=timings.spread(case, scale=1e3))
            for case in timings.seconds
        ]
        ratio = timings.ratio("dense input", "sparse input")
        ratios.append(Row(metric=f"{model}: dense / sparse", unit="x", spread=ratio, target=target))
    setting = {
        "graph": origin,
        "clients": 2,
        "train nodes": int(parts[0].train_mask.sum()),
        "validation nodes": int(parts[0].val_mask.sum()),
        "features": parts[0].num_features,
        "hidden": hidden,
        "dropout": _DROPOUT,
        "dtype": "float32",
    }
    return Outcome(name="sparse_input", setting=setting, ratios=ratios, times=times)


class ClientStep:
    """What a client does for one ``train.layer``: validation, then a gradient with dropout."""

    def __init__(self, shape: ModelShape, inputs: StageInput, part: GraphPartition) -> None:
        nodes = NodeSets(
            train=np.flatnonzero(part.train_mask),
            validation=np.flatnonzero(part.val_mask),
            test=np.flatnonzero(part.test_mask),
            labels=part.labels,
        )
        self._trainer = LayerTrainer(shape, 0, inputs, nodes, seed=0)
        self._weights = initial_weights(shape, 0, seed=0)
        self._round = 0

    def __call__(self) -> object:
        """Take the step of the next round."""
        self._round += 1
        return self._trainer.update(self._weights, round_number=self._round, dropout=_DROPOUT)


def _timings(
    parts: list[GraphPartition], model: str, *, hidden: int, repeats: int, least_s: float
) -> Timings:
    shape = ModelShape(
        model=model,
        layers=2,
        inputs=parts[0].num_features,
        hidden=hidden,
        heads=8,
        classes=parts[0].num_classes,
        dtype="float32",
    )
    inputs = stage_input(parts, model)
    cases = {
        "sparse input": ClientStep(shape, inputs, parts[0]),
        "dense input": ClientStep(shape, densified(inputs), parts[0]),
    }
    return interleaved(cases, repeats=repeats, least_s=least_s)
