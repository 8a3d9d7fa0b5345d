"""What a long training moves, from one of few rounds: every round of a layer moves the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retexo_fl.config import make_config
from retexo_fl.methods.forecasts import FORECASTS
from retexo_fl.training.stage_model import ModelShape
from retexo_fl.training.volume import PredictedVolume, TrainingSize
from sims.trained import MODEL_KINDS, Trained


def at_rounds(trained: Trained, rounds: int) -> float:
    """Return dense bytes at all clients, as the paper counts, had there been so many rounds.

    Args:
        trained: A training of fewer rounds, the same number for each stage.
        rounds: Of each stage.
    """
    stages = {event["stage"] for event in trained.history}
    more = rounds * len(stages) / len(trained.history)
    once = 2 * trained.bytes("raw", kinds=("boundary",), purposes=("exchange",))
    repeated = 2 * trained.bytes("raw", kinds=("boundary",), purposes=("train",))
    repeated += trained.bytes("raw", kinds=MODEL_KINDS, purposes=("train",))
    return once + more * repeated


def measured_prediction(keys: Mapping[str, Any], trained: Trained, rounds: int) -> PredictedVolume:
    """Return what the closed forms say of the same training with so many rounds.

    Args:
        keys: Its configuration; the graph's text names the width of the features.
        trained: Tells the vectors of an exchange, and which clients have which nodes.
        rounds: Of each stage.

    Raises:
        DatasetError: The graph is not synthetic.
    """
    from retexo_fl.graph.sources.synthetic import parse_synthetic

    spec = parse_synthetic(str(keys["dataset"]))
    config = make_config({**keys, "algorithm": "lazy"})
    shape = ModelShape.of(config, inputs=spec.features, classes=spec.classes)
    rows = trained.result["client_table"]
    size = TrainingSize(
        clients=trained.clients,
        training_clients=sum(1 for row in rows if row["train"]),
        asked_clients=sum(1 for row in rows if row["train"] or row["val"]),
        validation_clients=sum(1 for row in rows if row["val"]),
        vectors=trained.vectors,
        rounds=(rounds,) * config.layers,
    )
    volume = FORECASTS[str(keys["algorithm"])].volume(shape, size)
    assert volume is not None
    return volume
