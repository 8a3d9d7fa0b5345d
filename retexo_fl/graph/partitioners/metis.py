"""METIS: parts of equal size with few edges between them."""

from __future__ import annotations

import numpy as np

from retexo_fl.errors import ConfigurationError
from retexo_fl.graph.graph import Graph

#: METIS takes a 32-bit seed, -1 for one of its own; 0 and 1 draw the same numbers.
_SEEDS = 2**31 - 1


def assign_metis(graph: Graph, clients: int, seed: int) -> np.ndarray:
    """Cut the graph with METIS.

    Raises:
        ConfigurationError: pymetis is not installed.

    Source: Karypis and Kumar, A Fast and High Quality Multilevel Scheme for Partitioning Irregular
        Graphs, SIAM J. Sci. Comput. 20(1), 1998.
    """
    try:
        import pymetis
    except ImportError as error:
        raise ConfigurationError(
            "partitioner: 'metis' needs pymetis, which is not installed; pip install pymetis"
        ) from error
    if clients == 1:
        return np.zeros(graph.num_nodes, dtype=np.int32)
    adjacency = pymetis.CSRAdjacency(
        adj_starts=graph.indptr.astype(np.int32), adjacent=graph.indices.astype(np.int32)
    )
    options = pymetis.Options(seed=1 + seed % _SEEDS)
    _, parts = pymetis.part_graph(clients, adjacency, options=options)
    return np.asarray(parts, dtype=np.int32)
