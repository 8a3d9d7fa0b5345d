"""Partitioners that do not look at the edges."""

from __future__ import annotations

import numpy as np

from retexo_fl.errors import ConfigurationError
from retexo_fl.graph.graph import Graph
from retexo_fl.graph.seeding import seeded_generator


def assign_randomly(graph: Graph, clients: int, seed: int) -> np.ndarray:
    """Deal shuffled nodes to the clients in turn: sizes differ by at most one."""
    assignment = np.empty(graph.num_nodes, dtype=np.int32)
    order = seeded_generator(seed, "random partition").permutation(graph.num_nodes)
    assignment[order] = np.arange(graph.num_nodes) % clients
    return assignment


def assign_one_node(graph: Graph, clients: int, seed: int) -> np.ndarray:
    """Give every node a client of its own.

    Raises:
        ConfigurationError: There are not as many clients as nodes.
    """
    del seed
    if clients != graph.num_nodes:
        raise ConfigurationError(
            f"clients: got {clients}; expected {graph.num_nodes} for the partitioner 'one-node', "
            f"one for each node of data set {graph.name!r}"
        )
    return np.arange(graph.num_nodes, dtype=np.int32)
