"""The graph isomorphism network with attributes of edges, of Hu et al."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Literal

import numpy as np
import torch
import torch.nn.functional as F

from retexo_fl.layers.aggregate import linear, scaled_edges
from retexo_fl.layers.base import (
    IN,
    GraphLayer,
    LayerShape,
    StageInput,
    dense_rows,
    edge_numbers,
    glorot,
    moved,
    one_direction,
    places_on,
    stacked_rows,
)
from retexo_fl.layers.dropout import KeyedDropout
from retexo_fl.layers.sparse import SparsePattern, segment_sum, spread_columns

#: Changes a node's hash, so that the mask of the rows inside the layer is not that of its input.
#: Any number serves.
_INNER_ROWS: Final = np.uint64(0x2C7F58D1A6E3904B)


@dataclass(frozen=True, slots=True, kw_only=True)
class GineInput:
    """The stage's (N + B, D) rows, and its edges with their (E,) factors and (E, A) attributes."""

    rows: torch.Tensor
    hashes: np.ndarray
    indptr: np.ndarray
    indices: np.ndarray
    factors: np.ndarray
    attributes: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class GineBatch:
    """Edges into R targets, and the S rows that they and their sources have.

    Attributes:
        rows: (S, D).
        hashes: (S,) uint64.
        edges: (R, S) pattern, one entry an edge.
        targets: (R,) position of each target among the rows.
        target_hashes: (R,) uint64.
        factors: (E, 1) by which messages are multiplied.
        attributes: (E, A).
    """

    rows: torch.Tensor
    hashes: np.ndarray
    edges: SparsePattern
    targets: torch.Tensor
    target_hashes: np.ndarray
    factors: torch.Tensor
    attributes: torch.Tensor


class GineLayer(GraphLayer):
    r"""``h_u = b + ReLU(LayerNorm(c + ((1 + e) x_u + m_u) V)) W``.

    ``m_u = sum over v in N(u) of w_uv ReLU(x_v + a_uv U + d)`` with attributes a of the edge, which
    both of its ends know: nothing crosses but rows. e is trained and starts at zero. What is inside
    a message is trained, so messages are passed in every round. On directed edges N(u) is what
    comes in, as in PyG. For LayerNorm see :class:`~retexo_fl.layers.gin.GinLayer`.

    Dropout acts on the input rows and on the rows between both maps.

    Shapes: x (N + B, D), a (E, A), U (A, D), d (D,), e (1,), V (D, P), c (P,), W (P, H), b (H,),
    result (R, H); P is ``hidden``.

    Source: Hu, Liu, Gomes, Zitnik, Liang, Pande and Leskovec, ICLR 2020, appendix A, equation 5.1
    (with the GIN of Xu et al.); PyG's ``GINEConv`` with ``edge_dim``.
    """

    scales_edges: ClassVar[bool] = True
    directions: ClassVar[Literal["either"]] = "either"
    takes_weights: ClassVar[Literal["any"]] = "any"
    attributes: ClassVar[Literal["needed"]] = "needed"

    def __init__(self, shape: LayerShape) -> None:
        super().__init__(shape)
        self.edge_weight = torch.nn.Parameter(torch.empty(shape.edge_features, shape.inputs))
        self.edge_bias = torch.nn.Parameter(torch.empty(shape.inputs))
        self.epsilon = torch.nn.Parameter(torch.empty(1))
        self.first_weight = torch.nn.Parameter(torch.empty(shape.inputs, shape.hidden))
        self.first_bias = torch.nn.Parameter(torch.empty(shape.hidden))
        self.norm = torch.nn.LayerNorm(shape.hidden)
        self.weight = torch.nn.Parameter(torch.empty(shape.hidden, shape.outputs))
        self.bias = torch.nn.Parameter(torch.empty(shape.outputs))

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Draw U, V and W by Glorot's rule; d, e, c and b are zero."""
        for parameter in (self.edge_weight, self.first_weight, self.weight):
            glorot(parameter, generator)
        self.norm.reset_parameters()
        for parameter in (self.edge_bias, self.epsilon, self.first_bias, self.bias):
            torch.nn.init.zeros_(parameter)

    def own_weights(self) -> Iterator[tuple[torch.Tensor, float]]:
        """Yield e, which leaves the own row out at -1."""
        yield self.epsilon, -1.0

    def prepare(self, inputs: StageInput) -> GineInput:
        """Stack the rows, dense."""
        return self._edges_of(inputs, dense_rows(stacked_rows(inputs), inputs.dtype))

    @staticmethod
    def _edges_of(inputs: StageInput, rows: torch.Tensor) -> GineInput:
        if inputs.edge_weights is not None and inputs.edge_weights.ndim > 1:
            inputs = one_direction(inputs, IN)
        assert inputs.edge_attributes is not None
        return GineInput(
            rows=rows,
            hashes=np.concatenate([inputs.own_hashes, inputs.slot_hashes]),
            indptr=inputs.indptr,
            indices=inputs.indices,
            factors=scaled_edges(np.ones(len(inputs.indices)), inputs),
            attributes=inputs.edge_attributes,
        )

    def trained_batches(
        self, inputs: StageInput, rows: np.ndarray
    ) -> Callable[[torch.Tensor], object]:
        """Prepare the edges once."""
        slots = inputs.num_nodes + len(inputs.slot_hashes)
        # Rows without columns: what is selected of them is replaced in every round.
        edges = self._edges_of(inputs, torch.empty((slots, 0), dtype=inputs.dtype))
        used, batch = self._selected(edges, rows)
        batch, places = moved(batch, inputs.device), places_on(used, inputs.device)
        return lambda stacked: replace(batch, rows=stacked.index_select(0, places))

    def batch(self, prepared: object, rows: np.ndarray) -> GineBatch:
        """Select the edges into ``rows`` and number their sources from zero."""
        assert isinstance(prepared, GineInput)
        used, batch = self._selected(prepared, rows)
        return replace(
            batch, rows=prepared.rows.index_select(0, places_on(used, prepared.rows.device))
        )

    @staticmethod
    def _selected(prepared: GineInput, rows: np.ndarray) -> tuple[np.ndarray, GineBatch]:
        """Return the (S,) rows that are read, and the batch without them."""
        indptr, edges = edge_numbers(rows, prepared.indptr)
        sources = prepared.indices[edges]
        used = np.unique(np.concatenate((sources, rows)))
        dtype = prepared.rows.dtype
        return used, GineBatch(
            rows=prepared.rows[:0],
            hashes=prepared.hashes[used],
            edges=SparsePattern.from_csr(indptr, np.searchsorted(used, sources), len(used)),
            targets=torch.from_numpy(np.searchsorted(used, rows)),
            target_hashes=prepared.hashes[rows],
            factors=torch.from_numpy(prepared.factors[edges]).to(dtype)[:, None],
            attributes=torch.from_numpy(prepared.attributes[edges]).to(dtype),
        )

    def forward(self, batch: object, dropout: KeyedDropout | None) -> torch.Tensor:
        """Return the (R, H) rows of the batch's targets."""
        assert isinstance(batch, GineBatch)
        rows = batch.rows if dropout is None else dropout.dense(batch.rows, batch.hashes)
        carried = torch.addmm(self.edge_bias, batch.attributes, self.edge_weight)
        messages = F.relu(spread_columns(batch.edges, rows) + carried) * batch.factors
        sums = segment_sum(batch.edges, messages)
        own = rows.index_select(0, batch.targets)
        inner = torch.addcmul(sums, own, 1 + self.epsilon) @ self.first_weight + self.first_bias
        inner = F.relu(self.norm(inner))
        return linear(inner, batch.target_hashes ^ _INNER_ROWS, self.weight, dropout) + self.bias
