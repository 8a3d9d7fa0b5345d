"""Which rows of a client cross before a stage, and the factors in them that only it knows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from scipy.sparse import csr_array, hstack

from retexo_fl.graph.features import Features
from retexo_fl.graph.parts.partition import GraphPartition
from retexo_fl.graph.plan.boundary import BoundaryPlan
from retexo_fl.layers.named import layer_class
from retexo_fl.training.stage_model import ModelShape


def plans_by_stage(
    shape: ModelShape, part: GraphPartition, plan: BoundaryPlan
) -> Mapping[int, BoundaryPlan]:
    """Return, by stage, what crosses before it where that is not all of a plan.

    Args:
        shape: Of the model.
        part: A client's.
        plan: Its plan of all that has an edge to a peer.
    """
    stages = (*range(shape.layers), *([shape.far_stage] if shape.far_types else ()))
    read = ((stage, shape.read_into(stage)) for stage in stages)
    return {stage: plan.into(part, kinds) for stage, kinds in read if kinds is not None}


def sent_rows(model: str, degrees: np.ndarray, rows: Features) -> Features:
    """Return rows as a layer wants them from their sender.

    Args:
        model: Layer.
        degrees: [n] or [n, 2] of the rows' nodes.
        rows: [n, H] float32 or float64, dense or CSR.

    Returns:
        [n, H + F], multiplied by :meth:`.GraphLayer.message_scale`, with
        :meth:`.GraphLayer.message_factors` in the last F columns.
    """
    layer = layer_class(model)
    if (scale := layer.message_scale(degrees)) is not None:
        rows = _multiplied(rows, scale.astype(rows.dtype))
    if (factors := layer.message_factors(degrees)) is not None:
        beside = factors.astype(rows.dtype)
        if isinstance(rows, np.ndarray):
            return np.concatenate((rows, beside), axis=1)
        rows = csr_array(hstack([rows, csr_array(beside)], format="csr"))
    return rows


def parted_rows(model: str, received: Features) -> tuple[Features, np.ndarray | None]:
    """Part [B, H + F] received vectors into rows and [B, F] factors; None where there are none."""
    if not (count := layer_class(model).num_factors):
        return received, None
    width = received.shape[1] - count
    beside = received[:, width:]
    factors = beside if isinstance(beside, np.ndarray) else beside.toarray()
    rows = received[:, :width]
    return rows if isinstance(rows, np.ndarray) else csr_array(rows), factors


def _multiplied(rows: Features, factors: np.ndarray) -> Features:
    if isinstance(rows, np.ndarray):
        return rows * factors[:, None]
    entries = rows.data * np.repeat(factors, np.diff(rows.indptr))
    return csr_array((entries, rows.indices, rows.indptr), shape=rows.shape)
