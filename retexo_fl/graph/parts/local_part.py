"""A client's part from the client's own tables; no process reads the whole graph."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from retexo_fl.errors import ConfigurationError, TableError
from retexo_fl.graph.checks import ArrayChecks
from retexo_fl.graph.features import Features
from retexo_fl.graph.keys import hash_keys, narrow_keys
from retexo_fl.graph.masks import Split, published_split
from retexo_fl.graph.neighbours import (
    IN,
    OUT,
    PLAIN,
    EdgeValues,
    NeighbourLists,
    neighbour_lists,
)
from retexo_fl.graph.npy import memory_bytes
from retexo_fl.graph.parts.key_split import split_by_key
from retexo_fl.graph.parts.partition import GraphPartition, check_partition
from retexo_fl.graph.parts.peers import Peers
from retexo_fl.graph.scale import tell_scale
from retexo_fl.graph.sources.edge_rules import EdgeList, EdgeRules, ruled_edges, tell_unknown
from retexo_fl.graph.sources.tables import BoundaryTable, EdgeTable, NodeTable, edge_rows
from retexo_fl.graph.sources.tables.edges import check_pairs_once, key_rows
from retexo_fl.graph.sources.tables.source import MASK_COLUMNS, shown
from retexo_fl.graph.time_split import TIME_COLUMN, split_by_time, time_columns
from retexo_fl.units import counted, format_bytes

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClientTables:
    """What one client has of the graph.

    Attributes:
        nodes: Its own nodes.
        edges: Edges between them; None where there are none.
        boundary: Edges from them to nodes of peers; None where there are none.
    """

    nodes: NodeTable
    edges: EdgeTable | None = None
    boundary: BoundaryTable | None = None


def make_local_part(  # noqa: PLR0913 - so much is agreed on
    tables: ClientTables,
    peers: Peers,
    client: int,
    *,
    split: str = "",
    seed: int = 0,
    merge: str = "refuse",
    self_loops: str = "refuse",
    unknown: str = "refuse",
    time_column: str = TIME_COLUMN,
) -> GraphPartition:
    """Make the part of one client; it equals the one that is cut from the whole graph.

    Args:
        tables: Of this client alone, with edges that are early enough.
        peers: What all clients agree on.
        client: Index of this client.
        split: Empty for the column ``split``; ``by-key:TRAIN/VAL/TEST`` where there is none, or
            ``time:VAL/TEST`` with or without ``/END``, whether there is one or not.
        seed: Of ``by-key``; the same at all clients.
        merge: What becomes of repeated edges, as in :class:`EdgeRules`; the same at all clients.
        self_loops: Likewise.
        unknown: What becomes of edges of own nodes that are not in the table; ``refuse`` or
            ``drop``.
        time_column: The attribute of the nodes' table that says when they came.

    Raises:
        TableError: Tables contradict each other or the peers file; one line names file and row.
        ConfigurationError: The split is missing, given twice, or not of its form.
        PartitionError: The part does not satisfy what every part must.
    """
    nodes = tables.nodes
    peers.check_recipe(nodes.recipe)
    rules = EdgeRules(directed=peers.directed, merge=merge, self_loops=self_loops, unknown=unknown)
    _check_labels(nodes, peers)
    _check_edge_features(tables, peers)
    masks = _split(nodes, split, seed, time_column)
    order = np.argsort(nodes.keys, kind="stable")
    boundary = _boundary(tables, peers, client, rules)
    lists = _neighbours(tables, peers, order, boundary, rules)
    keys = narrow_keys(nodes.keys[order])
    boundary_keys = narrow_keys(boundary.keys)
    part = GraphPartition(
        partitioning=peers.partitioning,
        client=client,
        num_clients=len(peers.clients),
        node_keys=keys,
        indptr=lists.indptr,
        indices=lists.indices.astype(np.int32),
        edge_values=lists.values,
        boundary_keys=boundary_keys,
        boundary_owners=boundary.owners,
        node_hashes=hash_keys(keys),
        boundary_hashes=hash_keys(boundary_keys),
        features=_stored_features(nodes, peers)[order],
        labels=nodes.labels[order],
        train_mask=masks.train[order],
        val_mask=masks.val[order],
        test_mask=masks.test[order],
        num_classes=peers.num_classes,
        recipe=nodes.recipe,
    )
    check_partition(part, source=nodes.source)
    tell_scale(nodes.source, [part.features], part.recipe)
    return part


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Boundary:
    """Boundary nodes in the order of their slots, and the edges to them.

    Attributes:
        keys: [b] bytes.
        owners: [b] int32.
        rows: [e] int64 row of the own node in the node table.
        slots: [e] int64 slot of the peer's node.
        sides: [e] whether the edge comes from there or goes there; None of undirected ones.
        values: Weights and attributes of the e edges.
    """

    keys: np.ndarray
    owners: np.ndarray
    rows: np.ndarray
    slots: np.ndarray
    sides: np.ndarray | None
    values: EdgeValues


def _check_labels(nodes: NodeTable, peers: Peers) -> None:
    if nodes.labels.ndim == 2 and nodes.labels.shape[1] != peers.num_classes:
        raise TableError(
            f"{nodes.source}: has {counted(nodes.labels.shape[1], 'label')}; expected "
            f"{peers.num_classes}, as {peers.source} says"
        )
    if not peers.labels.are_classes:
        return
    hint = "" if (nodes.labels == 0).any() else ", or class-names there"
    nodes.check_rows(
        np.flatnonzero(nodes.labels >= peers.num_classes),
        lambda row: (
            f"label: got {nodes.labels[row]}; expected 0 to {peers.num_classes - 1}, the classes "
            f"of {peers.source}{hint}"
        ),
    )


def _split(nodes: NodeTable, split: str, seed: int, time_column: str) -> Split:
    if time_columns(split, time_column):
        return split_by_time(
            nodes.attributes[time_column],
            nodes.labels,
            split=split,
            source=nodes.source,
            column=time_column,
        )
    if nodes.split is not None:
        if split:
            raise ConfigurationError(
                f"split: cannot be given with {nodes.source}, which has a column 'split'; expected "
                "one of the two"
            )
        return nodes.split
    if not split and (masks := nodes.masks.there()):
        if lacking := [name for name, *_ in MASK_COLUMNS.values() if name not in masks]:
            raise TableError(
                f"{nodes.source}: column {lacking[0]!r} is missing; expected it beside the other "
                "masks, since clients that do not see each other cannot make one, or --split "
                "by-key:TRAIN/VAL/TEST"
            )
        found = published_split(nodes.source, nodes.masks, keys=nodes.keys, labels=nodes.labels)
        return found.split
    if not split:
        raise TableError(
            f"{nodes.source}: column 'split' is missing; expected it, or --split "
            "by-key:TRAIN/VAL/TEST or time:VAL/TEST"
        )
    return split_by_key(nodes.keys, nodes.labels, split=split, seed=seed)


def _boundary(tables: ClientTables, peers: Peers, client: int, rules: EdgeRules) -> _Boundary:
    table = tables.boundary
    if table is not None and rules.unknown == "drop":
        table = _of_known_nodes(tables.nodes, table)
    if table is None or not len(table.own):
        none = np.empty(0, dtype=np.int64)
        return _Boundary(
            keys=np.empty(0, dtype="S1"),
            owners=none.astype(np.int32),
            rows=none,
            slots=none,
            sides=none if rules.directed else None,
            values=PLAIN,
        )
    sides = _sides(table, peers)
    rows = _own_rows(tables.nodes, table)
    owners = _owners(table, peers, client)
    keys, first, nodes = np.unique(table.foreign, return_index=True, return_inverse=True)
    _check_one_owner(table, owners, first, nodes)
    if rules.merge == "refuse":
        _check_once(table, rows, nodes, sides)
    order = np.lexsort((keys, owners[first]))
    slot = np.empty(len(order), dtype=np.int64)
    slot[order] = np.arange(len(order))
    # Numbered so that all edges lead from own nodes to others, and are merged by the same rule.
    count, reached = len(tables.nodes.keys), slot[nodes]
    ends = np.stack((rows, count + reached))
    if sides is not None:
        ends = np.where(sides == OUT, ends, ends[::-1])
    found = EdgeList(ends=ends, values=table.values)
    if rules.merge != "refuse":
        checks = ArrayChecks(source=table.source, error=TableError)
        total = count + len(keys)
        found = ruled_edges(checks, "boundary", found, num_nodes=total, rules=rules)
    comes_in = found.ends[0] >= count
    return _Boundary(
        keys=keys[order],
        owners=owners[first][order],
        rows=found.ends.min(axis=0),
        slots=found.ends.max(axis=0) - count,
        sides=np.where(comes_in, IN, OUT) if rules.directed else None,
        values=found.values,
    )


def _sides(table: BoundaryTable, peers: Peers) -> np.ndarray | None:
    if not peers.directed:
        if table.goes_out is not None:
            logger.warning(
                '%s: column direction not used (edges-are = "directed" in %s uses it)',
                table.source,
                peers.source,
            )
        return None
    if table.goes_out is None:
        raise TableError(
            f"{table.source}: column 'direction' is missing; expected in or out for each edge, "
            f"since {peers.source} says that edges are directed"
        )
    return np.where(table.goes_out, OUT, IN)


def _of_known_nodes(nodes: NodeTable, table: BoundaryTable) -> BoundaryTable:
    known = key_rows(nodes.keys, table.own) >= 0
    if known.all():
        return table
    tell_unknown(table.source, int(np.count_nonzero(~known)))
    return table.taken(np.flatnonzero(known))


def _own_rows(nodes: NodeTable, table: BoundaryTable) -> np.ndarray:
    rows = key_rows(nodes.keys, table.own)
    complaints = table.complaints()
    complaints.add_rows(
        np.flatnonzero(rows < 0),
        lambda row: (
            f"own: {shown(table.own[row])} is not a key of {nodes.source}; expected the key of a "
            "node, or unknown-nodes drop"
        ),
    )
    complaints.add_rows(
        np.flatnonzero(key_rows(nodes.keys, table.foreign) >= 0),
        lambda row: (
            f"foreign: {shown(table.foreign[row])} is a key of {nodes.source}; expected the key of "
            "a peer's node"
        ),
    )
    complaints.check()
    return rows


def _owners(table: BoundaryTable, peers: Peers, client: int) -> np.ndarray:
    """Return the [e] int32 index of the peer in each row."""
    index_of = {name: index for index, name in enumerate(peers.clients)}
    names, names_of = np.unique(table.peers, return_inverse=True)
    indices = np.array([index_of.get(str(name), -1) for name in names], dtype=np.int32)
    owners: np.ndarray = indices[names_of]

    def problem(row: int) -> str:
        told = "is this client itself" if owners[row] == client else "is not a client"
        return f"peer: {shown(str(table.peers[row]))} {told}; expected a peer in {peers.source}"

    table.check_rows(np.flatnonzero((owners < 0) | (owners == client)), problem)
    return owners


def _check_one_owner(
    table: BoundaryTable, owners: np.ndarray, first: np.ndarray, nodes: np.ndarray
) -> None:
    def problem(row: int) -> str:
        before = int(first[nodes[row]])
        return (
            f"foreign: {shown(table.foreign[row])} has owner {shown(str(table.peers[row]))} here "
            f"and {shown(str(table.peers[before]))} in {table.place(before)}; expected one owner"
        )

    table.check_rows(np.flatnonzero(owners != owners[first][nodes]), problem)


def _check_once(
    table: BoundaryTable, rows: np.ndarray, nodes: np.ndarray, sides: np.ndarray | None
) -> None:
    kind = "undirected" if sides is None else "directed"

    def sentence(first: int, _: int) -> str:
        pair = f"{shown(table.own[first])} and {shown(table.foreign[first])}"
        place = table.place(first)
        return f"the edge of {pair} is already in {place}; expected each {kind} edge once"

    codes = rows * (int(nodes.max()) + 1) + nodes
    check_pairs_once(table, codes if sides is None else 2 * codes + sides, sentence)


def _neighbours(
    tables: ClientTables, peers: Peers, order: np.ndarray, boundary: _Boundary, rules: EdgeRules
) -> NeighbourLists:
    """Return the neighbours of all inner nodes."""
    count = len(order)
    position = np.empty(count, dtype=np.int64)
    position[order] = np.arange(count)
    ends, inner = np.empty((2, 0), dtype=np.int64), PLAIN
    if tables.edges is not None:
        found = edge_rows(tables.nodes, tables.edges, rules)
        ends, inner = position[found.ends], found.values
    num_inner, num_cut = ends.shape[1], len(boundary.rows)
    sides = None
    if boundary.sides is not None:
        sides = np.concatenate((np.repeat((IN, OUT), num_inner), boundary.sides))
    twice = inner.taken(np.tile(np.arange(num_inner), 2))
    return neighbour_lists(
        np.concatenate((ends[1], ends[0], position[boundary.rows])),
        np.concatenate((ends[0], ends[1], count + boundary.slots)),
        shape=(count, count + len(boundary.keys)),
        values=_joined(peers, (twice, 2 * num_inner), (boundary.values, num_cut)).as_float32(),
        sides=sides,
    )


def _joined(peers: Peers, inner: tuple[EdgeValues, int], cut: tuple[EdgeValues, int]) -> EdgeValues:
    """Join the values of edges between own nodes and of those to peers, each with its number."""
    weights = attributes = None
    if any(values.weights is not None for values, _ in (inner, cut)):
        weights = np.concatenate(
            [
                np.ones(count) if values.weights is None else values.weights
                for values, count in (inner, cut)
            ]
        )
    if peers.num_edge_features:
        attributes = np.concatenate(
            [
                np.empty((0, peers.num_edge_features))
                if values.attributes is None
                else values.attributes
                for values, _ in (inner, cut)
            ]
        )
    return EdgeValues(weights=weights, attributes=attributes)


def _check_edge_features(tables: ClientTables, peers: Peers) -> None:
    for table in (tables.edges, tables.boundary):
        if table is not None and table.values.num_attributes != peers.num_edge_features:
            found = counted(table.values.num_attributes, "column")
            raise TableError(
                f"{table.source}: got {found} e_*; expected {peers.num_edge_features}, "
                f"the edge-features of {peers.source}"
            )


def _stored_features(nodes: NodeTable, peers: Peers) -> Features:
    """Return the features in the form that all parts of the partitioning have."""
    features = nodes.features
    if peers.sparse_features == isinstance(features, csr_array):
        return features
    if not isinstance(features, csr_array):
        return csr_array(features)
    dense_bytes = features.shape[0] * features.shape[1] * features.dtype.itemsize
    if dense_bytes > memory_bytes() // 2:
        raise TableError(
            f"{nodes.source}: features take {format_bytes(dense_bytes)} as dense rows, and the "
            f"machine has {format_bytes(memory_bytes())}; expected sparse-features = true in "
            f"{peers.source}, at all clients"
        )
    dense: np.ndarray = features.toarray()
    return dense
