"""The smallest set of nodes that touches every edge of a bipartite graph."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array


def minimum_vertex_cover(edges: csr_array) -> tuple[np.ndarray, np.ndarray]:
    """Return a vertex cover as small as a largest matching: no cover can be smaller.

    Z are the nodes that alternating paths reach from unmatched nodes on the left. The left nodes
    outside Z and the right nodes in Z cover every edge, and each is the end of another matched
    edge. Z, and so the cover, does not depend on which of the largest matchings was found.

    Args:
        edges: [L, R] sparse matrix; a stored entry is an edge.

    Returns:
        [L] and [R] bool: which nodes of the left and of the right are in the cover.

    Source: Koenig, Matematikai es Fizikai Lapok 38, 1931; Dulmage and Mendelsohn, Canadian Journal
    of Mathematics 10, 1958 (Z is the same for every largest matching).
    """
    # Loaded here, like below: a training without covers does not wait for it.
    from scipy.sparse.csgraph import maximum_bipartite_matching

    num_left, num_right = edges.shape
    partners = np.asarray(maximum_bipartite_matching(edges, perm_type="row"))
    is_unmatched = np.ones(num_left, dtype=bool)
    is_unmatched[partners[partners >= 0]] = False
    reached = _reached(edges, partners, is_unmatched.nonzero()[0])
    right = np.zeros(num_right, dtype=bool)
    right[edges.indices[np.repeat(reached, np.diff(edges.indptr))]] = True
    return ~reached, right


def _reached(edges: csr_array, partners: np.ndarray, begin: np.ndarray) -> np.ndarray:
    """Say of each left node whether an alternating path from one of ``begin`` reaches it.

    Args:
        edges: [L, R].
        partners: [R] left node that each right node is matched with, -1 for none.
        begin: Unmatched left nodes.
    """
    from scipy.sparse.csgraph import breadth_first_order

    num_left = edges.shape[0]
    # One step goes along any edge to the right, and back along the matched one. Nothing unmatched
    # on the right can be reached, or the matching could grow: there the step may stay where it is.
    back = partners[edges.indices]
    own = np.repeat(np.arange(num_left), np.diff(edges.indptr))
    targets = np.concatenate((np.where(back >= 0, back, own), begin))
    indptr = np.append(edges.indptr, len(targets))
    steps = csr_array((np.ones(len(targets)), targets, indptr), shape=(num_left + 1, num_left + 1))
    found = breadth_first_order(steps, num_left, return_predecessors=False)
    reached = np.zeros(num_left + 1, dtype=bool)
    reached[found] = True
    return reached[:-1]
