"""Graphs that a user's own function makes, named by ``module:attribute``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from retexo_fl.errors import PluginError
from retexo_fl.graph.graph import Graph
from retexo_fl.graph.sources.attributes import demand_attributes
from retexo_fl.graph.sources.edge_rules import check_ready
from retexo_fl.graph.sources.from_arrays import ADJACENCY, FEATURES, from_arrays
from retexo_fl.graph.sources.from_networkx import read_networkx
from retexo_fl.graph.sources.from_pyg import is_typed, read_pyg, read_typed
from retexo_fl.graph.sources.label_choice import LABELS, refuse_choice
from retexo_fl.graph.sources.reading import TRAINING, Reading
from retexo_fl.graph.sources.table_graph import read_table_graph
from retexo_fl.graph.sources.tables import AnyTable, NodeColumns, tables_of
from retexo_fl.graph.sources.typed_tables import has_types, read_typed_tables
from retexo_fl.plugins import load_callable, named_plugin_errors

#: What a graph may be that is handed over.
GRAPHS: Final = (
    "a retexo_fl.Graph, a PyG Data or HeteroData, a NetworkX graph, (adj, x, y), a dict of arrays, "
    "or tables of nodes and edges"
)
_ARRAYS: Final = (ADJACENCY, FEATURES, LABELS)


def load_plugin_graph(
    text: str,
    *,
    attributes: Sequence[str] = (),
    reading: Reading = TRAINING,
) -> Graph:
    """Call a user's function without arguments and return the graph that it makes.

    Args:
        text: ``module:attribute``; what it returns is what :func:`as_graph` takes.
        attributes: Attributes of the nodes that the graph must have.
        reading: How what is no :class:`Graph` is read; a :class:`Graph` must be as directed as it
            says.

    Raises:
        PluginError: It cannot be imported or called, or returned something else.
        DatasetError: What it returned cannot be trained on.
    """
    function = load_callable("dataset", text)
    with named_plugin_errors(PluginError):
        made = function()
    graph = as_graph(made, name=text, attributes=attributes, reading=reading)
    if graph is None:
        raise PluginError(f"dataset {text!r}: returned {type(made).__name__}; expected {GRAPHS}")
    return graph


def as_graph(
    made: object,
    *,
    name: str,
    attributes: Sequence[str],
    reading: Reading,
    columns: Callable[[AnyTable], NodeColumns] | None = None,
) -> Graph | None:
    """Return an object as a graph; None for one of no such kind.

    Args:
        made: A :class:`Graph`; a PyG ``Data``; a NetworkX graph; a mapping of arrays as
            :func:`.from_arrays` takes, or a tuple of ``adj``, ``x`` and maybe ``y``; or a pair of
            tables: DataFrames, or paths, of nodes and of edges.
        name: What a graph is called that is not ours yet, and what errors name.
        attributes: Attributes of the nodes that the graph must have.
        reading: How it is read.
        columns: How a table of nodes is read; None for columns as they are documented.
    """
    if isinstance(made, Graph):
        demand_attributes(f"dataset {name!r}", made.attributes, attributes)
        check_ready(f"dataset {name!r}", made, reading.rules)
        refuse_choice(f"dataset {name!r}", reading.label)
        return made
    if (tables := tables_of(made)) is not None:
        if reading.types and has_types(*tables, reading.types):
            nodes, edges = tables
            return read_typed_tables(
                (nodes,),
                () if edges is None else (edges,),
                None if columns is None else columns(nodes),
                attributes=attributes,
                reading=reading,
            )
        of_nodes = None if columns is None else columns(tables[0])
        return read_table_graph(
            *tables, of_nodes, name=name, attributes=attributes, reading=reading
        )
    if isinstance(made, tuple) and 2 <= len(made) <= len(_ARRAYS):
        made = dict(zip(_ARRAYS, made, strict=False))
    read: Callable[..., Graph] | None = None
    if is_typed(made):
        read = read_typed
    elif isinstance(made, Mapping):
        read = from_arrays
    elif hasattr(made, "is_multigraph"):
        read = read_networkx
    elif hasattr(made, "edge_index") or hasattr(made, "adj_t"):
        read = read_pyg
    return read and read(made, name=name, attributes=attributes, reading=reading)
