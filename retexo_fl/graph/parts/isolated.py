"""A part as it is for a training that ignores edges between clients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from retexo_fl.graph.parts.partition import GraphPartition


def without_peers(partition: GraphPartition) -> GraphPartition:
    """Return the part without its boundary nodes and the edges to them.

    Degrees become those of the client's own subgraph.
    """
    kept = np.asarray(partition.indices) < partition.num_inner
    return replace(
        partition,
        indptr=np.concatenate(([0], np.cumsum(kept)))[partition.indptr],
        indices=np.asarray(partition.indices)[kept],
        boundary_keys=partition.boundary_keys[:0],
        boundary_owners=partition.boundary_owners[:0],
        boundary_hashes=partition.boundary_hashes[:0],
        edge_values=partition.edge_values.taken(kept),
    )
