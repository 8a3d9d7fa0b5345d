"""An order of nodes in which neighbours stand near each other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import reverse_cuthill_mckee

from retexo_fl.layers.base import StageInput
from retexo_fl.training.stage_pass import NodeSets


def near_together(nodes: NodeSets, inputs: StageInput) -> NodeSets:
    """Order labelled nodes so that a contiguous piece of them reads few rows of others.

    Two pieces that read the same row both transform it. Of the rows that 8 pieces read, this order
    spares a fifth on PubMed and GitHub, and three eighths on the friends of union8.

    Source: Cuthill and McKee, "Reducing the bandwidth of sparse symmetric matrices" (1969), in
    reverse.

    Args:
        nodes: By use, in any order.
        inputs: The edges; those from slots count as well.

    Returns:
        The same nodes by use, in another order.
    """
    size = inputs.num_nodes + len(inputs.slot_hashes)
    without_edges = np.full(len(inputs.slot_hashes), inputs.indptr[-1])
    indptr = np.concatenate([inputs.indptr, without_edges]).astype(np.int32)
    ones = np.ones(len(inputs.indices), np.int8)
    edges = csr_array((ones, inputs.indices.astype(np.int32), indptr), shape=(size, size))
    rank = np.empty(size, np.int64)
    rank[reverse_cuthill_mckee(edges)] = np.arange(size)
    return replace(
        nodes,
        train=nodes.train[np.argsort(rank[nodes.train])],
        validation=nodes.validation[np.argsort(rank[nodes.validation])],
        test=nodes.test[np.argsort(rank[nodes.test])],
    )
