"""How large a client's graph is: counts that say nothing of a node, and add up over clients."""

from __future__ import annotations

from dataclasses import astuple

import numpy as np
from scipy.sparse import csr_array

from retexo_fl.client.api import GraphSizes
from retexo_fl.client.part import as_read
from retexo_fl.config import RunConfig
from retexo_fl.exchange import DEFAULT_MAX_FRAME_BYTES
from retexo_fl.graph.parts.partition import GraphPartition
from retexo_fl.graph.plan.boundary import PLAN_KINDS, BoundaryPlan
from retexo_fl.training.coded_size import sent_bytes
from retexo_fl.training.columns import with_structure
from retexo_fl.training.shorter_plan import has_choice


def count_sizes(part: GraphPartition, config: RunConfig) -> tuple[int, ...]:
    """Count what keys of a run follow from; return the fields of :class:`.GraphSizes`.

    Args:
        part: The client's.
        config: Of the run. Of both plans it counts where the run has the choice.
    """
    part = with_structure(part, config)
    features = part.features.data if isinstance(part.features, csr_array) else part.features
    vectors, payload = dict.fromkeys(PLAN_KINDS, 0), dict.fromkeys(PLAN_KINDS, 0)
    if has_choice(config):
        read = as_read(config.model, part)
        for kind in PLAN_KINDS:
            plan = BoundaryPlan.from_partition(read, kind)
            vectors[kind] = plan.num_send
            payload[kind] = sum(
                sent_bytes(read, plan, frame_bytes=DEFAULT_MAX_FRAME_BYTES, **config.feature_coding)
            )
    sizes = GraphSizes(
        tellers=1,
        edge_ends=len(part.indices),
        entries=int(np.count_nonzero(features)),
        ones=int(np.count_nonzero(features == 1)),
        rows=vectors["rows"],
        cover=vectors["cover"],
        rows_bytes=payload["rows"],
        cover_bytes=payload["cover"],
    )
    return astuple(sizes)
