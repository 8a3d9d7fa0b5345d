"""About how much memory a run takes whose clients share this process, phase by phase.

Where rows do not fit into it they are kept on disk, and one client's at a time are in memory.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, Self

import numpy as np
from scipy.sparse import csr_array

from retexo_fl.client.memory_estimate import WEIGHT_COPIES
from retexo_fl.config import RunConfig
from retexo_fl.config.value_forms import BUDGET_UNITS
from retexo_fl.errors import ConfigurationError
from retexo_fl.graph.parts.partition import GraphPartition
from retexo_fl.graph.sources.synthetic.degrees import PowerLaw
from retexo_fl.graph.sources.synthetic.spec import is_synthetic, parse_synthetic
from retexo_fl.layers.named import layer_class
from retexo_fl.process_memory import PROCESS_BYTES, available_bytes
from retexo_fl.relations import Relations
from retexo_fl.training.stage_model import ModelShape
from retexo_fl.units import format_bytes
from retexo_fl.updates import most_held

#: Copies of a client's own rows, and of those that it received, of the widths of a stage's input
#: and output; numbers for each edge. Fitted to peaks of lazy training.
_OWN_COPIES: Final = 4.5
_RECEIVED_COPIES: Final = 1.25
_NUMBERS_PER_EDGE: Final = 13
#: With rows on disk: what a stage trains on of all clients, with what it selects of that; of the
#: client whose turn it is, copies of own and of received rows, and bytes for an edge.
_TRAINED_COPIES: Final = 1.4
_OWN_COPIES_AT_ONCE: Final = 3.0
_RECEIVED_COPIES_AT_ONCE: Final = 2.2
_EDGE_BYTES_AT_ONCE: Final = 60
#: Bits of weights that are sent as they are.
_PLAIN_BITS: Final = 32
#: How much more all rows are where training is end to end.
_END_TO_END_COPIES: Final = 2.5
#: Bytes of a part for each node and edge, beside its features; and of a graph while it is cut.
_NODE_BYTES: Final = 80
_EDGE_BYTES: Final = 8
_CUTTING_COPIES: Final = 2.5
#: Of a budget that was named, what estimates may fill: peaks were up to 17 % above them.
_PART_OF_BUDGET: Final = 0.85
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
        largest: Share of all edges that the client has which has most.
        relations: Types of nodes and relations between them; None without.
    """

    nodes: int
    boundary: int
    edges: int
    features: int
    feature_numbers: int
    classes: int
    largest: float = 1.0
    relations: Relations | None = None

    @classmethod
    def of(cls, parts: Sequence[GraphPartition]) -> Self:
        """Count what parts have."""
        held = [part.features for part in parts]
        edges = [len(part.indices) for part in parts]
        return cls(
            nodes=sum(part.num_inner for part in parts),
            boundary=sum(part.num_boundary for part in parts),
            edges=sum(edges),
            features=parts[0].num_features,
            # Sparse ones have a place beside each value.
            feature_numbers=sum(2 * f.nnz if isinstance(f, csr_array) else f.size for f in held),
            classes=parts[0].num_classes,
            largest=max(edges) / max(sum(edges), 1),
            relations=parts[0].relations,
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
        if config.partitioner == "random":
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
            largest=1 / config.clients,
        )


def rows_are_on_disk(config: RunConfig, size: GraphSize) -> bool:
    """Return whether the rows of a run do not fit into its memory, and may be on disk.

    They may where a layer's messages are passed once: then nothing but what was aggregated is
    needed again.

    Raises:
        PluginError: The model is no layer.
    """
    plain = config.engine == "inline" and _at_once(config).rows_may_be_on_disk
    if not plain or not config.goal.sums_suffice or config.sampler != "none":
        return False
    if layer_class(config.model).fixed_width(1) is None:
        return False
    return max(memory_by_phase(config, size).values()) > budget_bytes(config)


def budget_bytes(config: RunConfig) -> float:
    """Return what a run may be estimated to take, by its budget or by what this process has."""
    room = available_bytes()
    budget = config.memory_budget
    if budget == "auto":
        return room
    return min(room, _PART_OF_BUDGET * float(budget[:-2]) * BUDGET_UNITS[budget[-2:]])


def memory_by_phase(
    config: RunConfig, size: GraphSize, *, on_disk: bool = False
) -> dict[str, float]:
    """Return about how many bytes the process has at most in each phase.

    Args:
        config: Its model's plug-in, if it is one, is imported.
        size: Of the graph.
        on_disk: Rows are kept there.

    Returns:
        By phase, in their order: ``parts``, then ``stage 0``, ``stage 1``, ...

    Raises:
        PluginError: The model is no layer.
    """
    item = np.dtype(config.dtype).itemsize
    parts = 4 * size.feature_numbers + _NODE_BYTES * size.nodes + _EDGE_BYTES * size.edges
    shape = _shape(config, size)
    phases = {"parts": PROCESS_BYTES + _CUTTING_COPIES * parts}
    if on_disk:
        return phases | _phases_on_disk(config, size, shape, PROCESS_BYTES + parts)
    kept = PROCESS_BYTES + parts + item * _NUMBERS_PER_EDGE * size.edges
    if layer_class(config.model).uses_heads:
        kept += item * 8 * size.edges * config.heads
    boundary = 0 if config.traits.drops_edges else size.boundary
    widths = _widths(size, shape)
    rows = _OWN_COPIES * size.nodes + _RECEIVED_COPIES * boundary
    weights = [_weight_count(shape, layer) for layer in range(shape.layers)]
    at_once = _at_once(config)
    for stage, numbers in enumerate(at_once.by_stage(config, rows, widths, weights)):
        phases[f"stage {stage}"] = kept + item * numbers
    return phases


def _phases_on_disk(
    config: RunConfig, size: GraphSize, shape: ModelShape, kept: float
) -> dict[str, float]:
    """Return what stages take of which one client's rows at a time are in memory."""
    item = np.dtype(config.dtype).itemsize
    own, received = _OWN_COPIES_AT_ONCE * size.nodes, _RECEIVED_COPIES_AT_ONCE * size.boundary
    phases, before = {}, 0.0
    for stage, width in enumerate(_widths(size, shape)):
        read = layer_class(config.model).fixed_width(1) or 1
        trained = _TRAINED_COPIES * size.nodes * width * read
        at_once = size.largest * (own + received) * width
        weights = _OneLayer.weight_copies(config) * _weight_count(shape, stage)
        numbers = max(trained, before) + at_once + weights
        edges = size.largest * _EDGE_BYTES_AT_ONCE * size.edges
        phases[f"stage {stage}"] = kept + item * numbers + edges
        before = trained
    return phases


class _OneLayer:
    """What is in memory at once where layers are trained one after the other."""

    rows_may_be_on_disk: ClassVar[bool] = True

    @staticmethod
    def weight_copies(config: RunConfig) -> int:
        """Return how often a stage's weights are there.

        One client computes at a time; each holds what it was sent where changes of it follow.
        """
        held = most_held(config.patience) if config.weight_bits < _PLAIN_BITS else 0
        return 2 * WEIGHT_COPIES + config.clients * held

    @classmethod
    def by_stage(
        cls, config: RunConfig, rows: float, widths: Sequence[float], weights: Sequence[int]
    ) -> Iterator[float]:
        """Yield how many numbers each stage has in memory.

        Args:
            config: Of the run.
            rows: Copies of all clients' rows.
            widths: Of what each layer reads.
            weights: Of each layer.
        """
        for layer, count in enumerate(weights):
            # A stage's rows are there with those of the stage before.
            width = sum(widths[max(layer - 1, 0) : layer + 1])
            yield rows * width + cls.weight_copies(config) * count


class _AllLayers:
    """What is in memory at once where one stage trains all layers, with a gradient for each row."""

    rows_may_be_on_disk: ClassVar[bool] = False

    @staticmethod
    def by_stage(
        config: RunConfig, rows: float, widths: Sequence[float], weights: Sequence[int]
    ) -> Iterator[float]:
        """Do what :meth:`_OneLayer.by_stage` does; all clients' weights are there."""
        copies = _END_TO_END_COPIES if config.sampler == "none" else 1.0
        weight_copies = WEIGHT_COPIES * (config.clients + 1)
        yield rows * (copies * sum(widths)) + weight_copies * sum(weights)


def _at_once(config: RunConfig) -> type[_OneLayer | _AllLayers]:
    return _AllLayers if config.traits.end_to_end else _OneLayer


def disk_bytes(config: RunConfig, size: GraphSize) -> float:
    """Return how many bytes the rows of a run take at most where they are on disk."""
    shape = _shape(config, size)
    item = np.dtype(config.dtype).itemsize
    return item * (size.nodes + size.boundary) * sum(_widths(size, shape))


def row_widths(config: RunConfig, size: GraphSize) -> list[float]:
    """Return the numbers of a row that each stage reads, with sparse ones as many as they have."""
    return _widths(size, _shape(config, size))


def _shape(config: RunConfig, size: GraphSize) -> ModelShape:
    return ModelShape.of(
        config, inputs=size.features, classes=size.classes, relations=size.relations
    )


def _widths(size: GraphSize, shape: ModelShape) -> list[float]:
    """Return the numbers of a row that each stage reads."""
    later = [float(shape.input_width(stage)) for stage in range(1, shape.layers)]
    return [_feature_width(size), *later]


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


def check_memory(config: RunConfig, size: GraphSize, folder: Path) -> None:
    """Refuse a run that takes more memory than this process may have, or more disk.

    Args:
        config: Of the run.
        size: Of its graph.
        folder: Where its rows would be, or any folder above that is there.

    Raises:
        ConfigurationError: Names the phase, what it takes, and what there is.
    """
    on_disk = rows_are_on_disk(config, size)
    most, most_bytes = _most(config, size, on_disk=on_disk)
    if most_bytes > budget_bytes(config):
        raise ConfigurationError(
            f"memory: {most} takes about {format_bytes(most_bytes)}"
            f"{' with rows on disk' if on_disk else ''}; expected at most the "
            f"{format_bytes(budget_bytes(config))} that {_whose(config)}: fewer clients, a "
            "smaller hidden or another graph, or --force"
        )
    if not on_disk:
        return
    there = next(path for path in (folder, *folder.parents) if path.is_dir())
    free_bytes = shutil.disk_usage(there).free
    if disk_bytes(config, size) > free_bytes:
        raise ConfigurationError(
            f"disk: rows take up to {format_bytes(disk_bytes(config, size))}; expected at most the "
            f"{format_bytes(free_bytes)} that are free in {there}: another --out, a larger "
            "--memory-budget, or --force"
        )


def _whose(config: RunConfig) -> str:
    if config.memory_budget == "auto":
        return "this process may have"
    return f"may be planned of memory-budget {config.memory_budget}"


def memory_sentence(config: RunConfig, size: GraphSize) -> str:
    """Say how much memory a run takes, in which phase, and how much there is."""
    on_disk = rows_are_on_disk(config, size)
    most, most_bytes = _most(config, size, on_disk=on_disk)
    disk = f", and up to {format_bytes(disk_bytes(config, size))} of disk" if on_disk else ""
    room = format_bytes(budget_bytes(config))
    there = f"this process may have {room}"
    if config.memory_budget != "auto":
        there = f"{room} {_whose(config)}"
    return f"memory: about {format_bytes(most_bytes)}, in {most}{disk}; {there}"


def _most(config: RunConfig, size: GraphSize, *, on_disk: bool) -> tuple[str, float]:
    """Return the phase that takes most, and its bytes."""
    phases = memory_by_phase(config, size, on_disk=on_disk)
    most = max(phases, key=lambda phase: phases[phase])
    return most, phases[most]
