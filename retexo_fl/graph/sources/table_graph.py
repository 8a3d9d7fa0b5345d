"""A whole graph from a table of its nodes and a table of its edges."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from retexo_fl.files import bare_name
from retexo_fl.graph.graph import ArrayNames, EdgeListGraph, Graph
from retexo_fl.graph.labels import CLASSES, LINKS
from retexo_fl.graph.sources.attributes import count_values
from retexo_fl.graph.sources.edge_rules import STRICT, EdgeRules
from retexo_fl.graph.sources.tables import (
    NodeColumns,
    edge_rows,
    read_edge_table,
    read_node_table,
    read_text_column,
)


def read_table_graph(
    nodes: Path,
    edges: Path,
    columns: NodeColumns | None = None,
    *,
    attributes: Sequence[str] = (),
    rules: EdgeRules = STRICT,
    widths: tuple[int, int] | None = None,
    task: str = CLASSES,
) -> Graph:
    """Read a graph; its nodes keep the order of the table.

    Args:
        nodes: Table of keys, labels, features and, if there is one, the split.
        edges: Table of edges, in any order.
        columns: How the columns of the nodes are named and used; None for the documented ones.
        attributes: Text or integer columns of the nodes that the graph may be cut by.
        rules: How edges are read.
        widths: How many features and classes (or labels) there must be; None for as many as the
            table has.
        task: What labels are for, as :func:`.read_node_table` has it.

    Raises:
        TableError: A table cannot be read, or its rows contradict each other.
        DatasetError: The tables make no graph that can be trained on.
        ConfigurationError: Columns are named otherwise than in the recipe.
    """
    features, classes = (None, None) if widths is None else widths
    table = read_node_table(
        nodes,
        columns,
        num_features=features,
        infer_features=True,
        attributes=attributes,
        task=task,
    )
    names = () if table.recipe is None else table.recipe.classes
    listed = edge_rows(table, read_edge_table(edges, rules=rules), rules)
    given = EdgeListGraph(
        name=bare_name(nodes),
        edges=listed.ends,
        edge_values=listed.values,
        directed=rules.directed,
        features=table.features,
        labels=table.labels,
        num_classes=len(names) or (1 if task == LINKS else classes),
        node_keys=table.keys,
        split=table.split,
        attributes=table.attributes,
        recipe=table.recipe,
    )
    return Graph.build(given, ArrayNames(source=f"{nodes} and {edges}", features="x"))


def count_table_values(nodes: Path, attribute: str) -> int:
    """Return how many different values a column of the nodes has; reads nothing else.

    Raises:
        TableError: The table cannot be read, or has no such column.
        DatasetError: A node has no value.
    """
    values: np.ndarray = read_text_column(nodes, attribute)
    return count_values(str(nodes), attribute, values)
