"""Layers over directed edges: what comes in and what goes out are aggregated apart.

A node's row is joined with two aggregates, one over the nodes whose edges lead to it and one over
those that its own edges lead to; each of the three has a weight of its own. The paper's mixing
factor alpha is in the weights.

Source: Rossi, Charpentier, Di Giovanni, Frasca, Guennemann and Bronstein (Dir-GNN), LoG 2023,
equation 3; a node's own row as in PyG's ``DirGNNConv``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

import numpy as np
import torch
import torch.nn.functional as F
from scipy.sparse import csr_array

from retexo_fl.layers.aggregate import (
    AggregatedLayer,
    aggregate,
    beside_own,
    channel_means,
    channel_operator,
    linear,
    trained_sums,
)
from retexo_fl.layers.base import (
    IN,
    OUT,
    GraphLayer,
    LayerShape,
    RowBatch,
    Rows,
    StageInput,
    compact_rows,
    glorot,
    one_direction,
    places_on,
    select_rows,
    stacked_rows,
)
from retexo_fl.layers.dropout import KeyedDropout
from retexo_fl.layers.gat import GatAttention, GatBatch, GatInput
from retexo_fl.layers.sparse import SparseRows

_SIDES: Final = (IN, OUT)
#: Changes a node's hash, so that the mask of the rows inside the layer is not that of its input.
#: Any number serves.
_INNER_ROWS: Final = np.uint64(0x5B1E9D3C07F24A69)


class DirectedSums(AggregatedLayer):
    """``h_u = b + [x_u | sum over what comes in | sum over what goes out] W``.

    Subclasses say what each edge's row is multiplied by.

    Shapes: x (N + B, D), W (3 D, H), b (H,), result (R, H).
    """

    scales_edges: ClassVar[bool] = True
    directions: ClassVar[Literal["directed"]] = "directed"
    takes_weights: ClassVar[Literal["positive", "any"]] = "positive"

    def __init__(self, shape: LayerShape) -> None:
        super().__init__(shape)
        self.weight = torch.nn.Parameter(torch.empty(3 * shape.inputs, shape.outputs))
        self.bias = torch.nn.Parameter(torch.empty(shape.outputs))

    @staticmethod
    @abstractmethod
    def edge_factors(inputs: StageInput, side: int) -> np.ndarray:
        """Return the (E,) factors of one direction's sum, 0 where there is no such edge."""

    @classmethod
    def crossing_width(cls, shape: LayerShape) -> int | None:
        """Return 3 D; None where a neighbour's row has to be multiplied by two of its own numbers.

        Of a row that peers make themselves of what crossed these are not there.
        """
        return None if cls.num_factors else 3 * shape.inputs

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Draw W by Glorot's rule; b is zero."""
        glorot(self.weight, generator)
        torch.nn.init.zeros_(self.bias)

    def own_weights(self) -> Iterator[tuple[torch.Tensor, float]]:
        """Yield the upper third of W."""
        yield self.weight[: self.shape.inputs], 0.0

    def start_as(self, weight: torch.Tensor, bias: torch.Tensor) -> bool:
        """Apply the head to the mean of a node's own row and its two aggregates."""
        with torch.no_grad():
            self.weight.copy_(torch.cat([weight] * 3) / 3)
            self.bias.copy_(bias)
        return True

    def aggregated(self, inputs: StageInput) -> Rows:
        """Return (N, 3 D): own rows beside both aggregates."""
        sums = [aggregate(operator, inputs) for operator in self.operators(inputs)]
        return beside_own(inputs, *sums)

    def trained_batches(
        self, inputs: StageInput, rows: np.ndarray
    ) -> Callable[[torch.Tensor], object]:
        """Prepare the sums' weights once."""
        return trained_sums(self.operators(inputs), inputs, rows, with_own=True)

    def operators(self, inputs: StageInput) -> list[csr_array]:
        """Return the (N, N + B) weights of both sums."""
        scales = 1 if inputs.edge_scales is None else inputs.edge_scales
        return [
            channel_operator(self.edge_factors(inputs, side) * scales, inputs) for side in _SIDES
        ]


class DirGcnLayer(DirectedSums):
    r"""``w_vu x_v / sqrt(o_v i_u)`` summed over v -> u, ``w_uv x_v / sqrt(o_u i_v)`` over u -> v.

    i and o are a node's in- and out-degree in the whole graph: what its edges of one direction
    weigh together. A row is multiplied by one of two factors of its owner, as its edge comes or
    goes, so both cross beside it.

    Source: Dir-GNN, section 3.1, ``S = D_out^(-1/2) A D_in^(-1/2)`` and its transpose.
    """

    num_factors: ClassVar[int] = 2

    @staticmethod
    def message_factors(degrees: np.ndarray) -> np.ndarray:
        """Return the inverse roots of in- and out-degree; 0 for a degree of 0."""
        roots = np.sqrt(np.maximum(degrees, 0))
        inverse: np.ndarray = np.divide(1.0, roots, out=np.zeros(roots.shape), where=roots > 0)
        return inverse

    @staticmethod
    def edge_factors(inputs: StageInput, side: int) -> np.ndarray:
        """Return ``w / sqrt(o i)``."""
        assert inputs.edge_weights is not None
        own = DirGcnLayer.message_factors(inputs.degrees)
        foreign = inputs.slot_factors
        if foreign is None:
            foreign = np.zeros((len(inputs.slot_hashes), 2))
        sources = np.concatenate([own, foreign])[inputs.indices, 1 - side]
        targets = np.repeat(own[:, side], np.diff(inputs.indptr))
        factors: np.ndarray = inputs.edge_weights[:, side] * targets * sources
        return factors


class DirSageLayer(DirectedSums):
    """Weighted means over what comes in and over what goes out; zero where there is nothing."""

    @staticmethod
    def edge_factors(inputs: StageInput, side: int) -> np.ndarray:
        """Return each edge's share of the direction's weight."""
        return channel_means(inputs, side)


class DirGinLayer(DirectedSums):
    r"""``h_u = b + ReLU(LayerNorm(c + [x_u | sum in | sum out] V)) W``.

    The sums are weighted. V has a block for a node's own row, so there is no epsilon. For
    LayerNorm, and for dropout before both maps, see :class:`~retexo_fl.layers.gin.GinLayer`.

    Shapes: x (N + B, D), V (3 D, P), c (P,), W (P, H), b (H,), result (R, H); P is ``hidden``.
    """

    takes_weights: ClassVar[Literal["any"]] = "any"

    def __init__(self, shape: LayerShape) -> None:
        super().__init__(shape)
        self.first_weight = torch.nn.Parameter(torch.empty(3 * shape.inputs, shape.hidden))
        self.first_bias = torch.nn.Parameter(torch.empty(shape.hidden))
        self.norm = torch.nn.LayerNorm(shape.hidden)
        self.weight = torch.nn.Parameter(torch.empty(shape.hidden, shape.outputs))

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Draw V and W by Glorot's rule; c and b are zero."""
        glorot(self.first_weight, generator)
        super().reset_parameters(generator)
        self.norm.reset_parameters()
        torch.nn.init.zeros_(self.first_bias)

    def own_weights(self) -> Iterator[tuple[torch.Tensor, float]]:
        """Yield the upper third of V."""
        yield self.first_weight[: self.shape.inputs], 0.0

    def start_as(self, weight: torch.Tensor, bias: torch.Tensor) -> bool:
        """Change nothing: a head is no such layer."""
        del weight, bias
        return False

    @staticmethod
    def edge_factors(inputs: StageInput, side: int) -> np.ndarray:
        """Return the weights."""
        assert inputs.edge_weights is not None
        factors: np.ndarray = inputs.edge_weights[:, side].astype(np.float64)
        return factors

    def forward(self, batch: object, dropout: KeyedDropout | None) -> torch.Tensor:
        """Return the (R, H) rows of the batch's nodes."""
        assert isinstance(batch, RowBatch)
        inner = linear(batch.rows, batch.hashes, self.first_weight, dropout) + self.first_bias
        inner = F.relu(self.norm(inner))
        return linear(inner, batch.hashes ^ _INNER_ROWS, self.weight, dropout) + self.bias


@dataclass(frozen=True, slots=True, kw_only=True)
class DirGatInput:
    """The stage's rows, and what each attention reads of them."""

    incoming: GatInput
    outgoing: GatInput


@dataclass(frozen=True, slots=True, kw_only=True)
class DirGatBatch:
    """(R, D) rows of the targets with their hashes, and the edges of both directions."""

    rows: torch.Tensor | SparseRows
    hashes: np.ndarray
    incoming: GatBatch
    outgoing: GatBatch


class _Incoming(GatAttention):
    """Attention over the nodes whose edges come in."""

    attends_itself: ClassVar[bool] = False


class _Outgoing(_Incoming):
    """Attention over the nodes that edges lead to."""

    leads_out: ClassVar[bool] = True


class DirGatLayer(GraphLayer):
    """``h_u = b + x_u W + attention over what comes in + attention over what goes out``.

    Each is that of :class:`~retexo_fl.layers.gat.GatLayer` with parameters of its own, without a
    node's edge to itself; zero where there is no edge.

    Shapes: x (N + B, D), W (D, H), b (H,), result (R, H).
    """

    uses_heads: ClassVar[bool] = True
    scales_edges: ClassVar[bool] = True
    directions: ClassVar[Literal["directed"]] = "directed"
    takes_weights: ClassVar[Literal["positive"]] = "positive"
    attributes: ClassVar[Literal["read"]] = "read"

    def __init__(self, shape: LayerShape) -> None:
        super().__init__(shape)
        self.incoming = _Incoming(shape)
        self.outgoing = _Outgoing(shape)
        self.weight = torch.nn.Parameter(torch.empty(shape.inputs, shape.outputs))
        self.bias = torch.nn.Parameter(torch.empty(shape.outputs))

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Draw all but b by Glorot's rule; b is zero."""
        self.incoming.reset_parameters(generator)
        self.outgoing.reset_parameters(generator)
        glorot(self.weight, generator)
        torch.nn.init.zeros_(self.bias)

    def own_weights(self) -> Iterator[tuple[torch.Tensor, float]]:
        """Yield W."""
        yield self.weight, 0.0

    def prepare(self, inputs: StageInput) -> DirGatInput:
        """Stack the rows, and part the edges by direction."""
        rows = compact_rows(stacked_rows(inputs), inputs.dtype)
        return DirGatInput(
            incoming=self.incoming.edges_of(one_direction(inputs, IN), rows),
            outgoing=self.outgoing.edges_of(one_direction(inputs, OUT), rows),
        )

    def batch(self, prepared: object, rows: np.ndarray) -> DirGatBatch:
        """Select the edges of ``rows``."""
        assert isinstance(prepared, DirGatInput)
        there = prepared.incoming
        return DirGatBatch(
            rows=select_rows(there.rows, rows, there.dtype),
            hashes=there.hashes[rows],
            incoming=self.incoming.batch(prepared.incoming, rows),
            outgoing=self.outgoing.batch(prepared.outgoing, rows),
        )

    def trained_batches(
        self, inputs: StageInput, rows: np.ndarray
    ) -> Callable[[torch.Tensor], object]:
        """Prepare the edges once."""
        incoming = self.incoming.trained_batches(one_direction(inputs, IN), rows)
        outgoing = self.outgoing.trained_batches(one_direction(inputs, OUT), rows)
        hashes, places = inputs.own_hashes[rows], places_on(rows, inputs.device)

        def batch(stacked: torch.Tensor) -> DirGatBatch:
            came, went = incoming(stacked), outgoing(stacked)
            assert isinstance(came, GatBatch)
            assert isinstance(went, GatBatch)
            own = stacked.index_select(0, places)
            return DirGatBatch(rows=own, hashes=hashes, incoming=came, outgoing=went)

        return batch

    def forward(self, batch: object, dropout: KeyedDropout | None) -> torch.Tensor:
        """Return the (R, H) rows of the batch's targets."""
        assert isinstance(batch, DirGatBatch)
        own = linear(batch.rows, batch.hashes, self.weight, dropout)
        attended = self.incoming(batch.incoming, dropout) + self.outgoing(batch.outgoing, dropout)
        result: torch.Tensor = own + attended + self.bias
        return result
