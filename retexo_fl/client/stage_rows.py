"""What crosses between clients before a stage, and what its layer reads of that.

Three forms, by configuration and widths alone, so that both ends of a link know which it is:

- the rows that the layer reads;
- before the first stage with a basis of sums: the features, which a basis maps later;
- before a later stage, where that is narrower: what the layer before it reads. Who has the rows
  computes that layer, whose weights all clients get.

With ``second-rows = none`` nothing crosses after the first exchange: a client makes later rows of
the B boundary nodes that it received itself, by the layer, from the row that came first, its own
nodes beside them and the edges across, which both ends know. A node's degree is then the number of
these edges, or what they weigh: of its owner's, and of edges inside the owner's part, nobody is
told.

Symbols: N inner nodes, n rows, F features, d coordinates, D' width of what the layer before reads
(:meth:`.GraphLayer.fixed_width`) with the column of a factor, H width of what it makes, P weights.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import torch
from scipy.sparse import csr_array, hstack, vstack

from retexo_fl.errors import PartitionError
from retexo_fl.exchange import Vectors
from retexo_fl.graph.features import Features
from retexo_fl.graph.neighbours import EdgeValues, weighted_degrees
from retexo_fl.graph.parts.partition import GraphPartition
from retexo_fl.graph.plan.boundary import BoundaryPlan
from retexo_fl.layers.aggregate import AggregatedLayer, CrossedRows
from retexo_fl.layers.base import Rows, StageInput, dense_rows
from retexo_fl.layers.named import layer_class
from retexo_fl.layers.relational import (
    far_sums_of_labelled,
    sums_of_far,
    sums_of_labelled,
    times_added,
)
from retexo_fl.relations import Relations
from retexo_fl.training.basis import Basis
from retexo_fl.training.sent_rows import parted_rows, sent_rows
from retexo_fl.training.stage_model import ModelShape, model_in_turn
from retexo_fl.training.stage_pass import ROWS_PER_BATCH, chunks
from retexo_fl.units import counted

#: Of a factor's square, either way: a float32 holds e**40.
_MOST_LOG: Final = 80.0
#: Of rows that are made dense at once.
_MOST_DENSE_VALUES: Final = 2**24


def stage_input(
    partition: GraphPartition,
    plan: BoundaryPlan,
    rows: Vectors,
    received: Vectors,
    missing: tuple[int, ...],
) -> StageInput:
    """Join own rows, received vectors and the plan's edges; those to missing slots are left out.

    Args:
        partition: The client's part.
        plan: Its plan.
        rows: (N, H) own rows.
        received: (B, H) vectors of all slots, zero where missing; they become part of the input.
        missing: Peers without whom the exchange was closed.

    Raises:
        PartitionError: There are not as many rows as inner nodes.
    """
    edges = plan.edges
    if missing:
        edges = edges.without(np.concatenate([plan.peer(p).receive.slots for p in missing]))
    if rows.shape[0] != partition.num_inner:
        raise PartitionError(
            f"client {partition.client}: {counted(rows.shape[0], 'kept row')}; "
            f"expected {partition.num_inner}, one for each inner node"
        )
    return StageInput(
        own=_as_rows(rows),
        received=received if isinstance(received, csr_array) else torch.from_numpy(received),
        indptr=edges.indptr,
        indices=np.asarray(edges.indices, np.int64),
        neighbours=edges.neighbour_counts,
        degrees=np.asarray(partition.degrees),
        own_hashes=np.asarray(partition.node_hashes),
        slot_hashes=edges.slot_hashes,
        edge_weights=edges.values.weights,
        edge_attributes=edges.values.attributes,
        own_kinds=partition.kinds,
        slot_kinds=partition.boundary_kinds,
    )


def read_rows(shape: ModelShape, stage: int, inputs: StageInput) -> np.ndarray:
    """Return the (N, D') rows that a stage's layer reads of all inner nodes."""
    return dense_rows(_aggregated(shape, stage, inputs), inputs.dtype).numpy()


def layer_inputs(shape: ModelShape, stage: int, inputs: StageInput) -> Features:
    """Return :func:`read_rows` as they cross (:func:`rows_with_factor`)."""
    return rows_with_factor(shape, _aggregated(shape, stage, inputs), inputs.degrees)


def rows_with_factor(shape: ModelShape, aggregated: Rows, degrees: np.ndarray) -> Features:
    """Return (N, D') rows that a layer reads as they cross, sparse where they are.

    Where the layer asks senders to multiply with a factor f, its -2 ln f stands in one more column:
    of the size of other values, so that few bits a value keep it.
    """
    rows = aggregated.numpy() if isinstance(aggregated, torch.Tensor) else aggregated
    factors = layer_class(shape.model).message_scale(degrees)
    if factors is None:
        return rows
    beside = (-2.0 * np.log(factors)).astype(rows.dtype)[:, None]
    if isinstance(rows, np.ndarray):
        return np.hstack([rows, beside])
    return csr_array(hstack([rows, csr_array(beside)], format="csr"))


def _aggregated(shape: ModelShape, stage: int, inputs: StageInput) -> Rows:
    layer = model_in_turn(shape, stage).layer
    assert isinstance(layer, AggregatedLayer)
    return layer.crossing_rows(inputs)


def with_layer_outputs(
    shape: ModelShape, stage: int, weights: np.ndarray, inputs: StageInput
) -> StageInput:
    """Compute what a stage reads of (n, D') rows that the layer before it reads.

    Args:
        shape: Of the model.
        stage: Whose input this is.
        weights: (P,) of the stage before.
        inputs: Its rows are those of :func:`layer_inputs`.
    """
    layer = _Layer(shape, stage - 1, weights)
    own = layer.outputs(inputs.own, inputs.own_hashes, inputs.own_kinds)
    received = layer.outputs(inputs.received, inputs.slot_hashes, inputs.slot_kinds)
    return replace(inputs, own=own, received=received * layer.factors(inputs.received))


def with_coordinates(
    basis: Basis, inputs: StageInput, relations: Relations | None = None
) -> StageInput:
    """Map features to the coordinates of a basis of sums; the mean is subtracted after them.

    Of a typed graph a sum is of the columns of several types, and of each its own part of the mean
    is subtracted before rows are added.
    """
    if relations is not None:
        centres = _type_centres(basis, relations)
        return replace(
            inputs,
            own=_of_types(_mapped(inputs.own, basis), centres, inputs.own_kinds),
            received=_of_types(_mapped(inputs.received, basis), centres, inputs.slot_kinds),
        )
    return replace(
        inputs,
        own=_mapped(inputs.own, basis),
        received=_mapped(inputs.received, basis),
        centre=basis.mean @ basis.directions,
    )


def _type_centres(basis: Basis, relations: Relations) -> np.ndarray:
    """Return (T, d): of each type its part of the mean, by how often its rows are added.

    That is in the mean over types with labels: how many nodes each has, nobody need know for it.
    """
    labelled = len(relations.with_labels)
    found = np.zeros((len(relations.types), basis.directions.shape[1]))
    for kind, times in enumerate(times_added(relations)):
        some = relations.columns(kind)
        found[kind] = basis.mean[some] @ basis.directions[some] * labelled / max(times, 1)
    return found


def _of_types(rows: torch.Tensor, centres: np.ndarray, kinds: np.ndarray | None) -> torch.Tensor:
    assert kinds is not None
    return rows - torch.from_numpy(centres[kinds]).to(rows)


def summed_rows(shape: ModelShape, inputs: StageInput) -> Features:
    """Return the (N, F) sums over neighbours that the first layer makes of features."""
    if shape.relations is not None:
        rows = sums_of_labelled(inputs, shape.relations)
    else:
        layer = model_in_turn(replace(shape, inputs=shape.features), 0).layer
        assert isinstance(layer, AggregatedLayer)
        rows = layer.feature_sums(inputs)
    return _features(rows)


def far_sums(shape: ModelShape, inputs: StageInput) -> Features:
    """Return the (N, F) sums of far types that cross for a basis."""
    assert shape.relations is not None
    return _features(sums_of_far(inputs, shape.relations))


def with_far_sums(shape: ModelShape, rows: Features, crossed: StageInput) -> Features:
    """Add to (N, F) :func:`summed_rows` what crossed of far types."""
    assert shape.relations is not None
    beyond = csr_array(_features(far_sums_of_labelled(crossed, shape.relations)))
    return csr_array(csr_array(rows) + beyond)


# ---- where rows cross once ----------------------------------------------------------------------


def as_received(model: str, inputs: StageInput) -> StageInput:
    """Return what a layer reads, with the factors that a sender would have multiplied with.

    Args:
        model: Layer.
        inputs: Its received rows are those of peers' nodes as they are.
    """
    _, values, indptr = _edges_across(inputs)
    rows = sent_rows(model, weighted_degrees(indptr, values), _features(inputs.received))
    rows, factors = parted_rows(model, rows)
    return replace(inputs, received=_as_rows(rows), slot_factors=factors)


def seen_from_here(model: str, inputs: StageInput) -> StageInput:
    """Return what a layer reads of received boundary nodes: they and inner nodes change places.

    Args:
        model: Layer.
        inputs: Its received rows are those of peers' nodes as they are.
    """
    beside, values, indptr = _edges_across(inputs)
    used, places = np.unique(beside, return_inverse=True)
    own = _features(inputs.own)[used]
    rows, factors = parted_rows(model, sent_rows(model, inputs.degrees[used], own))
    degrees = weighted_degrees(indptr, values)
    return replace(
        inputs,
        own=inputs.received,
        received=_as_rows(rows),
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
    """Return the (N, D) and (B, D) rows that :func:`together` has put in one; the latter anew."""
    return rows[:nodes], rows[nodes:].copy()


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


# ---- forms of rows ------------------------------------------------------------------------------


def _features(rows: Rows) -> Features:
    return rows.numpy() if isinstance(rows, torch.Tensor) else csr_array(rows)


class _Layer:
    """A layer that is trained, with what stands behind it."""

    def __init__(self, shape: ModelShape, stage: int, weights: np.ndarray) -> None:
        self._model, self._weights = model_in_turn(shape, stage), weights
        assert isinstance(self._model.layer, AggregatedLayer)
        self._layer = self._model.layer
        width = self._layer.crossing_width(shape.layer_shape(stage))
        assert width is not None
        self._width, self._dtype = width, getattr(torch, shape.dtype)
        self._outputs = self._layer.shape.outputs * (2 if self._model.teaches else 1)

    @torch.no_grad()
    def outputs(self, rows: Rows, hashes: np.ndarray, kinds: np.ndarray | None) -> torch.Tensor:
        """Return the (n, H) rows that it makes of (n, D') rows: these, where it passes them on."""
        if self._model.passes_sums:
            return self._dense(rows[:, : self._width])
        step = max(1, min(ROWS_PER_BATCH, _MOST_DENSE_VALUES // max(1, self._width)))
        made = torch.zeros(rows.shape[0], self._outputs, dtype=self._dtype)
        self._model.flat.bind(self._weights)
        for first in range(0, len(made), step):
            some = slice(first, first + step)
            of_some = None if kinds is None else kinds[some]
            made[some] = self._made(rows[some, : self._width], hashes[some], of_some)
        self._model.flat.release()
        return made

    def _made(self, rows: Rows, hashes: np.ndarray, kinds: np.ndarray | None) -> torch.Tensor:
        crossed = CrossedRows(rows=self._dense(rows), hashes=hashes, kinds=kinds, dtype=self._dtype)
        return self._model.embed(self._layer.crossed_batch(crossed, np.arange(len(hashes))))

    def factors(self, rows: Rows) -> torch.Tensor:
        """Return the (n, 1) factors that senders multiply with; ones where there are none."""
        column = self._dense(rows[:, self._width :])
        # Whatever a peer says, a factor is finite.
        column = column.clamp(-_MOST_LOG, _MOST_LOG)
        return torch.exp(-column / 2) if column.shape[1] else column.new_ones(len(column), 1)

    def _dense(self, rows: Rows) -> torch.Tensor:
        return dense_rows(rows, self._dtype).contiguous()


def _mapped(rows: Rows, basis: Basis) -> torch.Tensor:
    """Return (n, d) coordinates of (n, F) rows, with the mean's still in them."""
    numbers = rows.numpy() if isinstance(rows, torch.Tensor) else rows
    mapped: np.ndarray = numbers @ basis.directions.astype(numbers.dtype)
    return torch.from_numpy(np.ascontiguousarray(mapped))


def _as_rows(vectors: Vectors) -> torch.Tensor | csr_array:
    if isinstance(vectors, np.ndarray):
        return torch.from_numpy(np.array(vectors, copy=True))
    return vectors


def rows_that_fit(rows: Vectors, most: float) -> tuple[Vectors, int]:
    """Return rows with 0 in place of values that are not finite, or not below ``most`` in size.

    Returns:
        The rows, and how many values were cut.
    """
    values = rows if isinstance(rows, np.ndarray) else rows.data
    fit = np.abs(values) < most
    if fit.all():
        return rows, 0
    cut = int(np.count_nonzero(~fit))
    fitting = np.where(fit, values, values.dtype.type(0))
    if isinstance(rows, np.ndarray):
        return fitting, cut
    return csr_array((fitting, rows.indices, rows.indptr), shape=rows.shape), cut
