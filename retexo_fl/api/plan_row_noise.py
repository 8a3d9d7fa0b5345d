"""What `retexo plan` shows of noised classes in place of first rows (``row-dp``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from retexo_fl.config import RunConfig
from retexo_fl.graph.parts.partition import GraphPartition
from retexo_fl.training.row_classes import chance_of_own, promise
from retexo_fl.training.stage_model import ModelShape

#: Share of edges between clients below which noised classes were not worth more than no rows.
_FEW_CUT: Final = 0.5


def row_noise_facts(
    config: RunConfig, shape: ModelShape, parts: Sequence[GraphPartition]
) -> dict[str, Any]:
    """Return what peers receive, and a warning where sending nothing may be as good.

    Args:
        config: Of the training; its ``row-dp`` is above 0.
        shape: Of the model.
        parts: Of all clients, as their layers read them.
    """
    cut = sum(part.num_cut_edges for part in parts)
    ends = sum(int(np.asarray(part.indptr)[-1]) for part in parts)
    share, own = cut / max(1, ends), chance_of_own(config.row_dp, shape.classes)
    told = promise(config.row_dp, shape.classes)
    text = (
        f"{told[0].upper()}{told[1:]}. {share:.0%} of edges are between clients; with --algorithm "
        "drop nothing crosses along them."
    )
    if share < _FEW_CUT:
        text += (
            " Warning: where so few are, trainings without any row across were about as accurate; "
            "compare with drop."
        )
    return {
        "epsilon": config.row_dp,
        "classes": shape.classes,
        "chance_of_own": own,
        "cut_edges": share,
        "text": text,
    }
