"""A whole graph from a table of its nodes and a table of its edges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from retexo_fl.files import bare_name
from retexo_fl.graph.graph import ArrayNames, EdgeListGraph, Graph
from retexo_fl.graph.masks import Masks
from retexo_fl.graph.sources.attributes import count_values
from retexo_fl.graph.sources.edge_rules import EdgeList, EdgeRules
from retexo_fl.graph.sources.reading import TRAINING, Reading
from retexo_fl.graph.sources.tables import (
    AnyTable,
    NodeColumns,
    edge_rows,
    read_edge_table,
    read_node_table,
    read_text_column,
)
from retexo_fl.graph.sources.text_form import FOUND, TextForm


def read_table_graph(
    nodes: AnyTable,
    edges: AnyTable | None,
    columns: NodeColumns | None = None,
    *,
    name: str = "",
    attributes: Sequence[str] = (),
    reading: Reading = TRAINING,
) -> Graph:
    """Read a graph; its nodes keep the order of the table.

    Args:
        nodes: Table of keys, labels, features and, if there is one, the split.
        edges: Table of edges, in any order; None for none, where the graph is predicted.
        columns: How the columns of the nodes are named and used; None for the documented ones.
        name: Of the graph; that of the file of nodes where it is empty.
        attributes: Text or integer columns of the nodes that the graph may be cut by.
        reading: How it is read.

    Raises:
        TableError: A table cannot be read, or its rows contradict each other.
        DatasetError: The tables make no graph that can be trained on.
        ConfigurationError: Columns are named otherwise than in the recipe.
    """
    reader = table_reader(nodes, edges, columns, name=name, attributes=attributes, reading=reading)
    return reader(reading.rules)


def table_reader(
    nodes: AnyTable,
    edges: AnyTable | None,
    columns: NodeColumns | None = None,
    *,
    name: str = "",
    attributes: Sequence[str] = (),
    reading: Reading = TRAINING,
) -> Callable[[EdgeRules], Graph]:
    """Read nodes once; return what reads the edges by some rules (:func:`read_table_graph`)."""
    table = read_node_table(
        nodes,
        columns,
        num_features=reading.num_features,
        infer_features=True,
        attributes=attributes,
        kind=reading.labels,
        masks=reading.masks,
        outputs=reading.outputs,
    )

    def read(rules: EdgeRules) -> Graph:
        names = () if table.recipe is None else table.recipe.classes
        listed, source = EdgeList(ends=np.zeros((2, 0), dtype=np.int64)), table.source
        if edges is not None:
            of_edges = read_edge_table(edges, rules=rules)
            listed, source = (
                edge_rows(table, of_edges, rules),
                f"{source} and {of_edges.source}",
            )
        split = table.split
        given = EdgeListGraph(
            name=name or bare_name(Path(table.source)),
            edges=listed.ends,
            edge_values=listed.values,
            directed=rules.directed,
            features=table.features,
            labels=table.labels,
            # What was read of a table is of the form that says its kind.
            kind=None if reading.labels.are_read else reading.labels,
            num_classes=len(names) or reading.outputs,
            node_keys=table.keys,
            split=table.masks if split is None else Masks.of(split),
            attributes=table.attributes,
            recipe=table.recipe,
            may_lack_edges=reading.may_lack_edges,
        )
        return Graph.build(given, ArrayNames(source=source, features="x"))

    return read


def count_table_values(nodes: AnyTable, attribute: str, form: TextForm = FOUND) -> int:
    """Return how many different values a column of the nodes has; reads nothing else.

    Raises:
        TableError: The table cannot be read, or has no such column.
        DatasetError: A node has no value.
    """
    values: np.ndarray = read_text_column(nodes, attribute, form)
    return count_values(str(nodes if isinstance(nodes, Path) else nodes.path), attribute, values)
