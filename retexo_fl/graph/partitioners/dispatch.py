"""The one door to all partitioners: the name is resolved, the result is checked."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from retexo_fl.errors import ConfigurationError, PartitionError, PluginError
from retexo_fl.graph.graph import Graph
from retexo_fl.graph.partitioners.assignment_file import read_assignment
from retexo_fl.graph.partitioners.attribute import assign_by_attribute
from retexo_fl.graph.partitioners.dirichlet import assign_by_dirichlet
from retexo_fl.graph.partitioners.louvain import assign_louvain
from retexo_fl.graph.partitioners.metis import assign_metis
from retexo_fl.graph.partitioners.structureless import assign_one_node, assign_randomly
from retexo_fl.graph.sources.attributes import ATTRIBUTE
from retexo_fl.plugins import is_plugin, load_callable, named_plugin_errors


class Partitioner(Protocol):
    """What a ``module:attribute`` must name."""

    def __call__(self, graph: Graph, clients: int, seed: int) -> np.ndarray:
        """Return the [N] client of each node, 0 to ``clients - 1``; the same for the same seed."""
        ...


_BUILT_IN: Final[Mapping[str, Callable[[Graph, int, int], np.ndarray]]] = {
    "random": assign_randomly,
    "metis": assign_metis,
    "louvain": assign_louvain,
    "one-node": assign_one_node,
}
_FILE: Final = "file:"
_DIRICHLET: Final = "dirichlet:"
#: Clients named in an error before the rest is counted.
_MOST_NAMED: Final = 5


def assign_nodes(graph: Graph, *, partitioner: str, clients: int, seed: int) -> np.ndarray:
    """Assign every node to a client.

    Args:
        graph: The whole graph.
        partitioner: ``random``, ``metis``, ``louvain``, ``one-node``, ``file:PATH``,
            ``attribute:NAME`` (a client for each value), ``dirichlet:BETA`` (each class shared
            out by chance) or ``module:attribute`` of a :class:`Partitioner`.
        clients: At least 1, at most N.
        seed: At least 0; equal seeds give equal assignments.

    Returns:
        [N] int32; every client has at least one node.

    Raises:
        ConfigurationError: There is no such partitioner, the number of clients does not suit it
            or the graph, or a package that it needs is not installed.
        DatasetError: The graph has no such attribute.
        PartitionError: A file or METIS gave an assignment that cannot be used.
        PluginError: The plug-in cannot be imported or called, or gave one.
    """
    if not 1 <= clients <= graph.num_nodes:
        raise ConfigurationError(
            f"clients: got {clients}; expected 1 to {graph.num_nodes}, the number of nodes "
            f"of data set {graph.name!r}"
        )
    if partitioner in _BUILT_IN:
        assignment = _BUILT_IN[partitioner](graph, clients, seed)
    elif partitioner.startswith(_FILE):
        path = Path(partitioner.removeprefix(_FILE))
        assignment = read_assignment(path, num_nodes=graph.num_nodes, clients=clients)
    elif partitioner.startswith(ATTRIBUTE):
        name = partitioner.removeprefix(ATTRIBUTE)
        assignment = assign_by_attribute(graph, name, clients)
    elif partitioner.startswith(_DIRICHLET):
        beta = _beta(partitioner)
        assignment = assign_by_dirichlet(graph, beta, clients, seed)
    elif is_plugin(partitioner):
        assignment = _call_plugin(partitioner, graph, clients, seed)
    else:
        near = difflib.get_close_matches(partitioner, _BUILT_IN, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigurationError(
            f"partitioner: got {partitioner!r}; {hint}expected one of {', '.join(_BUILT_IN)}, "
            "file:PATH, attribute:NAME, dirichlet:BETA, or module:attribute"
        )
    return _checked(assignment, partitioner, graph, clients)


def _beta(partitioner: str) -> float:
    try:
        beta = float(partitioner.removeprefix(_DIRICHLET))
    except ValueError:
        beta = math.nan
    if not 0 < beta < math.inf:
        raise ConfigurationError(
            f"partitioner: got {partitioner!r}; expected dirichlet:BETA with a number above 0"
        )
    return beta


def _call_plugin(partitioner: str, graph: Graph, clients: int, seed: int) -> np.ndarray:
    function: Partitioner = load_callable("partitioner", partitioner, "graph", "clients", "seed")
    with named_plugin_errors(PluginError):
        found = function(graph, clients, seed)
    if not isinstance(found, np.ndarray):
        raise PluginError(
            f"partitioner {partitioner!r}: got {type(found).__name__}; "
            f"expected an array of integers of shape ({graph.num_nodes},)"
        )
    return found


def _checked(assignment: np.ndarray, partitioner: str, graph: Graph, clients: int) -> np.ndarray:
    where = f"partitioner {partitioner!r}"
    ours = partitioner in _BUILT_IN or partitioner.startswith((_FILE, _DIRICHLET))
    refused = PartitionError if ours else PluginError
    if assignment.dtype.kind not in "iu" or assignment.shape != (graph.num_nodes,):
        raise refused(
            f"{where}: got {assignment.dtype} of shape {assignment.shape}; "
            f"expected integers of shape ({graph.num_nodes},)"
        )
    outside = np.flatnonzero((assignment < 0) | (assignment >= clients))
    if len(outside):
        node = int(outside[0])
        raise refused(
            f"{where}: node {node} is assigned to client {assignment[node]}; "
            f"expected 0 to {clients - 1}"
        )
    empty = np.flatnonzero(np.bincount(assignment, minlength=clients) == 0)
    if len(empty):
        named = ", ".join(str(client) for client in empty[:_MOST_NAMED])
        more = "" if len(empty) <= _MOST_NAMED else f" and {len(empty) - _MOST_NAMED} more"
        raise refused(
            f"{where}: no nodes for clients {named}{more} of {clients}; "
            "expected at least one node for each"
        )
    return assignment.astype(np.int32)
