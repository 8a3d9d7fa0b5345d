"""Whether a layer can be trained on what a part's edges weigh and carry."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from retexo_fl.errors import PartitionError
from retexo_fl.graph import GraphPartition
from retexo_fl.graph.neighbours import EdgeValues
from retexo_fl.layers.named import layer_class

logger = logging.getLogger(__name__)


def check_edges(model: str, part: GraphPartition) -> None:
    """Refuse a part whose edges the layer cannot take.

    Raises:
        PartitionError: An edge weighs less than 0, or edges have a direction, and the layer takes
            no such edges.
        PluginError: The model is no layer.
    """
    layer, weights = layer_class(model), part.edge_values.weights
    if weights is None:
        return
    if part.edge_values.is_directed:
        raise PartitionError(
            f"client {part.client}: edges have a direction, which model {model} does not take; "
            "expected edges-are undirected"
        )
    if layer.takes_weights == "positive" and (weights < 0).any():
        at = int(np.argmax(weights < 0))
        row = int(np.searchsorted(part.indptr, at, side="right")) - 1
        keys = np.concatenate((part.node_keys.astype(object), part.boundary_keys.astype(object)))
        raise PartitionError(
            f"client {part.client}: the edge of {keys[row]!r} and {keys[part.indices[at]]!r} "
            f"weighs {weights[at]:.6g}; expected at least 0 with model {model}"
        )


def as_read(model: str, part: GraphPartition) -> GraphPartition:
    """Return a part as a layer reads it: without what edges weigh or carry for others."""
    values = part.edge_values
    weights = None if layer_class(model).takes_weights == "none" else values.weights
    return replace(part, edge_values=EdgeValues(weights=weights))


def note_unused_edges(model: str, parts: Sequence[GraphPartition]) -> None:
    """Say in one line what of the edges the layer does not read."""
    layer, values = layer_class(model), parts[0].edge_values
    unused = []
    if values.weights is not None and layer.takes_weights == "none":
        unused.append("weights")
    if values.num_attributes:
        unused.append("attributes")
    if unused:
        logger.warning("model %s: %s of edges not used", model, " and ".join(unused))
