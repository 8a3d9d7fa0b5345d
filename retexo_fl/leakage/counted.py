"""What leaks by what is sent alone, without a training: bare rows, features of one client."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from retexo_fl.api import plan_masked
from retexo_fl.config import RunConfig
from retexo_fl.graph.parts.partition import GraphPartition
from retexo_fl.graph.plan.boundary import BoundaryPlan
from retexo_fl.graph.plan.vectors import OutgoingVectors
from retexo_fl.leakage.figures import Finding
from retexo_fl.training.stage_model import ModelShape

#: What is looked for by :func:`single_contributors`.
SINGLE: Final = "features of one client alone"


def bare_rows(parts: Sequence[GraphPartition]) -> Finding | None:
    """Count the rows that a peer reads though sums are sent (``boundary-plan cover``).

    A sum over one node is its row. A sum of which all rows but one are known gives that one, and so
    on; what linear algebra could solve beyond that is not counted.

    Returns:
        What was found; None where no edge crosses.
    """
    sums = single = seen = bare = solved = 0
    for part in parts:
        if not part.num_boundary:
            continue
        for peer in BoundaryPlan.from_partition(part, "cover").peers:
            sent = peer.send
            nodes, known = _known(sent)
            seen += nodes
            bare += len(sent.rows)
            if sent.sums is not None:
                sizes = np.diff(sent.sums.indptr)
                sums += len(sizes)
                single += int(np.count_nonzero(sizes == 1))
            solved += known
    if not seen:
        return None
    return Finding(
        attack="single rows under a cover",
        reader="peers",
        measure="share of nodes",
        guess=0.0,
        clear=solved / seen,
        cut=0.0,
        by={
            "rows_sent_as_they_are": bare / seen,
            "sums_of_one_row": single / sums if sums else 0.0,
        },
        note="a cover saves bytes; it is no protection of rows",
    )


def _known(sent: OutgoingVectors) -> tuple[int, int]:
    """Return how many nodes are in what is sent to a peer, and of how many it knows the row."""
    known = set(map(int, sent.rows))
    if sent.sums is None:
        return len(known), len(known)
    members, ends = sent.sums.members, sent.sums.indptr
    waiting = [{int(node) for node in members[first:end]} for first, end in pairwise(ends)]
    everyone = known.union(*waiting)
    while True:
        waiting = [left for one in waiting if (left := one - known)]
        found = {next(iter(one)) for one in waiting if len(one) == 1}
        if not found:
            return len(everyone), len(known)
        known |= found


def single_contributors(
    config: RunConfig, shape: ModelShape, parts: Sequence[GraphPartition]
) -> Finding | None:
    """Count the features that one client alone adds to, whose sum is that client's.

    Returns:
        What was found; None where nodes have no features.
    """
    features = parts[0].num_features
    if not features:
        return None
    count = plan_masked.single_contributors(config, shape, parts)
    share = count / features
    return Finding(
        attack=SINGLE,
        reader="server",
        measure="share",
        guess=0.0,
        clear=share,
        masked=share,
        by={"features": count},
        note="a masked sum of such a feature is that client's own",
    )
