"""Graphs that a user's own function makes, named by ``module:attribute``."""

from __future__ import annotations

from collections.abc import Sequence

from retexo_fl.errors import PluginError
from retexo_fl.graph.graph import Graph
from retexo_fl.graph.labels import CLASSES
from retexo_fl.graph.sources.attributes import demand_attributes
from retexo_fl.graph.sources.edge_rules import STRICT, EdgeRules, check_direction
from retexo_fl.graph.sources.from_networkx import from_networkx
from retexo_fl.graph.sources.from_pyg import from_pyg
from retexo_fl.plugins import load_callable, named_plugin_errors


def load_plugin_graph(
    text: str,
    *,
    attributes: Sequence[str] = (),
    rules: EdgeRules = STRICT,
    task: str = CLASSES,
) -> Graph:
    """Call a user's function without arguments and return the graph that it makes.

    Args:
        text: ``module:attribute``; what it returns is a :class:`Graph`, a PyG ``Data`` or a
            NetworkX graph.
        attributes: Attributes of the nodes that the graph must have.
        rules: How the edges of what is no :class:`Graph` are read; a :class:`Graph` must be as
            directed as they say.
        task: What labels are for, where the graph is not ours yet.

    Raises:
        PluginError: It cannot be imported or called, or returned something else.
        DatasetError: What it returned cannot be trained on.
    """
    function = load_callable("dataset", text)
    with named_plugin_errors(PluginError):
        made = function()
    graph = as_graph(made, name=text, attributes=attributes, rules=rules, task=task)
    if graph is None:
        raise PluginError(
            f"dataset {text!r}: returned {type(made).__name__}; expected a retexo_fl.graph.Graph, "
            "a PyG Data or a NetworkX graph"
        )
    return graph


def as_graph(
    made: object, *, name: str, attributes: Sequence[str], rules: EdgeRules, task: str
) -> Graph | None:
    """Return an object as a graph, as :func:`load_plugin_graph` does; None for one of no such kind.

    ``name`` is what a graph is called that is not ours yet, and what errors name.
    """
    if isinstance(made, Graph):
        demand_attributes(f"dataset {name!r}", made.attributes, attributes)
        check_direction(f"dataset {name!r}", made, rules)
        return made
    if hasattr(made, "edge_index"):
        return from_pyg(made, name=name, attributes=attributes, rules=rules, task=task)
    # A heterogeneous PyG graph says whether it is directed, too.
    if hasattr(made, "is_multigraph"):
        return from_networkx(made, name=name, attributes=attributes, rules=rules, task=task)
    return None
