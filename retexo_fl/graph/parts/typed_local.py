"""A client's part of a typed graph, from the client's own tables of its types and relations.

A table's file names its type or its relation, or a column ``type`` does for each row. What types
and relations there are, and in which order, the peers file says.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from scipy.sparse import csr_array, vstack

from retexo_fl.errors import TableError
from retexo_fl.files import bare_name
from retexo_fl.graph.labels import LINKS
from retexo_fl.graph.masks import Split
from retexo_fl.graph.parts.local_part import ClientTables, check_labels
from retexo_fl.graph.parts.peers import Peers
from retexo_fl.graph.recipes import FeatureRecipe
from retexo_fl.graph.sources.edge_rules import tell_unknown
from retexo_fl.graph.sources.tables import (
    BoundaryTable,
    EdgeTable,
    NodeColumns,
    NodeTable,
    read_node_table,
)
from retexo_fl.graph.sources.tables.edges import key_rows
from retexo_fl.graph.sources.tables.nodes import has_labels
from retexo_fl.graph.sources.tables.source import TYPE_COLUMN, shown
from retexo_fl.graph.sources.typed_tables import (
    check_names,
    columns_of_type,
    divided,
    of_types,
    types_once,
)
from retexo_fl.relations import Relations, keys_of_type, prefix_of
from retexo_fl.units import counted

logger = logging.getLogger(__name__)

_Table = TypeVar("_Table", EdgeTable, BoundaryTable)


def joined_tables(
    nodes: Mapping[str, NodeTable],
    edges: Sequence[tuple[str, EdgeTable]],
    boundary: Sequence[tuple[str, BoundaryTable]],
    peers: Peers,
    *,
    split_of: Callable[[NodeTable], Split],
    recipe: FeatureRecipe | None = None,
    drops: bool = False,
) -> ClientTables:
    """Join a client's tables of a typed graph to those that :func:`.make_local_part` takes.

    Args:
        nodes: Its own, by type; types of which it has none are left out.
        edges: Edges between them, with the name of their relation, or what the file is called.
        boundary: Edges to nodes of peers, likewise.
        peers: What all clients agree on, with relations.
        split_of: The uses of nodes of a type with labels, whose keys begin with it.
        recipe: What made features and classes of columns, or named classes; None for nothing.
        drops: Edges of own nodes that are not in the tables are left out.

    Raises:
        TableError: A table is of a type or relation that the peers file does not have, or of
            another width, or an edge joins other types; one line names file and row.
    """
    relations = peers.relations
    assert relations is not None
    _check_types(nodes, peers, relations)
    ends = _Ends(nodes, peers, drops=drops)
    _tell_unseen(nodes, (*edges, *boundary), peers, relations)
    return ClientTables(
        nodes=_joined_nodes(nodes, peers, recipe, split_of),
        edges=_once([one for each in edges for one in ends.edges(*each)], relations),
        boundary=_once([one for each in boundary for one in ends.boundary(*each)], relations),
    )


def _tell_unseen(
    nodes: Mapping[str, NodeTable],
    tables: Iterable[tuple[str, EdgeTable | BoundaryTable]],
    peers: Peers,
    relations: Relations,
) -> None:
    """Say in one line of which relations there is no table, though there are nodes of their types.

    An owner may have no edges of one; a table that was forgotten looks the same.
    """
    named: set[str] = set()
    for name, table in tables:
        named |= {name} if table.kinds is None else {*table.kinds.tolist()}
    unseen = [
        relations.called(at)
        for at, one in enumerate(relations.relations)
        if one.name not in named
        and {relations.types[one.source], relations.types[one.target]} & {*nodes}
    ]
    if unseen:
        logger.warning(
            "%s: no table has edges of %s; the part has none of them (--edges and --boundary name "
            "tables)",
            *(peers.source, ", ".join(unseen)),
        )


def _check_types(nodes: Mapping[str, NodeTable], peers: Peers, relations: Relations) -> None:
    for name, table in nodes.items():
        _check_type(table.source, name, peers, relations)
        kind = relations.types.index(name)
        width, expected = int(table.features.shape[1]), peers.type_widths[kind]
        if width != expected:
            raise TableError(
                f"{table.source}: nodes of type {name} have {counted(width, 'feature')}; expected "
                f"{expected or 'none'}, as {peers.source} says"
            )
        if table.is_labelled and kind not in relations.with_labels:
            wanted = " and ".join(relations.types[one] for one in relations.with_labels)
            raise TableError(
                f"{table.source}: nodes of type {name} have labels; expected "
                f"{f'them of type {wanted} alone' if wanted else 'none'}, as {peers.source} says"
            )


def _check_type(source: str, name: str, peers: Peers, relations: Relations) -> None:
    if name not in relations.types:
        raise TableError(
            f"{source}: its nodes are of type {shown(name)}; expected one of "
            f"{', '.join(relations.types)}, the types of {peers.source}"
        )


def _joined_nodes(
    nodes: Mapping[str, NodeTable],
    peers: Peers,
    recipe: FeatureRecipe | None,
    split_of: Callable[[NodeTable], Split],
) -> NodeTable:
    """Return all nodes, with keys that begin with their type and columns of their type alone."""
    relations = peers.relations
    assert relations is not None
    labels, masks, features = [], [], []
    for name, table in nodes.items():
        kind, count = relations.types.index(name), len(table.keys)
        if kind in relations.with_labels:
            check_labels(table, peers)
            typed = replace(table, keys=keys_of_type(name, table.keys))
            labels.append(table.labels)
            masks.append(split_of(typed))
        else:
            none = np.zeros(count, dtype=bool)
            labels.append(peers.labels.unlabelled(count, peers.num_classes))
            masks.append(Split(train=none, val=none, test=none))
        features.append(_features(table, relations, kind))
    first = next(iter(nodes.values()))
    return replace(
        first,
        source=" and ".join(dict.fromkeys(table.source for table in nodes.values())),
        keys=np.concatenate([keys_of_type(name, table.keys) for name, table in nodes.items()]),
        features=features[0]
        if isinstance(features[0], np.ndarray)
        else csr_array(vstack(features, format="csr")),
        labels=np.concatenate(labels),
        split=Split(
            train=np.concatenate([one.train for one in masks]),
            val=np.concatenate([one.val for one in masks]),
            test=np.concatenate([one.test for one in masks]),
        ),
        attributes={},
        recipe=recipe,
    )


def _features(table: NodeTable, relations: Relations, kind: int) -> np.ndarray | csr_array:
    """Return [n, F] features of which all columns but those of a type are 0."""
    found = table.features
    if len(relations.types) == 1 and found.shape[1]:
        return found
    if not found.shape[1]:
        found = np.ones((len(table.keys), 1), dtype=np.float32)
    own = csr_array(found)
    start = relations.columns(kind).start
    return csr_array(
        (own.data, own.indices + start, own.indptr), shape=(len(table.keys), relations.num_features)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """How an edge may lie between a client's own tables, or between one of them and a peer's.

    Attributes:
        relation: Its number.
        kinds: Types of the two ends, in the order of the table's columns.
        goes_out: Whether a boundary's edge leads to the peer's node; None where the relation does
            not say it.
    """

    relation: int
    kinds: tuple[int, int]
    goes_out: bool | None = None


class _Ends:
    """Finds how edges lie: by the name of their relation, what columns say, and own keys."""

    def __init__(self, nodes: Mapping[str, NodeTable], peers: Peers, *, drops: bool) -> None:
        assert peers.relations is not None
        self._nodes = nodes
        self._peers = peers
        self._relations = peers.relations
        self._drops = drops

    def edges(self, name: str, table: EdgeTable) -> Iterator[EdgeTable]:
        """Yield the edges of each relation, with keys as nodes have them."""
        ways, at = self._found(name, table, (table.left, table.right), table.ends)
        for relation, rows in _by_relation(ways, at):
            part = table.taken(rows)
            left, right = self._keys(ways, at[rows], (part.left, part.right))
            yield replace(part, left=left, right=right, relation=relation)

    def boundary(self, name: str, table: BoundaryTable) -> Iterator[BoundaryTable]:
        """Yield the edges of each relation to peers, with keys as nodes have them."""
        ways, at = self._found(name, table, (table.own,), ("own", "foreign"))
        for relation, rows in _by_relation(ways, at):
            part = table.taken(rows)
            own, foreign = self._keys(ways, at[rows], (part.own, part.foreign))
            goes_out = part.goes_out
            if ways[at[rows[0]]].goes_out is not None:
                goes_out = np.array([bool(way.goes_out) for way in ways])[at[rows]]
            yield replace(part, own=own, foreign=foreign, goes_out=goes_out, relation=relation)

    def _keys(
        self, ways: Sequence[_Way], at: np.ndarray, keys: tuple[np.ndarray, np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the keys of both ends, which take ways by number, behind their types' names."""
        types = self._relations.types
        first, second = (
            np.char.add(np.array([prefix_of(types[way.kinds[end]]) for way in ways])[at], keys[end])
            for end in (0, 1)
        )
        return first, second

    def _ways(self, name: str, *, to_peers: bool) -> list[_Way]:
        found = []
        for at, one in enumerate(self._relations.relations):
            kinds = one.source, one.target
            if one.name != name:
                continue
            if not to_peers or one.source == one.target:
                found.append(_Way(relation=at, kinds=kinds))
            else:
                found.append(_Way(relation=at, kinds=kinds, goes_out=True))
                found.append(_Way(relation=at, kinds=kinds[::-1], goes_out=False))
        return found

    def _found(
        self, name: str, table: _Table, own: Sequence[np.ndarray], columns: tuple[str, str]
    ) -> tuple[list[_Way], np.ndarray]:
        """Return ways, and [e] which of them each edge takes; -1 of one that is left out."""
        names = self._names(name, table, len(own[0]))
        there = list(dict.fromkeys(names.tolist()))
        named = [(one, way) for one in there for way in self._ways(one, to_peers=len(own) == 1)]
        ways = [way for _, way in named]
        fits = np.array([names == one for one, _ in named]).reshape(len(ways), len(names))
        for at, way in enumerate(ways):
            for kind, told in zip(way.kinds, table.types, strict=True):
                if told is not None:
                    fits[at] &= told == self._relations.types[kind]
            goes_out = getattr(table, "goes_out", None)
            if way.goes_out is not None and goes_out is not None:
                fits[at] &= goes_out == way.goes_out
        complaints = table.complaints()
        complaints.add_rows(
            np.flatnonzero(~fits.any(axis=0)),
            lambda row: (
                f"type: relation {names[row]} does not join such nodes; expected as "
                f"{self._peers.source} says"
            ),
        )
        several = np.flatnonzero(fits.sum(axis=0) > 1)
        for side, keys in enumerate(own):
            for at, way in enumerate(ways):
                fits[at, several] &= self._has(way.kinds[side], keys[several])
        counts = fits.sum(axis=0)
        unknown = several[counts[several] == 0]
        if self._drops and len(unknown):
            tell_unknown(table.source, len(unknown))
        elif len(unknown):
            known = ", ".join(one.source for one in self._nodes.values())
            complaints.add_rows(
                unknown,
                lambda row: (
                    f"{columns[0]}: {shown(own[0][row])} is no key of {known} that relation "
                    f"{names[row]} joins; expected the key of a node, or unknown-nodes drop"
                ),
            )
        missing = " and ".join(f"{column}_type" for column in columns)
        complaints.add_rows(
            np.flatnonzero(counts > 1),
            lambda row: (
                f"{columns[0]}: {shown(own[0][row])} is a key of several types, or relation "
                f"{names[row]} joins several; expected columns {missing}"
            ),
        )
        complaints.check()
        return ways, np.where(counts == 1, fits.argmax(axis=0), -1)

    def _has(self, kind: int, keys: np.ndarray) -> np.ndarray:
        table = self._nodes.get(self._relations.types[kind])
        none = np.zeros(len(keys), dtype=bool)
        return none if table is None else key_rows(table.keys, keys) >= 0

    def _names(self, name: str, table: _Table, count: int) -> np.ndarray:
        """Return the [e] names of the relations of edges, all of them known."""
        known = list(dict.fromkeys(one.name for one in self._relations.relations))
        expected = f"expected one of {', '.join(known)}, the relations of {self._peers.source}"
        kinds = table.kinds
        if kinds is None:
            if name not in known:
                raise TableError(
                    f"{table.source}: its edges are of relation {shown(name)}; {expected}"
                )
            return np.full(count, name)
        table.check_rows(
            np.flatnonzero(~np.isin(kinds, known)),
            lambda row: f"type: got {shown(str(kinds[row]))}; {expected}",
        )
        return kinds


def _by_relation(ways: Sequence[_Way], at: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield each relation, and the rows of its edges."""
    relations = np.array([*(way.relation for way in ways), -1], dtype=np.int64)[at]
    for relation in np.unique(relations[relations >= 0]).tolist():
        yield relation, np.flatnonzero(relations == relation)


def _without_attributes(table: _Table) -> _Table:
    if table.values.attributes is None:
        return table
    logger.warning("%s: attributes of edges not used", table.source)
    return replace(table, values=replace(table.values, attributes=None))


def _once(tables: Iterable[_Table], relations: Relations) -> tuple[_Table, ...]:
    """Return tables, of which each has another relation."""
    found: dict[int, _Table] = {}
    for table in tables:
        other = found.setdefault(table.relation, table)
        if other is not table:
            raise TableError(
                f"{table.source}: edges of relation {relations.called(table.relation)} are in "
                f"{other.source}, too; expected each relation in one table"
            )
    return tuple(found[relation] for relation in sorted(found))


def _as_wide(table: NodeTable, name: str, peers: Peers, relations: Relations) -> NodeTable:
    """Return a table whose sparse features, of which nothing says a width, are as agreed on."""
    features = table.features
    if not isinstance(features, csr_array) or name not in relations.types:
        return table
    width = max(peers.type_widths[relations.types.index(name)], features.shape[1])
    parts = (features.data, features.indices, features.indptr)
    return replace(table, features=csr_array(parts, shape=(features.shape[0], width)))


def read_typed_nodes(
    paths: Sequence[Path],
    peers: Peers,
    columns: NodeColumns,
    *,
    attributes: Sequence[str] = (),
    unlabelled: bool = False,
    column: str = TYPE_COLUMN,
) -> dict[str, NodeTable]:
    """Read a client's tables of nodes.

    Args:
        paths: One for each type, or with a column of types.
        peers: What all clients agree on, with relations.
        columns: How columns are named and used.
        attributes: Columns of nodes with labels to be read, too.
        unlabelled: Read no labels.
        column: That says of nodes their type.

    Returns:
        A table for each type that there is.

    Raises:
        TableError: A table cannot be read, or is not as documented.
        ConfigurationError: Two tables have one name.
    """
    relations = peers.relations
    assert relations is not None
    check_names("nodes", paths)
    labelled, read = [relations.types[kind] for kind in relations.with_labels], []
    recipe = columns.recipe
    for path in paths:
        of_path = of_types(path, columns, column)
        name, width = bare_name(path), None
        if not of_path.type:
            _check_type(str(path), name, peers, relations)
            width = peers.type_widths[relations.types.index(name)] or None
        kind = LINKS if unlabelled else peers.labels
        is_labelled = name in labelled and not of_path.type
        may_label = bool(of_path.type) or is_labelled
        if recipe is not None and recipe.types:
            own, width = columns_of_type(columns, name), 0
        else:
            own = replace(of_path, recipe=recipe if may_label else None)
        has_any = is_labelled or has_labels(path, own, kind)
        table = read_node_table(
            path,
            own,
            num_features=width,
            infer_features=True,
            attributes=attributes if may_label else (),
            kind=kind,
            outputs=None if has_any else 1,
        )
        in_path = divided(table, name, column, kind)
        lacks = [one for one in labelled if one in in_path.parts]
        if of_path.type and lacks and not (has_any or unlabelled):
            raise TableError(
                f"{path}: has nodes of type {lacks[0]} and no column of labels; expected it, as "
                f"{peers.source} says, or --unlabelled"
            )
        read.append(in_path)
    of_nodes = {
        name: _as_wide(table, name, peers, relations) for name, table in types_once(read).items()
    }
    for name in labelled if unlabelled else ():
        if name in of_nodes:
            of_nodes[name] = of_nodes[name].without_labels(peers.labels, peers.num_classes)
    return of_nodes


def read_relations(
    key: str, paths: Sequence[Path], read: Callable[[Path], _Table]
) -> list[tuple[str, _Table]]:
    """Read a client's tables of edges, or of its boundary: one for each relation, or fewer.

    Args:
        key: The option that names them.
        paths: Of tables.
        read: Reads one, with a column of relations where it has any.

    Returns:
        The tables without attributes of edges, with what their files are called.

    Raises:
        TableError: A table cannot be read, or is not as documented.
        ConfigurationError: Two tables have one name.
    """
    check_names(key, paths)
    return [(bare_name(path), _without_attributes(read(path))) for path in paths]
