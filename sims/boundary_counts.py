"""How many vectors an exchange has, counted from the edges alone: no parts are built."""

from __future__ import annotations

from typing import Final

import numpy as np

from retexo_fl.graph import Graph

#: Nodes looked at in one go, so that scratch arrays stay small. Chosen; not tuned.
_CHUNK_NODES: Final = 2**16
#: How tables call their sum over the number of clients.
BOUNDARY: Final = "B, boundary nodes of a client"


def count_pairs(graph: Graph, assignment: np.ndarray, clients: int) -> np.ndarray:
    """Count the vectors of one exchange for each ordered pair of clients.

    A vector stands for a node that has a neighbour of the receiver. Their sum is n B in RETEXO's
    symbols, B boundary nodes of each of n clients.

    Args:
        graph: The whole graph.
        assignment: [N] client of each node.
        clients: n.

    Returns:
        [n, n] int64 by receiver and owner; 0 on the diagonal.
    """
    owners = np.asarray(assignment, dtype=np.int64)
    needed = np.zeros((clients, graph.num_nodes), dtype=bool)
    for first in range(0, graph.num_nodes, _CHUNK_NODES):
        last = min(first + _CHUNK_NODES, graph.num_nodes)
        degrees = np.diff(graph.indptr[first : last + 1])
        neighbours = graph.indices[graph.indptr[first] : graph.indptr[last]]
        needed[np.repeat(owners[first:last], degrees), neighbours] = True
    needed[owners, np.arange(graph.num_nodes)] = False
    return np.stack([np.bincount(owners[row], minlength=clients) for row in needed])
