"""Cutting a whole graph into the partitions of its clients."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from retexo_fl.errors import PartitionError
from retexo_fl.graph.checks import ArrayChecks
from retexo_fl.graph.features import Features
from retexo_fl.graph.graph import Graph
from retexo_fl.graph.keys import hash_keys, narrow_keys
from retexo_fl.graph.masks import Split
from retexo_fl.graph.neighbours import EdgeValues
from retexo_fl.graph.parts.partition import GraphPartition
from retexo_fl.graph.recipes.recipe import FeatureRecipe
from retexo_fl.relations import Relations


def cut_graph(graph: Graph, assignment: np.ndarray, split: Split) -> list[GraphPartition]:
    """Cut a graph into one partition for each client.

    Args:
        graph: The whole graph.
        assignment: [N] client of each node; clients are 0 to the largest one, each with a node.
        split: Masks over the whole graph.

    Returns:
        The partitions in client order. A client may be without train nodes, a node without edges.

    Raises:
        PartitionError: The assignment or the split does not fit the graph.
    """
    owners = _checked_assignment(graph, assignment)
    checks = ArrayChecks(source="split", error=PartitionError)
    checks.masks(split.named(), graph.labelled)
    ordered = _in_client_order(graph, owners, split)
    partitioning = _partitioning_id(graph, owners, split)
    num_clients = len(ordered.starts) - 1
    slots = np.empty(graph.num_nodes, dtype=np.int32)
    return [_cut(ordered, partitioning, client, slots) for client in range(num_clients)]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _OrderedGraph:
    """The graph with its nodes sorted by (client, key), so that a client is a range of rows.

    ``owners``, ``keys``, ... are in that order, ``indices`` are positions in it, sorted in each
    row; client c owns positions ``starts[c]`` to ``starts[c + 1]``.
    """

    starts: np.ndarray
    owners: np.ndarray
    keys: np.ndarray
    hashes: np.ndarray
    indptr: np.ndarray
    indices: np.ndarray
    features: Features
    labels: np.ndarray
    split: Split
    num_classes: int
    recipe: FeatureRecipe | None
    edge_values: EdgeValues
    relations: Relations | None


def _checked_assignment(graph: Graph, assignment: np.ndarray) -> np.ndarray:
    checks = ArrayChecks(source="assignment", error=PartitionError)
    checks.form("clients", assignment, kinds="iu", shape=(graph.num_nodes,))
    owners = assignment.astype(np.int32)
    if owners.min() < 0:
        checks.fail("clients", f"row {np.argmin(owners)} is {owners.min()}; expected at least 0")
    if owners.max() >= graph.num_nodes:
        checks.fail(
            "clients",
            f"row {np.argmax(owners)} is {owners.max()}; expected no more clients than the "
            f"{graph.num_nodes} nodes",
        )
    empty = np.flatnonzero(np.bincount(owners) == 0)
    if len(empty):
        checks.fail("clients", f"client {empty[0]} has no nodes; expected at least one")
    return owners


def _in_client_order(graph: Graph, owners: np.ndarray, split: Split) -> _OrderedGraph:
    order = np.lexsort((graph.node_keys, owners))
    position = np.empty(len(order), dtype=np.int32)
    position[order] = np.arange(len(order), dtype=np.int32)
    edges = csr_array(
        (_numbers(graph.edge_values, len(graph.indices)), graph.indices, graph.indptr),
        shape=(graph.num_nodes, graph.num_nodes),
    )[order]
    moved = csr_array((edges.data, position[edges.indices], edges.indptr), shape=edges.shape)
    moved.sort_indices()
    keys = graph.node_keys[order]
    return _OrderedGraph(
        starts=np.concatenate(([0], np.cumsum(np.bincount(owners)))),
        owners=owners[order],
        keys=keys,
        hashes=hash_keys(keys),
        indptr=moved.indptr.astype(np.int64),
        indices=moved.indices,
        features=graph.features[order],
        labels=graph.labels[order],
        split=Split(train=split.train[order], val=split.val[order], test=split.test[order]),
        num_classes=graph.num_classes,
        recipe=graph.recipe,
        edge_values=graph.edge_values.taken(moved.data),
        relations=graph.relations,
    )


def _numbers(values: EdgeValues, count: int) -> np.ndarray:
    """Return what edges are numbered by while they are ordered; nothing where all are alike."""
    return np.empty(count, dtype=np.int8) if values.is_plain else np.arange(count)


def _cut(
    ordered: _OrderedGraph, partitioning: str, client: int, slots: np.ndarray
) -> GraphPartition:
    first, end = int(ordered.starts[client]), int(ordered.starts[client + 1])
    own = slice(first, end)
    indptr = ordered.indptr[first : end + 1] - ordered.indptr[first]
    held = slice(ordered.indptr[first], ordered.indptr[end])
    values = ordered.edge_values.taken(held)
    numbers = _numbers(values, int(indptr[-1]))
    boundary, indices, numbers = _local_indices(
        indptr, ordered.indices[held], numbers, (first, end), slots
    )
    return GraphPartition(
        partitioning=partitioning,
        client=client,
        num_clients=len(ordered.starts) - 1,
        node_keys=narrow_keys(ordered.keys[own]),
        indptr=indptr,
        indices=indices,
        boundary_keys=narrow_keys(ordered.keys[boundary]),
        boundary_owners=ordered.owners[boundary],
        node_hashes=ordered.hashes[own],
        boundary_hashes=ordered.hashes[boundary],
        features=_rows(ordered.features, first, end),
        labels=ordered.labels[own],
        train_mask=ordered.split.train[own],
        val_mask=ordered.split.val[own],
        test_mask=ordered.split.test[own],
        num_classes=ordered.num_classes,
        recipe=ordered.recipe,
        edge_values=values.taken(numbers),
        relations=ordered.relations,
    )


def _local_indices(
    indptr: np.ndarray,
    neighbours: np.ndarray,
    numbers: np.ndarray,
    own: tuple[int, int],
    slots: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the positions of a client's boundary nodes, its columns, and their numbers.

    Positions ascend by (client, key), which is the order of the boundary slots.

    Args:
        indptr: [n + 1].
        neighbours: [e] positions.
        numbers: [e].
        own: Where the client's positions begin and end.
        slots: [N] room for the slot of each position: looked up, an edge's takes no search, and
            of one array for all clients only those are written that a client has.

    Returns:
        [b] positions, [e] int32 columns, ascending in each row, [e] numbers in their order.
    """
    first, end = own
    inner = (neighbours >= first) & (neighbours < end)
    crossing = neighbours[~inner]
    boundary = _different(crossing)
    slots[boundary] = np.arange(len(boundary), dtype=np.int32)
    columns = neighbours - first
    columns[~inner] = end - first + slots[crossing]
    width = end - first + len(boundary)
    matrix = csr_array((numbers, columns, indptr), shape=(end - first, width))
    matrix.sort_indices()
    return boundary, matrix.indices.astype(np.int32, copy=False), matrix.data


def _different(values: np.ndarray) -> np.ndarray:
    """Return the different values, ascending; on so many, ``np.unique`` takes ten times longer."""
    ordered = np.sort(values)
    begins = np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]
    different: np.ndarray = ordered[begins]
    return different


def _rows(features: Features, first: int, end: int) -> Features:
    if isinstance(features, np.ndarray):
        return features[first:end]
    start, stop = features.indptr[first], features.indptr[end]
    return csr_array(
        (
            features.data[start:stop],
            features.indices[start:stop],
            features.indptr[first : end + 1] - start,
        ),
        shape=(end - first, features.shape[1]),
    )


def _partitioning_id(graph: Graph, owners: np.ndarray, split: Split) -> str:
    """Return the SHA-256 of everything that the partitions are made from, as hex digits.

    The graph's name is not among it: a graph is the same in whatever file it comes.
    """
    if isinstance(graph.features, np.ndarray):
        features = [graph.features]
    else:
        sparse = graph.features
        features = [sparse.indptr.astype("<i8"), sparse.indices.astype("<i4"), sparse.data]
    arrays = [graph.node_keys, graph.indptr, graph.indices.astype("<i4"), *features]
    arrays += [graph.labels, owners, *split.named().values()]
    if graph.relations is not None:
        arrays.append(np.array([graph.relations.text.encode()]))
    for name, array in graph.edge_values.named().items():
        arrays += [np.array([name.encode()]), array]
    state = hashlib.sha256(f"{graph.num_classes}\n".encode())
    for array in arrays:
        little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        state.update(f"{little.dtype.str} {little.shape}\n".encode())
        state.update(little.data)
    return state.hexdigest()
