"""About how much memory a training takes at a client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from scipy.sparse import csr_array

from retexo_fl.config import RunConfig
from retexo_fl.device_names import parse_devices
from retexo_fl.graph.parts.partition import GraphPartition
from retexo_fl.layers.named import layer_class
from retexo_fl.process_memory import PROCESS_BYTES, WORKER_BYTES
from retexo_fl.training.columns import with_structure
from retexo_fl.training.schedule import Schedule
from retexo_fl.training.stage_model import ModelShape, StageModel

#: Copies of a model's weights at once: as they came, bound, gradient, optimizer, update, answer.
WEIGHT_COPIES: Final = 8


def training_bytes(config: RunConfig, part: GraphPartition) -> float:
    """Return about how many bytes of memory a training takes.

    The formula of ``docs/edge.md``, which was fitted to measurements of lazy training by GraphSAGE
    with two layers, extended to more layers in memory at once, to attention, weights and workers.

    Args:
        config: Its model's plug-in, if it is one, is imported.
        part: The client's.

    Raises:
        PluginError: The model is no layer.
    """
    asked, part = parse_devices(config.devices), with_structure(part, config)
    workers = len(asked.gpus) + (0 if asked.cpu_is_own_process else asked.cpu_workers)
    weights = np.dtype(config.dtype).itemsize * WEIGHT_COPIES * _weight_count(_stages(config, part))
    return PROCESS_BYTES + workers * WORKER_BYTES + rows_bytes(config, part) + weights


def rows_bytes(config: RunConfig, part: GraphPartition) -> float:
    """Return about how many of these bytes are of the client's nodes and edges.

    Raises:
        PluginError: The model is no layer.
    """
    part = with_structure(part, config)
    nodes, boundary, edges = part.num_inner, part.num_boundary, len(part.indices)
    layers_at_once = max(map(len, _layers(_stages(config, part))))
    width = _feature_width(config, part) + max(layers_at_once - 1, 1) * config.hidden
    entries = (6 * nodes + 3 * boundary) * width + 70 * nodes + 13 * edges
    if layer_class(config.model).uses_heads:
        entries += 8 * edges * config.heads
    return float(np.dtype(config.dtype).itemsize * entries)


def _feature_width(config: RunConfig, part: GraphPartition) -> float:
    """Return the numbers that a row of input features takes, once rows are aggregated."""
    features = part.features
    if not isinstance(features, csr_array) or config.sampler != "none":
        return part.num_features
    nodes = max(part.num_inner, 1)
    filled = features.nnz / nodes * (1 + len(part.indices) / nodes)
    # A place beside each value.
    return float(min(2 * filled, part.num_features))


def _stages(config: RunConfig, part: GraphPartition) -> Schedule:
    return Schedule(shape=ModelShape.of_part(config, part))


def _layers(schedule: Schedule) -> list[Sequence[int]]:
    """Return the layers that each stage trains."""
    return [schedule.layers(stage) for stage in range(schedule.stages)]


def _weight_count(schedule: Schedule) -> int:
    """Return how many weights a message has: those of the largest stage."""
    shape = schedule.shape
    with torch.device("meta"):  # Sizes without values.
        models = (StageModel(shape, layer) for layer in range(shape.layers))
        counts = [sum(item.numel() for item in model.parameters()) for model in models]
    return max(sum(counts[layer] for layer in layers) for layers in _layers(schedule))
