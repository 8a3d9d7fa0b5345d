"""The two large graphs of RETEXO's tables 5 and 6: sizes, boundary nodes, predicted bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np

from retexo_fl.config import make_config
from retexo_fl.methods.forecasts import FORECASTS
from retexo_fl.training.stage_model import ModelShape
from retexo_fl.training.volume import (
    PredictedVolume,
    TrainingSize,
    sampled_vectors,
    stage_parameters,
)
from sims.published import GB_PER_WORKER

_FLOAT_BYTES: Final = 4
#: Rounds of a layer, and of a whole model. Source: RETEXO, section 4.
ROUNDS: Final = 200
HIDDEN: Final = 256
RATE: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeGraph:
    """A graph of the paper, and the one on which its traffic is measured.

    Attributes:
        nodes: N.
        features: H_0.
        classes: C.
        layers: K.
        measured: The smaller graph, as text: mean degree and classes are those of the preset.
    """

    nodes: int
    features: int
    classes: int
    layers: int
    measured: str


LARGE: Final[Mapping[str, LargeGraph]] = MappingProxyType(
    {
        "reddit": LargeGraph(
            nodes=232_965,
            features=602,
            classes=41,
            layers=4,
            measured="synthetic:reddit,nodes=46593,features=43",
        ),
        "products": LargeGraph(
            nodes=2_449_029,
            features=100,
            classes=47,
            layers=3,
            measured="synthetic:products,nodes=48980,features=25",
        ),
    }
)


def shape_of(graph: LargeGraph, model: str) -> ModelShape:
    """Return the paper's model for a graph."""
    config = make_config({"model": model, "layers": graph.layers, "hidden": HIDDEN})
    return ModelShape.of(config, inputs=graph.features, classes=graph.classes)


def predict(shape: ModelShape, pairs: np.ndarray, rounds: int) -> dict[str, PredictedVolume]:
    """Predict what lazy, standard and sampled training move, every client with nodes of each kind.

    Args:
        shape: The model.
        pairs: [n, n] vectors of each ordered pair of clients.
        rounds: Of a layer, or of the whole model.
    """
    clients = len(pairs)
    size = TrainingSize(
        clients=clients,
        training_clients=clients,
        asked_clients=clients,
        validation_clients=clients,
        vectors=int(pairs.sum()),
        rounds=(rounds,) * shape.layers,
        sampled_vectors=sampled_vectors(pairs.ravel().tolist(), RATE),
    )
    volumes = {name: FORECASTS[name].volume(shape, size) for name in ("lazy", "standard", "bns")}
    return {name: volume for name, volume in volumes.items() if volume is not None}


def published_boundary(name: str, shape: ModelShape) -> float:
    """Return the B that explains the published bytes of standard training at one of two workers.

    Source: RETEXO, section 3.2: ``2 B (H_0 + 2 R sum H_m) + 2 R M`` values, solved for B.
    """
    whole, heads = stage_parameters(shape)
    model = sum(whole) - sum(heads)
    hidden = sum(shape.input_width(stage) for stage in range(1, shape.layers))
    values = GB_PER_WORKER[name, "standard"] * 1e9 / _FLOAT_BYTES
    return (values - 2 * ROUNDS * model) / (2 * (shape.inputs + 2 * ROUNDS * hidden))


def boundary_of_gamma(name: str, gamma: float) -> float:
    """Return the B that explains a published gamma of a graph.

    Both volumes are linear in B, so that equation 2 is solved by two values of each.

    Source: RETEXO, section 3.2, equation 2.
    """
    shape = shape_of(LARGE[name], "sage")
    none, many = (
        {one: volume.paper / 2 for one, volume in predict(shape, pairs_of_two(b), ROUNDS).items()}
        for b in (0, LARGE[name].nodes)
    )
    slopes = {one: (many[one] - none[one]) / LARGE[name].nodes for one in none}
    rest = gamma * none["lazy"] - none["standard"]
    return rest / (slopes["standard"] - gamma * slopes["lazy"])


def pairs_of_two(boundary: int) -> np.ndarray:
    """Return [2, 2] vectors of two clients with B boundary nodes each."""
    return np.array([[0, boundary], [boundary, 0]])
