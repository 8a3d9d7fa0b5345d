"""What a client makes of its rows before they cross: the factors that only their owner knows."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array, hstack

from retexo_fl.graph.features import Features
from retexo_fl.graph.parts.partition import GraphPartition
from retexo_fl.layers.named import layer_class


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


def rows_read(part: GraphPartition, rows: Features, *, layers: int) -> Features:
    """Return [n, H] rows of a client's nodes with zeros in place of those that no peer reads.

    Args:
        part: The client's; without types all are read.
        rows: As the first of some layers reads them.
        layers: How many, of the model; 0 where edges are learned, for which all rows cross.
    """
    kinds, relations = part.kinds, part.relations
    if relations is None or kinds is None or not layers:
        return rows
    is_read = np.isin(kinds, relations.read_within(relations.with_labels, layers - 1))
    if is_read.all():
        return rows
    kept = _multiplied(rows, is_read.astype(rows.dtype))
    if not isinstance(kept, np.ndarray):
        # What an exchange carries has no explicit zeros.
        kept.eliminate_zeros()
    return kept


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
