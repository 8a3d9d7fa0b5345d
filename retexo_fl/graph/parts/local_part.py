"""A client's part from the client's own tables; no process reads the whole graph."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

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
from retexo_fl.relations import Relations
from retexo_fl.units import counted, format_bytes

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClientTables:
    """What one client has of the graph.

    Attributes:
        nodes: Its own nodes.
        edges: Edges between them; of typed nodes one table for each relation.
        boundary: Edges from them to nodes of peers, likewise.
    """

    nodes: NodeTable
    edges: Sequence[EdgeTable] = ()
    boundary: Sequence[BoundaryTable] = ()


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
    check_labels(nodes, peers)
    _check_edge_features(tables, peers)
    masks = split_of_table(nodes, split, seed, time_column)
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
        relations=peers.relations,
    )
    check_partition(part, source=nodes.source)
    tell_scale(nodes.source, [part.features], part.recipe)
    return part


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Entries:
    """Edges as the lists of inner nodes hold them, of one relation.

    Attributes:
        rows: [e] int64 row of the own node in the node table.
        columns: [e] int64 row of the other node there, or behind these the slot of a peer's.
        sides: [e] whether the edge comes from there or goes there; None of undirected ones.
        values: Weights and attributes of the e edges.
        relation: Its number.
    """

    rows: np.ndarray
    columns: np.ndarray
    sides: np.ndarray | None
    values: EdgeValues
    relation: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Boundary:
    """Boundary nodes in the order of their slots, and the edges to them.

    Attributes:
        keys: [b] bytes.
        owners: [b] int32.
        edges: To them, by relation.
    """

    keys: np.ndarray
    owners: np.ndarray
    edges: tuple[_Entries, ...]


def check_labels(nodes: NodeTable, peers: Peers) -> None:
    """Check that labels are those that are agreed on.

    Raises:
        TableError: A label is not, or there are more or fewer of a node.
    """
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


def split_of_table(nodes: NodeTable, split: str, seed: int, time_column: str) -> Split:
    """Return the uses of nodes; see :func:`make_local_part`."""
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
        if found.notes:
            logger.warning("%s: masks: %s", nodes.source, "; ".join(found.notes))
        return found.split
    if not split:
        raise TableError(
            f"{nodes.source}: column 'split' is missing; expected it, or --split "
            "by-key:TRAIN/VAL/TEST or time:VAL/TEST"
        )
    return split_by_key(nodes.keys, nodes.labels, split=split, seed=seed)


def _boundary(tables: ClientTables, peers: Peers, client: int, rules: EdgeRules) -> _Boundary:
    given = tables.boundary
    if rules.unknown == "drop":
        given = [_of_known_nodes(tables.nodes, table) for table in given]
    given = [table for table in given if len(table.own)]
    if not given:
        none = np.empty(0, dtype=np.int32)
        return _Boundary(keys=np.empty(0, dtype="S1"), owners=none, edges=())
    sides = [_sides(table, peers) for table in given]
    rows = [_own_rows(tables.nodes, table) for table in given]
    owners = np.concatenate([_owners(table, peers, client) for table in given])
    keys, first, nodes = np.unique(
        np.concatenate([table.foreign for table in given]), return_index=True, return_inverse=True
    )
    _check_one_owner(given, owners, first, nodes)
    order = np.lexsort((keys, owners[first]))
    slot = np.empty(len(order), dtype=np.int64)
    slot[order] = np.arange(len(order))
    starts = np.cumsum([0, *(len(table.own) for table in given)])
    found = []
    for at, table in enumerate(given):
        some = nodes[starts[at] : starts[at + 1]]
        if rules.merge == "refuse":
            _check_once(table, rows[at], some, sides[at])
        ends = rows[at], len(tables.nodes.keys) + slot[some]
        found.append(_crossing(table, ends, sides[at], len(tables.nodes.keys) + len(keys), rules))
    return _Boundary(keys=keys[order], owners=owners[first][order], edges=tuple(found))


def _crossing(
    table: BoundaryTable,
    pair: tuple[np.ndarray, np.ndarray],
    sides: np.ndarray | None,
    num_nodes: int,
    rules: EdgeRules,
) -> _Entries:
    """Return edges to peers, each once: of own nodes, and behind all of these the peers'."""
    rows, columns = pair
    if rules.merge == "refuse":
        return _Entries(
            rows=rows, columns=columns, sides=sides, values=table.values, relation=table.relation
        )
    # Undirected ones lead from own nodes to others.
    ends = np.stack(pair)
    if sides is not None:
        ends = np.where(sides == OUT, ends, ends[::-1])
    merged = ruled_edges(
        ArrayChecks(source=table.source, error=TableError),
        "boundary",
        EdgeList(ends=ends, values=table.values),
        num_nodes=num_nodes,
        rules=replace(rules, directed=sides is not None),
    )
    rows, columns = merged.ends.min(axis=0), merged.ends.max(axis=0)
    return _Entries(
        rows=rows,
        columns=columns,
        sides=None if sides is None else np.where(merged.ends[0] == columns, IN, OUT),
        values=merged.values,
        relation=table.relation,
    )


def _sides(table: BoundaryTable, peers: Peers) -> np.ndarray | None:
    """Return which way each edge leads; None where that makes no difference."""
    if not peers.has_sides(table.relation):
        if table.goes_out is not None and not peers.directed:
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
    tables: Sequence[BoundaryTable], owners: np.ndarray, first: np.ndarray, nodes: np.ndarray
) -> None:
    starts = np.cumsum([0, *(len(table.own) for table in tables)])
    wrong = np.flatnonzero(owners != owners[first][nodes])
    for table, start in zip(tables, starts, strict=False):

        def problem(row: int, table: BoundaryTable = table, start: int = start) -> str:
            before = int(first[nodes[start + row]])
            at = int(np.searchsorted(starts, before, side="right")) - 1
            other, place = tables[at], tables[at].place(before - int(starts[at]))
            there = place if other.source == table.source else f"{other.source}, {place}"
            name = other.peers[before - int(starts[at])]
            return (
                f"foreign: {shown(table.foreign[row])} has owner {shown(str(table.peers[row]))} "
                f"here and {shown(str(name))} in {there}; expected one owner"
            )

        inside = wrong[(wrong >= start) & (wrong < start + len(table.own))]
        table.check_rows(inside - start, problem)


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
    shape = (count, count + len(boundary.keys))
    entries = [
        both
        for table in tables.edges
        for both in _inner(tables.nodes, table, rules, has_sides=peers.has_sides(table.relation))
    ]
    entries += boundary.edges
    position = np.arange(shape[1])
    position[order] = np.arange(count)
    if not entries:
        none = np.empty(0, dtype=np.int64)
        entries = [_Entries(rows=none, columns=none, sides=none, values=PLAIN, relation=0)]
    if peers.relations is not None:
        entries = [each for one in entries for each in _channels(one, peers.relations)]
    is_told = peers.directed or peers.relations is not None
    sides = [one.sides for one in entries if one.sides is not None]
    return neighbour_lists(
        position[np.concatenate([one.rows for one in entries])],
        position[np.concatenate([one.columns for one in entries])],
        shape=shape,
        values=_joined(peers, entries).as_float32(),
        sides=np.concatenate(sides) if is_told else None,
        channels=2 if peers.relations is None else peers.relations.num_channels,
    )


def _inner(
    nodes: NodeTable, table: EdgeTable, rules: EdgeRules, *, has_sides: bool
) -> tuple[_Entries, ...]:
    """Return the edges of a table as both of their ends hold them."""
    found = edge_rows(nodes, table, replace(rules, directed=has_sides))
    source, target = found.ends
    return tuple(
        _Entries(
            rows=rows,
            columns=columns,
            sides=np.full(len(rows), side) if has_sides else None,
            values=found.values,
            relation=table.relation,
        )
        for rows, columns, side in ((target, source, IN), (source, target, OUT))
    )


def _channels(one: _Entries, relations: Relations) -> tuple[_Entries, ...]:
    """Return a relation's edges with the channel of each in the place of its side."""
    comes, goes = one.relation, relations.num_channels - 1 - one.relation
    if one.sides is not None:
        return (replace(one, sides=np.where(one.sides == IN, comes, goes)),)
    return tuple(replace(one, sides=np.full(len(one.rows), channel)) for channel in (comes, goes))


def _joined(peers: Peers, entries: Sequence[_Entries]) -> EdgeValues:
    """Join the values of edges from several tables."""
    weights = attributes = None
    if any(one.values.weights is not None for one in entries):
        weights = np.concatenate(
            [
                np.ones(len(one.rows)) if one.values.weights is None else one.values.weights
                for one in entries
            ]
        )
    if peers.num_edge_features:
        attributes = np.concatenate(
            [
                np.empty((0, peers.num_edge_features))
                if one.values.attributes is None
                else one.values.attributes
                for one in entries
            ]
        )
    return EdgeValues(weights=weights, attributes=attributes)


def _check_edge_features(tables: ClientTables, peers: Peers) -> None:
    for source, values in (
        (table.source, table.values) for group in (tables.edges, tables.boundary) for table in group
    ):
        if values.num_attributes != peers.num_edge_features:
            found = counted(values.num_attributes, "column")
            raise TableError(
                f"{source}: got {found} e_*; expected {peers.num_edge_features}, "
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
