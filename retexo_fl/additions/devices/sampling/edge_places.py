"""Which edges of the graph the edges of a block are, to look up their weights and attributes."""

from __future__ import annotations

import numpy as np

from retexo_fl.additions.devices.sampling.adjacency import Adjacency
from retexo_fl.additions.devices.sampling.compiled import compiled
from retexo_fl.additions.devices.sampling.sample import Block


def edge_places(
    adjacency: Adjacency, block: Block, targets: np.ndarray, sources: np.ndarray
) -> np.ndarray:
    """Return the (E,) int64 places in ``adjacency.indices`` of a block's edges.

    Args:
        adjacency: The graph that the block was sampled from.
        block: Its edges are all in the graph.
        targets: (R,) ids of its targets.
        sources: (S,) ids of its sources.
    """
    places = np.empty(block.num_edges, dtype=np.int64)
    graph = (adjacency.indptr, adjacency.indices)
    _find_places(graph, targets, sources, (block.indptr, block.columns), places)
    return places


@compiled
def _find_places(
    graph: tuple[np.ndarray, np.ndarray],
    targets: np.ndarray,
    sources: np.ndarray,
    edges: tuple[np.ndarray, np.ndarray],
    places: np.ndarray,
) -> None:
    """Bisect the row of each target for its sources."""
    indptr, indices = graph
    starts, columns = edges
    for row in range(len(targets)):
        first, stop = indptr[targets[row]], indptr[targets[row] + 1]
        for edge in range(starts[row], starts[row + 1]):
            source, low, high = sources[columns[edge]], first, stop
            while low < high:
                middle = (low + high) >> 1
                if indices[middle] < source:
                    low = middle + 1
                else:
                    high = middle
            places[edge] = low
