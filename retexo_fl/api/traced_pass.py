"""A whole graph's pass through trained layers along which gradients flow, for explainers.

It computes what :class:`.GraphModel` does otherwise, all nodes at once, by what the layers have to
be trained end to end. An edge's mask multiplies the row that crosses on it, as it multiplies the
message in PyG: for that the edge is given a slot of its own, as a node of another client has one.

Symbols: N nodes, F features, E stored edges, M columns of an ``edge_index``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from retexo_fl.client.stage_rows import with_coordinates
from retexo_fl.exchange import Vectors
from retexo_fl.layers.aggregate import centred
from retexo_fl.layers.base import IN, OUT, RowBatch, StageInput, without_edges
from retexo_fl.layers.named import layer_class
from retexo_fl.training.basis import Basis
from retexo_fl.training.stage_model import ModelShape, StageModel


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeMasks:
    """What multiplies rows on their way along edges.

    Attributes:
        ends: (2, M) sources and targets, in the order of the part's nodes.
        of_layers: For each layer (M,) factors; None for 1.
    """

    ends: np.ndarray
    of_layers: Sequence[torch.Tensor | None]

    @property
    def change_rows(self) -> bool:
        """Whether any layer has factors."""
        return any(factors is not None for factors in self.of_layers)


class FirstRows:
    """What the first layer reads of features: themselves."""

    def read(self, rows: Vectors, make: Callable[[Vectors], StageInput]) -> StageInput:
        """Return what ``make`` makes of (N, F) rows, as the layer reads it."""
        return make(rows)

    def traced(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return rows in place of (N, F) ones, and what is subtracted after they are summed."""
        return rows, None


class FirstCoordinates(FirstRows):
    """What the first layer reads of features: their coordinates in a basis.

    Args:
        basis: The basis.
        of_sums: It is one of sums, whose mean is subtracted after them.
    """

    def __init__(self, basis: Basis, *, of_sums: bool) -> None:
        self._basis = basis
        self._of_sums = of_sums

    def read(self, rows: Vectors, make: Callable[[Vectors], StageInput]) -> StageInput:
        """See :class:`FirstRows`."""
        if self._of_sums:
            return with_coordinates(self._basis, make(rows))
        return make(self._basis.coordinates(rows))

    def traced(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """See :class:`FirstRows`."""
        basis = self._basis
        directions, mean = (torch.from_numpy(a) for a in (basis.directions, basis.mean))
        centre, rows = mean @ directions, rows @ directions
        return (rows, centre) if self._of_sums else (rows - centre, None)


def traced_outputs(
    stages: Sequence[StageModel],
    shape: ModelShape,
    rows: torch.Tensor,
    edges: StageInput,
    *,
    first: FirstRows,
    masks: EdgeMasks,
) -> torch.Tensor:
    """Return the (N, C) outputs of all nodes.

    Args:
        stages: The trained layers, in order.
        shape: Of the model.
        rows: (N, F) normalised features, in the dtype of the model.
        edges: Of all layers; its rows are not read.
        first: What the first layer reads of them.
        masks: Of edges.
    """
    everyone = np.arange(edges.num_nodes)
    rows, centre = first.traced(rows)
    for layer, stage in enumerate(stages):
        mask = masks.of_layers[layer]
        inputs, stacked = edges, rows
        if mask is not None:
            inputs, stacked = _with_slots(shape.model, edges, rows, masks.ends, mask)
        batch = stage.layer.trained_batches(inputs, everyone)(stacked)
        if centre is not None:
            assert isinstance(batch, RowBatch)
            assert isinstance(batch.rows, torch.Tensor)
            batch = replace(batch, rows=centred(batch.rows, centre.numpy()))
            centre = None
        if stage.passes_sums:
            assert isinstance(batch, RowBatch)
            assert isinstance(batch.rows, torch.Tensor)
            rows = batch.rows
        else:
            rows = stage.classify(batch, None) if stage.is_last else stage.embed(batch)
        if stage.is_last and shape.joins_one_end:
            alone = stage.layer.trained_batches(without_edges(inputs), everyone)(stacked)
            rows = torch.cat([rows, stage.classify(alone, None)], dim=1)
    return rows


def normalised(rows: torch.Tensor, how: str) -> torch.Tensor:
    """Scale (N, F) rows as :func:`.normalise_features` does."""
    if how == "none":
        return rows
    lengths = torch.linalg.vector_norm(rows.double(), ord=2 if how == "l2" else 1, dim=1)
    factors: torch.Tensor = lengths.masked_fill(lengths == 0, 1)[:, None].to(rows.dtype)
    return rows / factors


def _with_slots(
    model: str, edges: StageInput, rows: torch.Tensor, ends: np.ndarray, mask: torch.Tensor
) -> tuple[StageInput, torch.Tensor]:
    """Return edges that each have a slot, and all nodes' rows above those of the slots."""
    layer = layer_class(model)
    targets = np.repeat(np.arange(edges.num_nodes), np.diff(edges.indptr))
    columns = _columns(ends, edges.indices, targets, edges.num_nodes)
    if edges.edge_weights is not None and edges.edge_weights.ndim > 1:
        # One slot for the row that comes in along an edge, and one for that of its other end.
        columns = np.stack((columns, _columns(ends, targets, edges.indices, edges.num_nodes)))
        columns = columns.T.reshape(-1)
        weights = np.repeat(edges.edge_weights, 2, axis=0)
        weights[::2, OUT] = weights[1::2, IN] = 0
        attributes = edges.edge_attributes
        edges = replace(
            edges,
            indptr=edges.indptr * 2,
            indices=np.repeat(edges.indices, 2),
            edge_weights=weights,
            edge_attributes=None if attributes is None else np.repeat(attributes, 2, axis=0),
        )
    sources = torch.from_numpy(edges.indices)
    messages = rows[sources] * mask.to(rows.dtype)[torch.from_numpy(columns)][:, None]
    if (scale := layer.message_scale(edges.degrees)) is not None:
        messages = messages * torch.from_numpy(scale).to(rows.dtype)[sources][:, None]
    factors = layer.message_factors(edges.degrees)
    slots = replace(
        edges,
        received=edges.own.new_zeros(len(sources), 0),
        indices=edges.num_nodes + np.arange(len(sources)),
        slot_hashes=edges.own_hashes[edges.indices],
        slot_factors=None if factors is None else factors[edges.indices],
    )
    return slots, torch.cat([rows, messages])


def _columns(
    ends: np.ndarray, sources: np.ndarray, targets: np.ndarray, num_nodes: int
) -> np.ndarray:
    """Return which of the M columns each edge is, in either direction where it has but one."""
    listed = ends[0] * num_nodes + ends[1]
    order = np.argsort(listed, kind="stable")

    def places(wanted: np.ndarray) -> np.ndarray:
        found = np.searchsorted(listed, wanted, sorter=order)
        return np.asarray(order[np.minimum(found, len(listed) - 1)])

    along, against = sources * num_nodes + targets, targets * num_nodes + sources
    found = places(along)
    return np.where(listed[found] == along, found, places(against))
