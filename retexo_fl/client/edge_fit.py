"""Which edges of a part are trained on, and whether a layer takes what they weigh and carry."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from retexo_fl.errors import PartitionError
from retexo_fl.graph.keys import quoted
from retexo_fl.graph.neighbours import EdgeValues
from retexo_fl.graph.parts.partition import GraphPartition
from retexo_fl.layers.named import layer_class

logger = logging.getLogger(__name__)


def without_peers(partition: GraphPartition) -> GraphPartition:
    """Return the part without its boundary nodes and the edges to them.

    Degrees become those of the client's own subgraph.
    """
    kept = np.asarray(partition.indices) < partition.num_inner
    return replace(
        partition,
        indptr=np.concatenate(([0], np.cumsum(kept)))[partition.indptr],
        indices=np.asarray(partition.indices)[kept],
        boundary_keys=partition.boundary_keys[:0],
        boundary_owners=partition.boundary_owners[:0],
        boundary_hashes=partition.boundary_hashes[:0],
        edge_values=partition.edge_values.taken(kept),
    )


def check_edges(model: str, part: GraphPartition) -> None:
    """Refuse a part whose edges the layer cannot take.

    Raises:
        PartitionError: Edges weigh less than 0, have a direction or none, or have no attributes,
            and the layer takes no such edges.
        PluginError: The model is no layer.
    """
    layer, values = layer_class(model), part.edge_values
    if layer.directions not in {"either", "directed" if values.is_directed else "undirected"}:
        has, expected = ("have a direction", "undirected, or a model such as dir-sage")
        if not values.is_directed:
            has, expected = ("have no direction", "directed")
        raise PartitionError(
            f"client {part.client}: edges {has}, which model {model} does not take; expected "
            f"edges-are {expected}"
        )
    if layer.attributes == "needed" and not values.num_attributes:
        raise PartitionError(
            f"client {part.client}: edges have no attributes, which model {model} needs; expected "
            "columns e_* of edges, or edge_attr"
        )
    if layer.takes_weights == "positive" and values.weights is not None:
        _check_positive(model, part, values.weights)


def _check_positive(model: str, part: GraphPartition, weights: np.ndarray) -> None:
    negative = np.flatnonzero((weights < 0).reshape(-1))
    if not len(negative):
        return
    at = int(negative[0]) // (weights.size // len(weights))
    row = int(np.searchsorted(part.indptr, at, side="right")) - 1
    keys = np.concatenate((part.node_keys.astype(object), part.boundary_keys.astype(object)))
    ends = f"{quoted(keys[row])} and {quoted(keys[part.indices[at]])}"
    raise PartitionError(
        f"client {part.client}: the edge of {ends} weighs "
        f"{weights.reshape(-1)[negative[0]]:.6g}; expected at least 0 with model {model}"
    )


def as_read(model: str, part: GraphPartition) -> GraphPartition:
    """Return a part as a layer reads it: without what edges weigh or carry for others."""
    layer, values = layer_class(model), part.edge_values
    weights = values.weights
    if weights is not None and layer.takes_weights == "none":
        weights = (weights != 0).astype(np.float32) if values.is_directed else None
    attributes = None if layer.attributes == "none" else values.attributes
    return replace(part, edge_values=EdgeValues(weights=weights, attributes=attributes))


def note_unused_edges(model: str, parts: Sequence[GraphPartition]) -> None:
    """Say in one line what of the edges the layer does not read."""
    read = [as_read(model, part).edge_values for part in parts]
    unused = [
        name
        for name, key in (("weights", "edge_weights"), ("attributes", "edge_attributes"))
        if any(
            not np.array_equal(part.edge_values.named().get(key, 0), kept.named().get(key, 0))
            for part, kept in zip(parts, read, strict=True)
        )
    ]
    if unused:
        logger.warning("model %s: %s of edges not used", model, " and ".join(unused))
