"""About how much memory a run takes whose clients share this process, phase by phase."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from scipy.sparse import csr_array

from retexo_fl.client.memory_estimate import PROCESS_BYTES, WEIGHT_COPIES, available_bytes
from retexo_fl.config import RunConfig
from retexo_fl.errors import ConfigurationError
from retexo_fl.graph import GraphPartition
from retexo_fl.graph.sources.synthetic.degrees import PowerLaw
from retexo_fl.graph.sources.synthetic.spec import is_synthetic, parse_synthetic
from retexo_fl.layers.named import layer_class
from retexo_fl.training.stage_model import ModelShape
from retexo_fl.units import format_bytes

#: Copies of a client's own rows, and of those that it received, of the widths of a stage's input
#: and output; numbers for each edge. Fitted to peaks of lazy training (docs/design.md).
_OWN_COPIES: Final = 4.5
_RECEIVED_COPIES: Final = 1.25
_NUMBERS_PER_EDGE: Final = 13
#: How much more all rows are where training is end to end.
_END_TO_END_COPIES: Final = 2.5
#: Bytes of a part for each node and edge, beside its features; and of a graph while it is cut.
_NODE_BYTES: Final = 80
_EDGE_BYTES: Final = 8
_CUTTING_COPIES: Final = 2.5
#: Nodes by whose degrees the boundary of a graph is foreseen that is not made yet.
_DEGREES: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSize:
    """Sizes of all clients' parts together.

    Attributes:
        nodes: N.
        boundary: Boundary nodes, each counted for each client that has it.
        edges: Directed edges.
        features: F.
        feature_numbers: Numbers that hold the features.
        classes: C.
    """

    nodes: int
    boundary: int
    edges: int
    features: int
    feature_numbers: int
    classes: int

    @classmethod
    def of(cls, parts: Sequence[GraphPartition]) -> Self:
        """Count what parts have."""
        held = [part.features for part in parts]
        return cls(
            nodes=sum(part.num_inner for part in parts),
            boundary=sum(part.num_boundary for part in parts),
            edges=sum(len(part.indices) for part in parts),
            features=parts[0].num_features,
            # Sparse ones have a place beside each value.
            feature_numbers=sum(2 * f.nnz if isinstance(f, csr_array) else f.size for f in held),
            classes=parts[0].num_classes,
        )

    @classmethod
    def foreseen(cls, config: RunConfig) -> Self | None:
        """Return the size of a synthetic graph before it is made; None of any other.

        A boundary is foreseen where nodes are assigned at random; else there is none yet.

        Raises:
            DatasetError: No such graph exists.
        """
        if config.partitions or config.nodes or not is_synthetic(config.dataset):
            return None
        spec = parse_synthetic(config.dataset)
        boundary = 0.0
        if config.partitioner == "random" and not config.traits.drops_edges:
            law = PowerLaw.of(spec)
            places = (np.arange(_DEGREES) + 0.5) / _DEGREES
            weights = (law.cut + (1 - law.cut) * places) ** (-1 / (law.power - 1))
            degrees = weights * (2 * spec.edges / spec.nodes / weights.mean())
            # Of each other client: whether at least one of the edges leads to it.
            reached = 1 - np.exp(-degrees / config.clients)
            boundary = (config.clients - 1) * spec.nodes * float(reached.mean())
        return cls(
            nodes=spec.nodes,
            boundary=round(boundary),
            edges=2 * spec.edges,
            features=spec.features,
            feature_numbers=spec.nodes * (2 * spec.words or spec.features),
            classes=spec.classes,
        )


def memory_by_phase(config: RunConfig, size: GraphSize) -> dict[str, float]:
    """Return about how many bytes the process has at most in each phase.

    Args:
        config: Its model's plug-in, if it is one, is imported.
        size: Of the graph.

    Returns:
        By phase, in their order: ``parts``, then ``stage 0``, ``stage 1``, ...

    Raises:
        PluginError: The model is no layer.
    """
    item = np.dtype(config.dtype).itemsize
    parts = 4 * size.feature_numbers + _NODE_BYTES * size.nodes + _EDGE_BYTES * size.edges
    shape = ModelShape.of(config, inputs=size.features, classes=size.classes)
    phases = {"parts": PROCESS_BYTES + _CUTTING_COPIES * parts}
    kept = PROCESS_BYTES + parts + item * _NUMBERS_PER_EDGE * size.edges
    if layer_class(config.model).uses_heads:
        kept += item * 8 * size.edges * config.heads
    boundary = 0 if config.traits.drops_edges else size.boundary
    widths = [_feature_width(size)]
    widths += [float(shape.input_width(stage)) for stage in range(1, shape.layers)]
    rows = _OWN_COPIES * size.nodes + _RECEIVED_COPIES * boundary
    # A stage's rows are there with those of the stage before.
    at_once = [sum(widths[max(stage - 1, 0) : stage + 1]) for stage in range(shape.layers)]
    weights = [_weight_count(shape, stage) for stage in range(shape.layers)]
    if config.traits.end_to_end:
        # One stage has all layers, and a gradient for each row.
        copies = _END_TO_END_COPIES if config.sampler == "none" else 1.0
        at_once, weights = [copies * sum(widths)], [sum(weights)]
    for stage, (width, count) in enumerate(zip(at_once, weights, strict=True)):
        numbers = rows * width + WEIGHT_COPIES * (config.clients + 1) * count
        phases[f"stage {stage}"] = kept + item * numbers
    return phases


def _weight_count(shape: ModelShape, stage: int) -> int:
    """Return about how many weights a layer has: for a node's own row, and for its neighbours'."""
    layer = shape.layer_shape(stage)
    return 2 * layer.inputs * layer.outputs


def _feature_width(size: GraphSize) -> float:
    """Return the numbers that a row of input features takes, once rows are aggregated."""
    nodes = max(size.nodes, 1)
    filled = size.feature_numbers / nodes
    if filled >= size.features:
        return float(size.features)
    return float(min(filled * (1 + size.edges / nodes), size.features))


def check_memory(config: RunConfig, size: GraphSize) -> None:
    """Refuse a run that takes more memory than this process may have.

    Raises:
        ConfigurationError: Names the phase, what it takes, and what there is.
    """
    phases, room_bytes = memory_by_phase(config, size), available_bytes()
    most = max(phases, key=lambda phase: phases[phase])
    if phases[most] > room_bytes:
        raise ConfigurationError(
            f"memory: {most} takes about {format_bytes(phases[most])}; expected at most the "
            f"{format_bytes(room_bytes)} that this process may have: fewer clients, a smaller "
            "hidden or another graph, or --force"
        )


def memory_sentence(config: RunConfig, size: GraphSize) -> str:
    """Say how much memory a run takes, in which phase, and how much there is."""
    phases = memory_by_phase(config, size)
    most = max(phases, key=lambda phase: phases[phase])
    return (
        f"memory: about {format_bytes(phases[most])}, in {most}; this process may have "
        f"{format_bytes(available_bytes())}"
    )
