"""A client's part as its model reads it, and what others may learn of it.

Which edges are trained on, and whether a layer takes what they weigh and carry; how many nodes
there are of each use and class.
"""

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
from retexo_fl.masking.agreement import USES
from retexo_fl.training.label_facts import class_counts, classes_by_use
from retexo_fl.training.model_checks import OVER_TYPES, takes_types
from retexo_fl.training.stage_pass import NodeSets

logger = logging.getLogger(__name__)


class ClientPart:
    """A client's part as its model reads it, and the nodes that it may add to sums.

    Args:
        graph: The part; without peers where edges to them are dropped.
        model: Name of the model.

    Attributes:
        graph: The part as the model's layers read it.
        edge_values: What its edges weigh and carry, also what the model does not read.
        uses: Of :data:`.USES`, what it adds to sums: to others it adds zeros.
        nodes: Its labelled nodes of these uses.

    Raises:
        PartitionError: As :func:`check_edges`; likewise ``PluginError``.
    """

    def __init__(self, graph: GraphPartition, model: str) -> None:
        check_edges(model, graph)
        self.edge_values = graph.edge_values
        self.graph = as_read(model, graph)
        self.uses = frozenset(USES)
        self.nodes = node_sets(self.graph)

    def restrict(self, uses: frozenset[str]) -> None:
        """Add nothing to sums of other uses than these."""
        self.uses = uses
        self.nodes = node_sets(self.graph).only(uses)

    @property
    def left_out(self) -> frozenset[str]:
        """Uses to whose sums it adds zeros."""
        return frozenset(USES) - self.uses

    @property
    def train_labels(self) -> np.ndarray:
        """Labels of its train nodes, as stored."""
        return self._labels_by_use()["train"]

    def counts(self) -> dict[str, int]:
        """Return how many nodes, or pairs, it has of each use, also of those not added to sums."""
        return {use: len(rows) for use, rows in node_sets(self.graph).by_use.items()}

    def label_uses(self) -> tuple[int, ...]:
        """Return the (C,) uses of each class: see :func:`.classes_by_use`."""
        return classes_by_use(self._labels_by_use(), self.graph.num_classes)

    def class_counts(self) -> tuple[int, ...]:
        """Return the (3 C,) nodes of each class by use: see :func:`.class_counts`."""
        return class_counts(self._labels_by_use(), self.graph.num_classes)

    def _labels_by_use(self) -> dict[str, np.ndarray]:
        nodes = self.nodes
        return {use: np.asarray(nodes.labels[rows]) for use, rows in nodes.by_use.items()}


def node_sets(partition: GraphPartition) -> NodeSets:
    """Return the labelled inner nodes by use."""
    relations, by_type = partition.relations, None
    if relations is not None and len(relations.with_labels) > 1:
        by_type = np.asarray(partition.kinds) == np.array(relations.with_labels)[:, None]
    return NodeSets(
        by_type=by_type,
        train=np.flatnonzero(partition.train_mask),
        validation=np.flatnonzero(partition.val_mask),
        test=np.flatnonzero(partition.test_mask),
        labels=np.asarray(partition.labels),
    )


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
    if not takes_types(model, has_types=part.relations is not None):
        has, expected = ("have types", OVER_TYPES) if part.relations else ("have no types", "sage")
        raise PartitionError(
            f"client {part.client}: nodes {has}, which model {model} does not take; expected "
            f"model {expected}"
        )
    if part.relations is None and layer.directions not in {
        *("either", "any"),
        "directed" if values.is_directed else "undirected",
    }:
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
