"""A typed graph from tables: one of nodes for each type, one of edges for each relation.

A table's file names its type or relation: ``accounts.csv`` holds accounts. Or a column ``type`` of
edges names the relation of each. Which types an edge joins is found by its keys, or said by its
columns ``source_type`` and ``target_type``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from scipy.sparse import csr_array

from retexo_fl.errors import ConfigurationError, TableError
from retexo_fl.files import bare_name
from retexo_fl.graph.features import Features
from retexo_fl.graph.graph import Graph
from retexo_fl.graph.labels import LINKS, LabelKind
from retexo_fl.graph.masks import Masks
from retexo_fl.graph.recipes import FeatureRecipe, fit_by_type
from retexo_fl.graph.recipes.recipe import named_recipe
from retexo_fl.graph.sources.attributes import count_values
from retexo_fl.graph.sources.edge_rules import EdgeList, EdgeRules
from retexo_fl.graph.sources.reading import TRAINING, Reading
from retexo_fl.graph.sources.tables import (
    AnyTable,
    ColumnChoice,
    EdgeTable,
    NodeColumns,
    NodeTable,
    edge_rows,
    read_edge_table,
    read_node_table,
    read_text_column,
    summarise_table,
)
from retexo_fl.graph.sources.tables.edges import checked_ends, key_rows
from retexo_fl.graph.sources.tables.features import trimmed
from retexo_fl.graph.sources.tables.nodes import has_labels
from retexo_fl.graph.sources.tables.opening import open_table
from retexo_fl.graph.sources.tables.source import KEY_COLUMN, TYPE_COLUMN, Complaints, shown
from retexo_fl.graph.sources.tables.summarising import choices_by_table
from retexo_fl.graph.sources.text_form import FOUND, TextForm
from retexo_fl.graph.sources.typed import (
    TYPE,
    TypedEdges,
    TypedNodes,
    rows_by_relation,
    typed_graph,
)
from retexo_fl.relations import keys_of_type

#: Of a graph that several tables make.
_NAME: Final = "+"


def read_typed_tables(
    nodes: Sequence[AnyTable],
    edges: Sequence[AnyTable],
    columns: NodeColumns | None = None,
    *,
    attributes: Sequence[str] = (),
    reading: Reading = TRAINING,
) -> Graph:
    """Read a graph.

    Args:
        nodes: Tables of nodes; nodes of a type or more have labels, and maybe a split. A type
            without numbers in columns of features is one without any.
        edges: Tables of edges; none where the graph is predicted.
        columns: How columns of nodes are named and used; its recipe, if it has one, has one for
            each type.
        attributes: What the graph may be cut by: ``type``, or a column that all tables of nodes
            have.
        reading: How it is read; ``types`` is the column of types.

    Raises:
        TableError: A table cannot be read, or its rows contradict each other or another table's.
        DatasetError: The tables make no graph that can be trained on.
        ConfigurationError: Two tables have one name.
    """
    reader = typed_reader(nodes, edges, columns, attributes=attributes, reading=reading)
    return reader(reading.rules)


def typed_reader(
    nodes: Sequence[AnyTable],
    edges: Sequence[AnyTable],
    columns: NodeColumns | None = None,
    *,
    attributes: Sequence[str] = (),
    reading: Reading = TRAINING,
) -> Callable[[EdgeRules], Graph]:
    """Read nodes once; return what reads the edges by some rules (:func:`read_typed_tables`)."""
    columns = columns or NodeColumns()
    check_names("nodes", nodes)
    check_names("edges", edges)
    column, recipe = reading.types or TYPE_COLUMN, columns.recipe
    if recipe is not None:
        _check_types(recipe, [_name_of(path) for path in nodes])
    own = tuple(name for name in attributes if name != TYPE)
    read = [
        divided(
            _nodes(
                path, columns_of_type(columns, _name_of(path)), own, _labels_read(path, reading)
            ),
            _name_of(path),
            column,
            reading.labels,
        )
        for path in nodes
    ]
    tables = types_once(read)

    def made(rules: EdgeRules) -> Graph:
        by_rules = replace(reading, rules=rules)
        if len(nodes) == 1 and len(tables) > 1:
            listed = [
                one for path in edges for one in _of_one_table(path, read[0], column, by_rules)
            ]
        else:
            everyone = _all_nodes(tables)
            listed = [
                _relation(*of_relation, tables, everyone, by_rules)
                for path in edges
                for of_relation in _by_relation(path, column, list(tables), by_rules)
            ]
        return typed_graph(
            [_typed_nodes(kind, table, read) for kind, table in tables.items()],
            listed,
            name=_name_of(nodes[0]) if len(nodes) == 1 else _NAME.join(tables),
            # Later edges are left out where the tables are read, which have their times.
            reading=replace(reading, rules=replace(rules, before=None)),
            num_classes=len(recipe.classes) or None if recipe is not None else None,
            attributes=attributes,
            recipe=recipe,
        )

    return made


def _labels_read(path: AnyTable, reading: Reading) -> Reading:
    """Return how a table is read: without labels where those of its type are not."""
    if not reading.label_types or _name_of(path) in reading.label_types:
        return reading
    has_types = bool(reading.types) and reading.types in open_table(path).names
    return reading if has_types else replace(reading, labels=LINKS)


def fit_typed_recipe(
    nodes: Sequence[Path],
    columns: NodeColumns,
    kind: LabelKind,
    attributes: Sequence[str] = (),
    *,
    label_types: Collection[str] = (),
    drop: Collection[str] = (),
) -> tuple[FeatureRecipe, tuple[str, ...]]:
    """Make the recipe of several tables of nodes: one for each, by what is in it.

    Args:
        nodes: The tables.
        columns: How columns are named.
        kind: What labels are.
        attributes: Columns that become no features.
        label_types: Types whose labels are read; empty for all. Those of others are no features.
        drop: Further columns of any of the tables that become none.

    Returns:
        The recipe, and a sentence for each column that is left out or cut short.

    Raises:
        TableError: A table cannot be read.
        ConfigurationError: Labels are texts of one class, or no table has a column to drop.
    """
    check_names("nodes", nodes)
    choice = ColumnChoice(
        key=columns.key or KEY_COLUMN,
        label=columns.names[1],
        drop=tuple(drop),
        unlabelled=columns.unlabelled,
        form=columns.form,
    )
    summaries = {}
    for path, own in zip(nodes, choices_by_table(nodes, choice, drop="drop-columns"), strict=True):
        label = own.label if has_labels(path, columns, kind) else ""
        never = (*own.drop, *(name for name in attributes if name != TYPE))
        if label and label_types and bare_name(path) not in label_types:
            label, never = "", (*never, label)
        summaries[bare_name(path)] = summarise_table(path, replace(own, label=label, drop=never))
    return fit_by_type(summaries)


def has_types(nodes: AnyTable, edges: AnyTable | None, column: str, form: TextForm = FOUND) -> bool:
    """Return whether a table of nodes or one of edges has a column of types.

    Raises:
        TableError: One cannot be read.
    """
    paths = [path for path in (nodes, edges) if path is not None]
    return any(column in open_table(path, form).names for path in paths)


def count_types(
    nodes: Sequence[Path], attribute: str, form: TextForm = FOUND, column: str = TYPE_COLUMN
) -> int:
    """Return how many values an attribute has that tables of types may be cut by.

    Args:
        nodes: The tables.
        attribute: Its name: ``type``, or a column that all tables have.
        form: Of text tables.
        column: That says types.

    Raises:
        TableError: A table cannot be read, or has no such column of text.
        DatasetError: A node has no value.
    """
    if attribute != TYPE:
        values = [read_text_column(path, attribute, form) for path in nodes]
        return count_values(" and ".join(map(str, nodes)), attribute, np.concatenate(values))
    found: set[str] = set()
    for path in nodes:
        if column in open_table(path, form).names:
            found.update(read_text_column(path, column, form).tolist())
        else:
            found.add(_name_of(path))
    return len(found)


def _check_types(recipe: FeatureRecipe, tables: Sequence[str]) -> None:
    """Check that a recipe is of the tables."""
    if (known := [kind for kind, _ in recipe.types]) != [*tables]:
        raise ConfigurationError(
            f"features: {named_recipe(recipe.digest)} is of {_told(known)}; expected one of "
            f"{_told(tables)}, the tables of nodes in their order"
        )


def _told(types: Sequence[str]) -> str:
    return f"types {', '.join(types)}" if types else "a single table"


def columns_of_type(columns: NodeColumns, kind: str) -> NodeColumns:
    """Return how the table of a type is read, by its own recipe."""
    if columns.recipe is None:
        return columns
    recipe = dict(columns.recipe.types)[kind]
    if not recipe.label_column:
        return replace(columns, recipe=recipe, label="")
    return replace(columns, recipe=recipe.with_classes(columns.recipe.classes))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DividedTable:
    """A table of nodes, and its rows by type.

    Attributes:
        whole: As it was read.
        parts: By type, with the columns of features of the type alone.
        rows: By type, [n] rows of its nodes in ``whole``.
    """

    whole: NodeTable
    parts: dict[str, NodeTable]
    rows: dict[str, np.ndarray]


def divided(table: NodeTable, name: str, column: str, labels: LabelKind) -> DividedTable:
    """Return nodes by what a column says that they are; all of one type without that column.

    Of columns of numbers a type has those that are not empty in all of its rows.

    Args:
        table: Read with the column among its attributes, if it is there.
        name: Of the type without it.
        column: Its name.
        labels: What they are.

    Raises:
        TableError: A cell of the column is empty, or one of a feature that other nodes of its type
            have.
    """
    said = table.attributes.get(column)
    if said is None:
        rows = np.arange(len(table.keys))
        return DividedTable(whole=table, parts={name: table}, rows={name: rows})
    complaints = table.complaints()
    complaints.add_rows(
        np.flatnonzero(said == ""), lambda _: f"{column}: is empty; expected the type of the node"
    )
    parts, places = {}, {}
    for kind in dict.fromkeys(said.tolist()):
        rows = np.flatnonzero(said == kind)
        part = table.taken(rows)
        is_labelled = table.is_labelled and bool(labels.labelled(part.labels).any())
        features = _own_columns(part, kind, rows, complaints)
        parts[kind] = replace(part, features=features, is_labelled=is_labelled)
        places[kind] = rows
    complaints.check()
    return DividedTable(whole=table, parts=parts, rows=places)


def _own_columns(part: NodeTable, kind: str, rows: np.ndarray, complaints: Complaints) -> Features:
    """Return the features of the nodes of one type in a table of several."""
    features = part.features
    if isinstance(features, csr_array):
        return trimmed(features)
    if not part.columns:
        return features
    lacking = np.isnan(features)
    there = ~lacking.all(axis=0)
    for at in np.flatnonzero(there).tolist():
        empty = np.flatnonzero(lacking[:, at])
        complaints.add_rows(
            rows[empty],
            lambda _, at=at: (  # type: ignore[misc]
                f"{part.columns[at]}: is empty; expected a number, as other nodes of type {kind} "
                "have"
            ),
        )
    return features[:, there]


def types_once(read: Sequence[DividedTable]) -> dict[str, NodeTable]:
    """Return all tables by type.

    Raises:
        TableError: Two have nodes of one type.
    """
    found: dict[str, NodeTable] = {}
    for one in read:
        for kind, table in one.parts.items():
            other = found.setdefault(kind, table)
            if other is not table:
                raise TableError(
                    f"{table.source}: has nodes of type {kind}, as {other.source} has; expected "
                    "each type in one table"
                )
    return found


def _name_of(table: AnyTable) -> str:
    """Return what a table's file says that it holds."""
    return bare_name(table if isinstance(table, Path) else table.path)


def check_names(key: str, paths: Sequence[AnyTable]) -> None:
    """Check that tables, of whose types or relations their files say the names, differ in these.

    Raises:
        ConfigurationError: Two of them are called alike.
    """
    names = [_name_of(path) for path in paths]
    for at, name in enumerate(names):
        if name in names[:at]:
            one = paths[names.index(name)]
            raise ConfigurationError(
                f"{key}: {one} and {paths[at]} are both of {name}; expected files of other names"
            )


def _nodes(
    path: AnyTable,
    columns: NodeColumns,
    attributes: Sequence[str],
    reading: Reading,
) -> NodeTable:
    outputs = 1 if reading.outputs is None else reading.outputs
    is_made = columns.recipe is not None
    return read_node_table(
        path,
        of_types(path, columns, reading.types or TYPE_COLUMN),
        # A recipe may make no features of a table, whatever its columns are called.
        num_features=0 if is_made or reading.num_features == 0 else None,
        infer_features=True,
        attributes=attributes,
        kind=reading.labels,
        masks=reading.masks,
        outputs=None if has_labels(path, columns, reading.labels) else outputs,
    )


def of_types(path: AnyTable, columns: NodeColumns, column: str) -> NodeColumns:
    """Return how a table is read that may have a column of types.

    Raises:
        TableError: It cannot be read.
    """
    is_there = column in open_table(path, columns.form).names
    if is_there and columns.recipe is not None and columns.recipe.columns:
        raise ConfigurationError(
            f"features: {_name_of(path)} has types in a column; expected a table for each type, "
            "or columns x0, x1, ..."
        )
    return replace(columns, type=column) if is_there else columns


def _typed_nodes(kind: str, table: NodeTable, read: Sequence[DividedTable]) -> TypedNodes:
    masks = table.masks if table.split is None else Masks.of(table.split)
    return TypedNodes(
        name=kind,
        count=len(table.keys),
        features=table.features if table.features.shape[1] else None,
        keys=table.keys,
        labels=table.labels if table.is_labelled else None,
        masks=masks if table.is_labelled else Masks(),
        attributes=table.attributes,
        rows=read[0].rows[kind] if len(read) == 1 else None,
    )


def _starts(tables: dict[str, NodeTable]) -> list[int]:
    counts = [len(table.keys) for table in tables.values()]
    return [0, *np.cumsum(counts)[:-1].tolist()]


def _all_nodes(tables: dict[str, NodeTable]) -> NodeTable:
    """Return the nodes of all tables, as far as edges lead to them."""
    first = next(iter(tables.values()))
    keys = [keys_of_type(kind, table.keys) for kind, table in tables.items()]
    return replace(
        first,
        source=" and ".join(table.source for table in tables.values()),
        keys=np.concatenate(keys),
    )


def _of_one_table(
    path: AnyTable, nodes: DividedTable, column: str, reading: Reading
) -> Iterator[TypedEdges]:
    """Yield relations between nodes of one table, whose keys say their types."""
    rules, whole = reading.rules, nodes.whole
    table = _with_names(read_edge_table(path, rules=rules, types=column), _name_of(path), column)
    table = checked_ends(whole, table, rules)
    types, kinds, places = list(nodes.parts), *_kinds_of(nodes)
    ends = [key_rows(whole.keys, keys) for keys in (table.left, table.right)]
    _check_told(table, [kinds[rows] for rows in ends], types, rules)
    assert table.kinds is not None
    found = rows_by_relation(np.stack([kinds[rows] for rows in ends]), table.kinds, types, reading)
    for one in found:
        part = table.taken(one.rows)
        between = replace(
            part,
            left=np.where(one.turned, part.right, part.left),
            right=np.where(one.turned, part.left, part.right),
        )
        directed = rules.directed or one.source != one.target
        listed = edge_rows(whole, between, replace(rules, directed=directed))
        yield TypedEdges(
            source=types[one.source],
            name=one.name,
            target=types[one.target],
            edges=EdgeList(ends=places[listed.ends], values=listed.values),
        )


def _kinds_of(nodes: DividedTable) -> tuple[np.ndarray, np.ndarray]:
    """Return the [N] types of nodes, numbers, and where each is among those of its type."""
    kinds = np.empty(len(nodes.whole.keys), dtype=np.int64)
    places = np.empty_like(kinds)
    for kind, rows in enumerate(nodes.rows.values()):
        kinds[rows], places[rows] = kind, np.arange(len(rows))
    return kinds, places


def _check_told(
    table: EdgeTable, kinds: Sequence[np.ndarray], types: Sequence[str], rules: EdgeRules
) -> None:
    """Check that columns which say the types of ends say those of the nodes."""
    complaints = table.complaints()
    for column, said, found in zip(
        (rules.columns.source, rules.columns.target), table.types, kinds, strict=True
    ):
        if said is None:
            continue
        known = np.array(types)[found]
        complaints.add_rows(
            np.flatnonzero(said != known),
            lambda row, column=column, said=said, known=known: (  # type: ignore[misc]
                f"{column}_type: got {shown(str(said[row]))}; expected {known[row]}, the type of "
                "the node"
            ),
        )
    complaints.check()


def _with_names(table: EdgeTable, name: str, column: str) -> EdgeTable:
    """Return a table that says of each edge the name of its relation."""
    if table.kinds is None:
        return replace(table, kinds=np.full(len(table.left), name))
    table.check_rows(
        np.flatnonzero(table.kinds == ""),
        lambda _: f"{column}: is empty; expected the name of a relation",
    )
    return table


def _check_known(table: EdgeTable, types: Sequence[str], rules: EdgeRules) -> None:
    """Check that there are the types that columns say of ends."""
    complaints = table.complaints()
    for column, said in zip((rules.columns.source, rules.columns.target), table.types, strict=True):
        if said is not None:
            complaints.add_rows(
                np.flatnonzero(~np.isin(said, types)),
                lambda row, column=column, said=said: (  # type: ignore[misc]
                    f"{column}_type: got {shown(str(said[row]))}; expected one of "
                    f"{', '.join(types)}"
                ),
            )
    complaints.check()


def _by_relation(
    path: AnyTable, column: str, types: Sequence[str], reading: Reading
) -> Iterator[tuple[str, EdgeTable]]:
    """Yield relations by name, in the order of their first rows, and the edges of each."""
    given = read_edge_table(path, rules=reading.rules, types=column)
    _check_known(given, types, reading.rules)
    if not len(given.left):
        raise TableError(f"{given.source}: has no edges; expected at least one in each relation")
    if given.kinds is None:
        yield _name_of(path), given
        return
    table = _with_names(given, _name_of(path), column)
    kinds = table.kinds
    assert kinds is not None
    told = [kinds, *(said for said in table.types if said is not None)]
    _, first, at = np.unique(np.stack(told), axis=1, return_index=True, return_inverse=True)
    for group in np.argsort(first).tolist():
        part = table.taken(np.flatnonzero(at.reshape(-1) == group))
        yield str(kinds[first[group]]), part


def _relation(
    name: str,
    table: EdgeTable,
    tables: dict[str, NodeTable],
    everyone: NodeTable,
    reading: Reading,
) -> TypedEdges:
    names = reading.rules.columns
    kinds = tuple(
        _type_of(table, column, keys, told, tables)
        for column, keys, told in zip(
            (names.source, names.target), (table.left, table.right), table.types, strict=True
        )
    )
    whole = replace(
        table,
        left=keys_of_type(kinds[0], table.left),
        right=keys_of_type(kinds[1], table.right),
    )
    rules = reading.rules
    if kinds[0] != kinds[1]:
        rules = replace(rules, directed=True)
    found = edge_rows(everyone, whole, rules)
    starts = dict(zip(tables, _starts(tables), strict=True))
    ends = found.ends - np.array([[starts[kinds[0]]], [starts[kinds[1]]]])
    return TypedEdges(
        source=kinds[0],
        name=name,
        target=kinds[1],
        edges=EdgeList(ends=ends, values=found.values),
    )


def _type_of(
    table: EdgeTable,
    column: str,
    keys: np.ndarray,
    told: np.ndarray | None,
    tables: dict[str, NodeTable],
) -> str:
    """Return the type of the nodes that one end of a relation's edges is of."""
    known = ", ".join(tables)
    if told is not None and len(told):
        table.check_rows(
            np.flatnonzero(told != told[0]),
            lambda row: (
                f"{column}_type: got {shown(str(told[row]))}; expected {told[0]}, as in the rows "
                "before"
            ),
        )
        return str(told[0])
    found = {
        kind: int(np.count_nonzero(key_rows(nodes.keys, keys) >= 0))
        for kind, nodes in tables.items()
    }
    most = max(found.values())
    likely = [kind for kind, count in found.items() if count == most]
    if len(likely) == 1:
        return likely[0]
    if not most:
        raise TableError(
            f"{table.source}: {column}: got {shown(keys[0])}, and no other key of {known} either; "
            "expected keys of one of these types"
        )
    raise TableError(
        f"{table.source}: {column}: its keys are of {' and '.join(likely)} alike; expected keys "
        f"of one type, or a column {column}_type"
    )
