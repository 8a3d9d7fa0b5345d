"""Louvain communities, packed into clients of nearly equal size."""

from __future__ import annotations

import heapq
import random

import numpy as np
from scipy.sparse import csr_array

from retexo_fl.graph.graph import Graph

#: A client may hold this share more than N / clients, so that fewer communities are cut for the
#: sake of balance. Chosen; not tuned. (OpenFGL allows 20 nodes more.)
_SLACK = 0.05


def assign_louvain(graph: Graph, clients: int, seed: int) -> np.ndarray:
    """Pack communities into clients, the largest first, each into the client with the fewest nodes.

    A community of more than N / clients nodes is chopped, and what does not fit into a client goes
    to the next one. Neighbours stay together as far as possible.

    Source: Blondel, Guillaume, Lambiotte, Lefebvre, Fast unfolding of communities in large
        networks, J. Stat. Mech., 2008. The packing follows OpenFGL 1.1.0, with another limit.
    """
    membership = _communities(graph, seed)
    order = np.argsort(membership, kind="stable")
    ends = np.cumsum(np.bincount(membership))
    communities = np.split(order, ends[:-1])
    pieces = _chop(graph, communities, clients)
    return _pack(pieces, clients, graph.num_nodes)


def _communities(graph: Graph, seed: int) -> np.ndarray:
    """Return the [N] community of each node, numbered from 0."""
    import igraph

    network = igraph.Graph(n=graph.num_nodes, edges=graph.edge_list().T)
    # igraph draws from Python's shared generator; it gets its own, and then that one back.
    igraph.set_random_number_generator(random.Random(seed))  # noqa: S311 - no secret
    try:
        membership = network.community_multilevel(resolution=1.0).membership
    finally:
        igraph.set_random_number_generator(random)
    return np.asarray(membership, dtype=np.int64)


def _chop(graph: Graph, communities: list[np.ndarray], clients: int) -> list[np.ndarray]:
    """Cut communities into pieces of at most N / clients nodes: at least one for every client."""
    limit = graph.num_nodes // clients
    pieces = []
    for community in communities:
        nodes = _neighbours_together(graph, community) if len(community) > limit else community
        pieces += [nodes[start : start + limit] for start in range(0, len(nodes), limit)]
    return pieces


def _neighbours_together(graph: Graph, nodes: np.ndarray) -> np.ndarray:
    """Order nodes so that cutting the order anywhere cuts few edges among them."""
    # Loaded here: a graph that is cut otherwise does not wait for it.
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    matrix = csr_array(
        (np.ones(len(graph.indices), dtype=np.int8), graph.indices, graph.indptr),
        shape=(graph.num_nodes, graph.num_nodes),
    )
    inside = matrix[nodes][:, nodes]
    ordered: np.ndarray = nodes[reverse_cuthill_mckee(inside, symmetric_mode=True)]
    return ordered


def _pack(pieces: list[np.ndarray], clients: int, num_nodes: int) -> np.ndarray:
    capacity = max(-(-num_nodes // clients), int(num_nodes / clients * (1 + _SLACK)))
    waiting = [(-len(piece), number, piece) for number, piece in enumerate(pieces)]
    heapq.heapify(waiting)
    loads = [(0, client) for client in range(clients)]
    assignment = np.empty(num_nodes, dtype=np.int32)
    number = len(pieces)
    while waiting:
        _, _, piece = heapq.heappop(waiting)
        load, client = heapq.heappop(loads)
        room = capacity - load
        assignment[piece[:room]] = client
        heapq.heappush(loads, (load + min(room, len(piece)), client))
        if len(piece) > room:
            number += 1
            heapq.heappush(waiting, (room - len(piece), number, piece[room:]))
    return assignment
