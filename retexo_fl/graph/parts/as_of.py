"""A client's part of a graph as it was at several points in time, as one part.

Train nodes are read with the edges before the first point, validation nodes with those before the
second, test nodes with those before the third. A node is there once for each of these in which it
has an edge or its use, and edges join the same point's nodes. Whatever trains on parts trains so:
rows of boundary nodes cross for each point, and are counted as all rows are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from scipy.sparse import csr_array, vstack

from retexo_fl.graph.features import Features
from retexo_fl.graph.keys import narrow_keys, of_cut
from retexo_fl.graph.neighbours import EdgeValues
from retexo_fl.graph.parts.partition import GraphPartition


def joined_cuts(parts: Sequence[GraphPartition], cuts: Sequence[str]) -> GraphPartition:
    """Join a client's parts at several points in time.

    Args:
        parts: One of each point, with the same nodes; of the first train nodes are used, of the
            second validation nodes, of the third test nodes.
        cuts: What each point is called, for keys.

    Returns:
        The part, whose nodes' keys end in the point's name. A client whose nodes have neither edge
        nor use keeps its first node.
    """
    parts = [_of_use(part, place) for place, part in enumerate(parts)]
    kept = [_kept(part) for part in parts]
    if not any(len(rows) for rows in kept):
        kept[0] = np.zeros(1, dtype=np.int64)
    both = list(zip(parts, kept, strict=True))
    keys = np.concatenate(
        [of_cut(part.node_keys[rows], cut) for (part, rows), cut in zip(both, cuts, strict=True)]
    )
    foreign = np.concatenate(
        [of_cut(part.boundary_keys, cut) for part, cut in zip(parts, cuts, strict=True)]
    )
    owners = _joined(part.boundary_owners for part in parts)
    order, slots = np.argsort(keys), np.lexsort((foreign, owners))
    indptr, indices, places = _edges(parts, kept, order, slots)
    return replace(
        parts[0],
        partitioning=_partitioning(parts, cuts),
        node_keys=narrow_keys(keys[order]),
        indptr=indptr,
        indices=indices,
        boundary_keys=narrow_keys(foreign[slots]),
        boundary_owners=owners[slots],
        node_hashes=_joined(part.node_hashes[rows] for part, rows in both)[order],
        boundary_hashes=_joined(part.boundary_hashes for part in parts)[slots],
        features=_features([part.features[rows] for part, rows in both], order),
        labels=_joined(part.labels[rows] for part, rows in both)[order],
        train_mask=_joined(part.train_mask[rows] for part, rows in both)[order],
        val_mask=_joined(part.val_mask[rows] for part, rows in both)[order],
        test_mask=_joined(part.test_mask[rows] for part, rows in both)[order],
        edge_values=_values(parts).taken(places),
    )


def _partitioning(parts: Sequence[GraphPartition], cuts: Sequence[str]) -> str:
    """Return the name of the joined parts of all clients: another one for other points in time."""
    told = "".join(f"{part.partitioning} {cut}\n" for part, cut in zip(parts, cuts, strict=True))
    return hashlib.sha256(told.encode()).hexdigest()


def _of_use(part: GraphPartition, place: int) -> GraphPartition:
    none = np.zeros(part.num_inner, dtype=bool)
    train, val, test = (
        mask if at == place else none for at, mask in enumerate(part.split.named().values())
    )
    return replace(part, train_mask=train, val_mask=val, test_mask=test)


def _kept(part: GraphPartition) -> np.ndarray:
    """Return the inner nodes that have an edge, or a use."""
    is_used = np.asarray(part.train_mask) | part.val_mask | part.test_mask
    return np.flatnonzero(is_used | (np.diff(part.indptr) > 0))


def _edges(
    parts: Sequence[GraphPartition],
    kept: Sequence[np.ndarray],
    order: np.ndarray,
    slots: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return offsets and columns of the joined part, and where each of its edges was.

    Args:
        parts: At each point.
        kept: Inner nodes of each that stay.
        order: [n] of all that stay, how they are sorted.
        slots: [b] of all boundary nodes, likewise.
    """
    nodes, position, slot = len(order), np.argsort(order), np.argsort(slots)
    columns, degrees = [], []
    first_node = first_slot = 0
    for part, rows in zip(parts, kept, strict=True):
        # A neighbour has an edge, so it stays.
        place = np.zeros(part.num_inner + part.num_boundary, dtype=np.int64)
        place[rows] = position[first_node : first_node + len(rows)]
        place[part.num_inner :] = nodes + slot[first_slot : first_slot + part.num_boundary]
        columns.append(place[part.indices])
        degrees.append(np.diff(part.indptr)[rows])
        first_node += len(rows)
        first_slot += part.num_boundary
    offsets = np.concatenate(([0], np.cumsum(np.concatenate(degrees))))
    found = csr_array(
        (np.arange(offsets[-1]), np.concatenate(columns), offsets),
        shape=(nodes, nodes + len(slots)),
    )[order]
    found.sort_indices()
    return found.indptr.astype(np.int64), found.indices.astype(np.int32), found.data


def _values(parts: Sequence[GraphPartition]) -> EdgeValues:
    """Return what the edges of all points carry; they weigh 1 where some have no weights."""
    values = [part.edge_values for part in parts]
    weights = attributes = None
    if any(each.weights is not None for each in values):
        weights = _joined(
            np.ones(len(part.indices), np.float32) if each.weights is None else each.weights
            for part, each in zip(parts, values, strict=True)
        )
    if any(each.attributes is not None for each in values):
        attributes = _joined(each.attributes for each in values if each.attributes is not None)
    return EdgeValues(weights=weights, attributes=attributes)


def _features(found: Sequence[Features], order: np.ndarray) -> Features:
    if isinstance(found[0], np.ndarray):
        return np.concatenate(found)[order]
    return csr_array(csr_array(vstack(found, format="csr"))[order])


def _joined(arrays: Iterable[np.ndarray]) -> np.ndarray:
    return np.concatenate([*arrays])
