"""A typed graph from tables: one of nodes for each type, one of edges for each relation.

A table's file names its type or relation: ``accounts.csv`` holds accounts. Or a column ``type`` of
edges names the relation of each. Which types an edge joins is found by its keys, or said by its
columns ``source_type`` and ``target_type``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from retexo_fl.errors import ConfigurationError, TableError
from retexo_fl.files import bare_name
from retexo_fl.graph.graph import Graph
from retexo_fl.graph.labels import LabelKind
from retexo_fl.graph.masks import Masks
from retexo_fl.graph.recipes import FeatureRecipe, fit_recipe
from retexo_fl.graph.recipes.recipe import named_recipe
from retexo_fl.graph.sources.attributes import count_values
from retexo_fl.graph.sources.edge_rules import EdgeList
from retexo_fl.graph.sources.reading import TRAINING, Reading
from retexo_fl.graph.sources.tables import (
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
from retexo_fl.graph.sources.tables.edges import key_rows
from retexo_fl.graph.sources.tables.nodes import has_labels
from retexo_fl.graph.sources.tables.source import KEY_COLUMN, TYPE_COLUMN, shown
from retexo_fl.graph.sources.text_form import FOUND, TextForm
from retexo_fl.graph.sources.typed import TYPE, TypedEdges, TypedNodes, typed_graph
from retexo_fl.relations import keys_of_type

#: Of a graph that several tables make.
_NAME: Final = "+"


def read_typed_tables(
    nodes: Sequence[Path],
    edges: Sequence[Path],
    columns: NodeColumns | None = None,
    *,
    attributes: Sequence[str] = (),
    reading: Reading = TRAINING,
) -> Graph:
    """Read a graph.

    Args:
        nodes: Tables of nodes; one of them has labels, and maybe a split. A table without columns
            of features is of a type without any.
        edges: Tables of edges.
        columns: How columns of nodes are named and used; its recipe, if it has one, has one for
            each type.
        attributes: What the graph may be cut by: ``type``, or a column that all tables of nodes
            have.
        reading: How it is read.

    Raises:
        TableError: A table cannot be read, or its rows contradict each other or another table's.
        DatasetError: The tables make no graph that can be trained on.
        ConfigurationError: Two tables have one name.
    """
    columns = columns or NodeColumns()
    check_names("nodes", nodes)
    check_names("edges", edges)
    recipe = columns.recipe
    if recipe is not None:
        _check_types(recipe, [bare_name(path) for path in nodes])
    own = tuple(name for name in attributes if name != TYPE)
    tables = {
        bare_name(path): _nodes(path, _columns_of(columns, bare_name(path)), own, reading)
        for path in nodes
    }
    everyone = _all_nodes(tables)
    return typed_graph(
        [_typed_nodes(kind, table) for kind, table in tables.items()],
        [
            _relation(*of_relation, tables, everyone, reading)
            for path in edges
            for of_relation in _by_relation(path, reading)
        ],
        name=_NAME.join(tables),
        # Later edges are left out where the tables are read, which have their times.
        reading=replace(reading, rules=replace(reading.rules, before=None)),
        num_classes=len(recipe.classes) or None if recipe is not None else None,
        attributes=attributes,
        recipe=recipe,
    )


def fit_typed_recipe(
    nodes: Sequence[Path], columns: NodeColumns, kind: LabelKind, attributes: Sequence[str] = ()
) -> tuple[FeatureRecipe, tuple[str, ...]]:
    """Make the recipe of several tables of nodes: one for each, by what stands in it.

    Args:
        nodes: The tables.
        columns: How columns are named.
        kind: What labels are.
        attributes: Columns that become no features.

    Returns:
        The recipe, and a sentence for each column that is left out or cut short.

    Raises:
        TableError: A table cannot be read.
        ConfigurationError: Labels are texts of one class.
    """
    check_names("nodes", nodes)
    classes: tuple[str, ...] = ()
    types, told = [], []
    for path in nodes:
        choice = ColumnChoice(
            key=columns.key or KEY_COLUMN,
            label=columns.names[1] if has_labels(path, columns, kind) else "",
            drop=tuple(name for name in attributes if name != TYPE),
            unlabelled=columns.unlabelled,
            form=columns.form,
        )
        made, sentences = fit_recipe(summarise_table(path, choice), may_lack_columns=True)
        classes = classes or made.classes
        types.append((bare_name(path), made.with_classes(())))
        told += [f"{bare_name(path)}: {sentence}" for sentence in sentences]
    return FeatureRecipe(classes=classes, types=tuple(types)), tuple(told)


def count_types(nodes: Sequence[Path], attribute: str, form: TextForm = FOUND) -> int:
    """Return how many values an attribute has that several tables may be cut by.

    Raises:
        TableError: A table cannot be read, or has no such column of text.
        DatasetError: A node has no value.
    """
    if attribute == TYPE:
        return len(nodes)
    values = [read_text_column(path, attribute, form) for path in nodes]
    return count_values(" and ".join(map(str, nodes)), attribute, np.concatenate(values))


def _check_types(recipe: FeatureRecipe, tables: Sequence[str]) -> None:
    """Check that a recipe is of the tables."""
    if (known := [kind for kind, _ in recipe.types]) != [*tables]:
        raise ConfigurationError(
            f"features: {named_recipe(recipe.digest)} is of {_told(known)}; expected one of "
            f"{_told(tables)}, the tables of nodes in their order"
        )


def _told(types: Sequence[str]) -> str:
    return f"types {', '.join(types)}" if types else "a single table"


def _columns_of(columns: NodeColumns, kind: str) -> NodeColumns:
    """Return how the table of a type is read, by its own recipe."""
    if columns.recipe is None:
        return columns
    recipe = dict(columns.recipe.types)[kind]
    if not recipe.label_column:
        return replace(columns, recipe=recipe, label="")
    return replace(columns, recipe=recipe.with_classes(columns.recipe.classes))


def check_names(key: str, paths: Sequence[Path]) -> None:
    """Check that tables, of whose types or relations their files say the names, differ in these.

    Raises:
        ConfigurationError: Two of them are called alike.
    """
    names = [bare_name(path) for path in paths]
    for at, name in enumerate(names):
        if name in names[:at]:
            one = paths[names.index(name)]
            raise ConfigurationError(
                f"{key}: {one} and {paths[at]} are both of {name}; expected files of other names"
            )


def _nodes(
    path: Path, columns: NodeColumns, attributes: Sequence[str], reading: Reading
) -> NodeTable:
    outputs = 1 if reading.outputs is None else reading.outputs
    is_made = columns.recipe is not None
    return read_node_table(
        path,
        columns,
        # A recipe may make no features of a table, whatever its columns are called.
        num_features=0 if is_made else None,
        infer_features=True,
        attributes=attributes,
        kind=reading.labels,
        masks=reading.masks,
        outputs=None if has_labels(path, columns, reading.labels) else outputs,
    )


def _typed_nodes(kind: str, table: NodeTable) -> TypedNodes:
    masks = table.masks if table.split is None else Masks.of(table.split)
    return TypedNodes(
        name=kind,
        count=len(table.keys),
        features=table.features if table.features.shape[1] else None,
        keys=table.keys,
        labels=table.labels if table.is_labelled else None,
        masks=masks if table.is_labelled else Masks(),
        attributes=table.attributes,
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


def _by_relation(path: Path, reading: Reading) -> Iterator[tuple[str, EdgeTable]]:
    """Yield relations by name, in the order of their first rows, and the edges of each."""
    table = read_edge_table(path, rules=reading.rules, tells_types=True)
    if table.kinds is None:
        yield bare_name(path), table
        return
    kinds = table.kinds
    table.check_rows(
        np.flatnonzero(kinds == ""),
        lambda _: f"{TYPE_COLUMN}: is empty; expected the name of a relation",
    )
    told = [kinds, *(column for column in table.types if column is not None)]
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
        for rows, expected in (
            (~np.isin(told, [*tables]), f"one of {known}"),
            (told != told[0], f"{told[0]}, as in the rows before"),
        ):
            table.check_rows(
                np.flatnonzero(rows),
                lambda row, expected=expected: (  # type: ignore[misc]
                    f"{column}_type: got {shown(str(told[row]))}; expected {expected}"
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
    problem = "are of" if most else "are no keys of"
    raise TableError(
        f"{table.source}: {column}: its keys {problem} {' and '.join(likely)} alike; expected keys "
        f"of one type, or a column {column}_type"
    )
