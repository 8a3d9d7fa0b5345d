"""What crosses between clients before a stage, and what its layer reads of that.

Three forms, by configuration and widths alone, so that both ends of a link know which it is:

- the rows that the layer reads;
- before the first stage with a basis of sums: the features, which a basis maps later;
- before a later stage, where that is narrower: what the layer before it reads. Who has the rows
  computes that layer, whose weights all clients get.

With ``second-rows = none`` nothing crosses after the first exchange: a client makes later rows of
the B boundary nodes that it received itself, by the layer, from the row that came first, its own
nodes beside them and the edges across, which both ends know. A node's degree is then the number of
these edges, or what they weigh: its owner does not send the whole
degree, nor anything about edges inside its part.

With ``class`` each owner says beside that, before each later stage, which class the head of the
stage before predicts of each of its boundary nodes: ``ceil(log2 C)`` bits, in the plan's order. Who
reads that corrects the rows that it has made by a map M, which it learns on its own nodes. Of these
it knows the rows; and a row that a peer would make of one it makes too, of the peer's first rows
and the edges between both. So nothing is added up over clients, and no map is sent::

    s h ~ f g + [ f g | f | e_c ] M
    M = argmin ||[ f g | f | e_c ] M - (s h - f g)||^2 + ||M||^2

with h the row that an owner's layer makes, g the row that a peer makes; s what the owner, f what
the peer would multiply it with (:meth:`.GraphLayer.message_scale` of all edges, of those between
both; 1 where there is none), c the class. Without anything to learn from M is 0, and rows are those
of ``none``. Rows come out of a LayerNorm and a ReLU, so that values are near 1, and so is the
penalty.

Symbols: N inner nodes, n rows, F features, d coordinates, D' width of what the layer before reads
(:meth:`.GraphLayer.fixed_width`) with the column of a factor, H width of what it makes, P weights;
C classes, b bits of one, q pairs of an inner node and a peer that it has edges to.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import torch
from scipy.sparse import csr_array, hstack, vstack

from retexo_fl.errors import PartitionError, TrainingDiverged
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
#: Of M: chosen among 1 and 10 on validation nodes, which made hardly a difference.
_PENALTY: Final = 1.0
#: Rows that M is learned of, or read by, at once.
_ROWS_READ: Final = 2**14
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
        own=as_rows(rows),
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

    Where the layer asks senders to multiply with a factor f, its -2 ln f is one more column:
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
    basis: Basis,
    inputs: StageInput,
    relations: Relations | None = None,
    far: tuple[int, ...] = (),
) -> StageInput:
    """Map features to the coordinates of a basis of sums; the mean is subtracted after them.

    Of a typed graph a sum is of the columns of several types, and of each its own part of the mean
    is subtracted before rows are added.

    Args:
        basis: The basis.
        inputs: Their features.
        relations: Of a typed graph.
        far: Types of which such a basis is two edges away, too.
    """
    if relations is not None:
        centres = _type_centres(basis, relations, far)
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


def _type_centres(basis: Basis, relations: Relations, far: tuple[int, ...]) -> np.ndarray:
    """Return (T, d): of each type its part of the mean, by how often its rows are added.

    That is in the mean over types with labels: how many nodes each has, nobody need know for it.
    """
    labelled = len(relations.with_labels)
    found = np.zeros((len(relations.types), basis.directions.shape[1]))
    for kind, times in enumerate(times_added(relations, far)):
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
    return rows_of(rows)


def far_sums(shape: ModelShape, inputs: StageInput) -> Features:
    """Return the (N, F) sums of far types that cross for a basis."""
    assert shape.relations is not None
    return rows_of(sums_of_far(inputs, shape.relations, shape.far_types))


def with_far_sums(shape: ModelShape, rows: Features, crossed: StageInput) -> Features:
    """Add to (N, F) :func:`summed_rows` what crossed of far types."""
    assert shape.relations is not None
    beyond = csr_array(rows_of(far_sums_of_labelled(crossed, shape.relations)))
    return csr_array(csr_array(rows) + beyond)


# ---- where rows cross once ----------------------------------------------------------------------


def as_received(model: str, inputs: StageInput) -> StageInput:
    """Return what a layer reads, with the factors that a sender would have multiplied with.

    Args:
        model: Layer.
        inputs: Its received rows are those of peers' nodes as they are.
    """
    _, values, indptr = edges_across(inputs)
    rows = sent_rows(model, weighted_degrees(indptr, values), rows_of(inputs.received))
    rows, factors = parted_rows(model, rows)
    return replace(inputs, received=as_rows(rows), slot_factors=factors)


def seen_from_here(model: str, inputs: StageInput) -> StageInput:
    """Return what a layer reads of received boundary nodes: they and inner nodes change places.

    Args:
        model: Layer.
        inputs: Its received rows are those of peers' nodes as they are.
    """
    beside, values, indptr = edges_across(inputs)
    used, places = np.unique(beside, return_inverse=True)
    own = rows_of(inputs.own)[used]
    rows, factors = parted_rows(model, sent_rows(model, inputs.degrees[used], own))
    degrees = weighted_degrees(indptr, values)
    return replace(
        inputs,
        own=inputs.received,
        received=as_rows(rows),
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


def layer_outputs_of(
    shape: ModelShape, stage: int, weights: np.ndarray, rows: Rows, hashes: np.ndarray
) -> np.ndarray:
    """Return the (n, H) rows that a stage's layer makes of (n, D') rows that it reads.

    Args:
        shape: Of the model.
        stage: Whose layer it is.
        weights: (P,) of it.
        rows: As :func:`read_rows` makes them.
        hashes: (n,) of the nodes.
    """
    return _Layer(shape, stage, weights).outputs(rows, hashes, None).numpy()


def together(own: Vectors, received: Vectors) -> Vectors:
    """Return own rows above those of received boundary nodes: (N + B, D)."""
    if isinstance(own, np.ndarray) and isinstance(received, np.ndarray):
        return np.concatenate([own, received])
    return csr_array(vstack([csr_array(own), csr_array(received)], format="csr"))


def apart(rows: Vectors, nodes: int) -> tuple[Vectors, Vectors]:
    """Return the (N, D) and (B, D) rows that :func:`together` has put in one; the latter anew."""
    return rows[:nodes], rows[nodes:].copy()


def edges_across(inputs: StageInput) -> tuple[np.ndarray, EdgeValues, np.ndarray]:
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


# ---- where classes cross after them --------------------------------------------------------------


@torch.no_grad()
def predicted_classes(
    shape: ModelShape, stage: int, weights: np.ndarray, rows: np.ndarray
) -> np.ndarray:
    """Return the (N,) int64 classes that a stage's head predicts; of equal ones the lowest.

    Args:
        shape: Of the model.
        stage: Whose head it is.
        weights: (P,) of it.
        rows: (N, H) that the stage's layer makes.
    """
    model = model_in_turn(shape, stage)
    model.flat.bind(weights)
    logits = model.head(torch.from_numpy(np.ascontiguousarray(rows))).numpy()
    found: np.ndarray = logits.argmax(axis=1)
    model.flat.release()
    return found


def bits_of_classes(classes: np.ndarray, shape: ModelShape) -> np.ndarray:
    """Return (n,) classes as they cross: (n, b) of 0 and 1, the highest bit first."""
    places = np.arange(shape.class_bits)[::-1]
    return ((classes[:, None] >> places) & 1).astype(shape.dtype)


def classes_of_bits(bits: np.ndarray) -> np.ndarray:
    """Return the (n,) int64 numbers that (n, b) bits say; what a peer says may be no class."""
    found: np.ndarray = bits.astype(np.int64) @ (1 << np.arange(bits.shape[1])[::-1])
    return found


def seen_by_peers(
    model: str, inputs: StageInput, peers: np.ndarray
) -> tuple[np.ndarray, StageInput]:
    """Return what a layer reads of inner nodes as each of their peers would make their rows.

    Args:
        model: Layer.
        inputs: Its received rows are those of peers' nodes as they are.
        peers: (B,) the owner of each received node.

    Returns:
        The (q,) inner nodes, a node once for each peer that it has edges to, and what is read.
    """
    nodes, received = inputs.num_nodes, as_received(model, inputs)
    across = np.flatnonzero(inputs.indices >= nodes)
    inner = np.repeat(np.arange(nodes), np.diff(inputs.indptr))[across]
    slots = inputs.indices[across] - nodes
    order = np.lexsort((peers[slots], inner))
    across, inner, slots = across[order], inner[order], slots[order]
    ends = np.stack([inner, peers[slots]])
    is_first = np.append(True, (np.diff(ends, axis=1) != 0).any(axis=0))[: len(inner)]
    firsts = np.flatnonzero(is_first)
    indptr = np.append(firsts, len(inner))
    seen = inner[firsts]
    values = EdgeValues(weights=inputs.edge_weights, attributes=inputs.edge_attributes)
    values = values.taken(across)
    degrees = weighted_degrees(indptr, values)
    return seen, replace(
        received,
        own=as_rows(rows_of(inputs.own)[seen]),
        indptr=indptr,
        indices=len(seen) + slots,
        neighbours=degrees,
        degrees=degrees,
        own_hashes=np.asarray(inputs.own_hashes)[seen],
        edge_weights=values.weights,
        edge_attributes=values.attributes,
    )


def fitted_reading(
    shape: ModelShape,
    *,
    rows: np.ndarray,
    degrees: np.ndarray,
    seen: np.ndarray,
    made: np.ndarray,
    known: np.ndarray,
    classes: np.ndarray,
) -> np.ndarray:
    """Return M, (H + 1 + C, H) float64.

    Args:
        shape: Of the model.
        rows: (N, H) that the layer makes of inner nodes.
        degrees: Of these, as the layer reads them.
        seen: (q,) inner nodes.
        made: (q, H) their rows as peers would make them.
        known: Degrees of these that the peer knows.
        classes: (N,) of inner nodes.

    Raises:
        TrainingDiverged: Rows are so large, or none, that nothing can be solved for.
    """
    width = shape.row_width + 1 + shape.classes
    products = _PENALTY * np.eye(width)
    wanted = np.zeros((width, shape.row_width))
    factors, whole = _factors(shape.model, known), _factors(shape.model, degrees)
    for first in range(0, len(seen), _ROWS_READ):
        some = slice(first, first + _ROWS_READ)
        read = _regressors(made[some], factors[some], classes[seen[some]], shape.classes)
        missed = whole[seen[some]] * rows[seen[some]] - read[:, : shape.row_width]
        products += read.T @ read
        wanted += read.T @ missed
    try:
        found: np.ndarray = np.linalg.solve(products, wanted)
    except np.linalg.LinAlgError:
        found = np.full_like(wanted, np.nan)
    if not np.isfinite(found).all():
        raise TrainingDiverged(
            "rows that a layer makes are too large to learn from; lower learning-rate"
        )
    return found


def as_corrected(
    shape: ModelShape, inputs: StageInput, reading: np.ndarray, classes: np.ndarray
) -> StageInput:
    """Return what a layer reads of peers' nodes, whose rows are made here and corrected.

    Args:
        shape: Of the model.
        inputs: Its (B, H) received rows are made here, as they are.
        reading: (H + 1 + C, H) float64 M, as :func:`fitted_reading` returns it.
        classes: (B,) integers of received nodes, from 0.
    """
    _, values, indptr = edges_across(inputs)
    factors = _factors(shape.model, weighted_degrees(indptr, values))
    made = np.asarray(rows_of(inputs.received))
    corrected = np.empty_like(made)
    for first in range(0, len(made), _ROWS_READ):
        some = slice(first, first + _ROWS_READ)
        read = _regressors(made[some], factors[some], classes[some], shape.classes)
        corrected[some] = read[:, : shape.row_width] + read @ reading
    received = as_received(shape.model, inputs)
    return replace(received, received=torch.from_numpy(corrected))


def _factors(model: str, degrees: np.ndarray) -> np.ndarray:
    scale = layer_class(model).message_scale(degrees)
    return np.ones((len(degrees), 1)) if scale is None else scale[:, None]


def _regressors(
    made: np.ndarray, factors: np.ndarray, classes: np.ndarray, count: int
) -> np.ndarray:
    return np.hstack([factors * made, factors, np.eye(count)[classes]])


# ---- forms of rows ------------------------------------------------------------------------------


def rows_of(rows: Rows) -> Features:
    """Return rows that a layer reads as an array, or CSR."""
    return rows.numpy() if isinstance(rows, torch.Tensor) else csr_array(rows)


class _Layer:
    """A trained layer of a stage's model, with its weights."""

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


def as_rows(vectors: Vectors) -> Rows:
    """Return rows as a layer reads them, in memory of their own where they are an array."""
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
