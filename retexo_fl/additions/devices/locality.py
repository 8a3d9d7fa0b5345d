"""An order of nodes in which neighbours are near each other.

Contiguous pieces of such an order read fewer of the same rows than pieces of any other would, as
far as the graph has regions at all.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array


def near_ranks(indptr: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Return the place of each of N nodes in such an order: (N,) int64.

    Source: Cuthill and McKee, "Reducing the bandwidth of sparse symmetric matrices" (1969), in
    reverse.

    Args:
        indptr: (N + 1,) whole numbers: edges ``indptr[u]:indptr[u + 1]`` lead into u.
        indices: (E,) the nodes that they come from.
    """
    # Loaded here: a training without devices or samplers does not wait for it.
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    size = len(indptr) - 1
    if not size:
        return np.empty(0, np.int64)
    dtype = np.int32 if max(size, len(indices)) < 2**31 else np.int64
    ones = np.ones(len(indices), np.int8)
    edges = csr_array((ones, indices.astype(dtype), indptr.astype(dtype)), shape=(size, size))
    ranks = np.empty(size, np.int64)
    ranks[reverse_cuthill_mckee(edges)] = np.arange(size)
    return ranks
