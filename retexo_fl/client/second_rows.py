"""What a client computes of peers' nodes where nothing crosses after the first exchange.

With ``second-rows = none`` a client makes later rows of the boundary nodes that it received itself:
by the layer, from the row that came first, its own nodes beside them and the edges across, which
both ends know. A node's degree is then the number of these edges, or what they weigh: its owner's
degree, and the edges inside the owner's part, nobody is told.

Symbols: N inner nodes, B received boundary nodes, D width of a stage's rows, H of what it makes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from scipy.sparse import csr_array, vstack

from retexo_fl.exchange import Vectors
from retexo_fl.graph.features import Features
from retexo_fl.graph.neighbours import EdgeValues, weighted_degrees
from retexo_fl.layers.base import Rows, StageInput
from retexo_fl.training.sent_rows import parted_rows, sent_rows
from retexo_fl.training.stage_model import ModelShape, model_in_turn
from retexo_fl.training.stage_pass import chunks


def as_received(model: str, inputs: StageInput) -> StageInput:
    """Return what a layer reads, with the factors that a sender would have multiplied with.

    Args:
        model: Layer.
        inputs: Its received rows are those of peers' nodes as they are.
    """
    _, values, indptr = _edges_across(inputs)
    rows = sent_rows(model, weighted_degrees(indptr, values), _numbers(inputs.received))
    rows, factors = parted_rows(model, rows)
    return replace(inputs, received=_rows(rows), slot_factors=factors)


def seen_from_here(model: str, inputs: StageInput) -> StageInput:
    """Return what a layer reads of received boundary nodes: they and inner nodes change places.

    Args:
        model: Layer.
        inputs: Its received rows are those of peers' nodes as they are.
    """
    beside, values, indptr = _edges_across(inputs)
    used, places = np.unique(beside, return_inverse=True)
    own = _numbers(inputs.own)[used]
    rows, factors = parted_rows(model, sent_rows(model, inputs.degrees[used], own))
    degrees = weighted_degrees(indptr, values)
    return replace(
        inputs,
        own=inputs.received,
        received=_rows(rows),
        indptr=indptr,
        indices=inputs.received.shape[0] + places,
        neighbours=degrees,
        degrees=degrees,
        own_hashes=inputs.slot_hashes,
        slot_hashes=np.asarray(inputs.own_hashes)[used],
        edge_weights=values.weights,
        edge_attributes=values.attributes,
        slot_factors=factors,
        own_kinds=inputs.slot_kinds,
        slot_kinds=None if inputs.own_kinds is None else inputs.own_kinds[used],
    )


@torch.no_grad()
def layer_outputs(
    shape: ModelShape, stage: int, weights: np.ndarray, inputs: StageInput
) -> np.ndarray:
    """Return the (N, H) rows that a stage's layer makes of its inner nodes.

    Args:
        shape: Of the model.
        stage: Whose layer it is.
        weights: (P,) of it.
        inputs: What it reads.
    """
    model = model_in_turn(shape, stage)
    prepared = model.layer.prepare(inputs)
    made = np.zeros((inputs.num_nodes, shape.row_width), dtype=shape.dtype)
    model.flat.bind(weights)
    for rows in chunks(np.arange(inputs.num_nodes)):
        made[rows] = model.embed(model.layer.batch(prepared, rows)).numpy()
    model.flat.release()
    return made


def together(own: Vectors, received: Vectors) -> Vectors:
    """Return own rows above those of received boundary nodes: (N + B, D)."""
    if isinstance(own, np.ndarray) and isinstance(received, np.ndarray):
        return np.concatenate([own, received])
    return csr_array(vstack([csr_array(own), csr_array(received)], format="csr"))


def apart(rows: Vectors, nodes: int) -> tuple[Vectors, Vectors]:
    """Return the (N, D) and (B, D) rows that :func:`together` has put in one."""
    return rows[:nodes], rows[nodes:]


def _edges_across(inputs: StageInput) -> tuple[np.ndarray, EdgeValues, np.ndarray]:
    """Return the edges between inner nodes and received ones, by these, then by inner nodes.

    Returns:
        Their (e,) inner nodes, their values as received nodes hold them, and (B + 1,) bounds.
    """
    nodes = inputs.num_nodes
    across = np.flatnonzero(inputs.indices >= nodes)
    slots = inputs.indices[across] - nodes
    order = across[np.argsort(slots, kind="stable")]
    inner = np.repeat(np.arange(nodes), np.diff(inputs.indptr))[order]
    values = EdgeValues(weights=inputs.edge_weights, attributes=inputs.edge_attributes)
    counts = np.bincount(slots, minlength=len(inputs.slot_hashes))
    return inner, values.taken(order).reversed(), np.concatenate(([0], np.cumsum(counts)))


def _numbers(rows: Rows) -> Features:
    return rows.numpy() if isinstance(rows, torch.Tensor) else rows


def _rows(numbers: Features) -> Rows:
    return torch.from_numpy(numbers) if isinstance(numbers, np.ndarray) else csr_array(numbers)
