"""Graph attention with averaged heads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Literal

import numpy as np
import torch
import torch.nn.functional as F

from retexo_fl.layers.aggregate import linear, scaled_edges
from retexo_fl.layers.base import (
    GraphLayer,
    LayerShape,
    Rows,
    StageInput,
    compact_rows,
    edge_numbers,
    edges_into,
    glorot,
    moved,
    places_on,
    select_rows,
    stacked_rows,
)
from retexo_fl.layers.device_masks import on_device
from retexo_fl.layers.dropout import KeyedDropout
from retexo_fl.layers.sparse import (
    SparsePattern,
    SparseRows,
    segment_sum,
    sparse_product,
    spread_columns,
    spread_rows,
)

#: Slope of the leaky ReLU on attention logits (Velickovic et al., ICLR 2018, section 3.3).
_NEGATIVE_SLOPE: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class GatInput:
    """The stage's rows and edges, each inner node with an edge to itself, whose scale is 1."""

    rows: Rows
    hashes: np.ndarray
    indptr: np.ndarray
    indices: np.ndarray
    scales: np.ndarray | None
    dtype: torch.dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class GatBatch:
    """Edges into R targets, and the S source rows that they need.

    Attributes:
        rows: (S, D) rows of the sources.
        hashes: (S,) uint64.
        edges: (R, S) pattern, one entry an edge.
        bags: (R, S * heads) pattern: entry ``e * heads + k`` is head k of edge e.
        targets: (R,) position of each target among the sources.
        scales: (E, 1) how many neighbours each edge stands for; None for 1.
    """

    rows: torch.Tensor | SparseRows
    hashes: np.ndarray
    edges: SparsePattern
    bags: SparsePattern
    targets: torch.Tensor
    scales: torch.Tensor | None

    def dropped(self, attention: torch.Tensor, dropout: KeyedDropout) -> torch.Tensor:
        """Drop (E, heads) attention, keyed by the hashes of each edge's source and target."""
        if attention.device.type != "cpu":
            hashes = on_device(self.hashes, attention.device)
            ends = self.targets.index_select(0, self.edges.rows)
            return dropout.attention_on_device(
                attention, hashes.index_select(0, self.edges.columns), hashes.index_select(0, ends)
            )
        target_hashes = self.hashes[self.targets.numpy()]
        sources = self.hashes[self.edges.columns.numpy()]
        return dropout.attention(attention, sources, target_hashes[self.edges.rows.numpy()])


class GatLayer(GraphLayer):
    r"""``h_u = b + 1/K sum_k sum_v a_uvk x_v W_k`` over v in N(u) and u itself.

    ``a_uv = softmax_v leaky_relu(x_v W_k s_k + x_u W_k t_k)``, K heads. Heads are averaged, so a
    hidden state is ``hidden / heads`` wide: the shape of RETEXO's GAT. Attention is trained, so
    messages are passed in every round; the rows they need still cross the network once per stage.
    Dropout acts on the input rows and on the attention.

    What an edge weighs is a factor of its attention before that is divided: ``w_uv exp(...)`` over
    the sum of these; a node itself weighs 1. Sampled neighbours count in the same way as often as
    they stand for. That is a self-normalised estimate of the attention over all neighbours:
    consistent, exact where none is left out, with a bias that falls with their number.

    Shapes: x (N + B, D), W (D, K H), s and t (K, H), b (H,), result (R, H).

    Source: Velickovic et al., ICLR 2018, equations 3 and 6.
    """

    uses_heads: ClassVar[bool] = True
    scales_edges: ClassVar[bool] = True
    takes_weights: ClassVar[Literal["positive"]] = "positive"

    def __init__(self, shape: LayerShape) -> None:
        super().__init__(shape)
        self.weight = torch.nn.Parameter(torch.empty(shape.inputs, shape.heads * shape.outputs))
        self.source_attention = torch.nn.Parameter(torch.empty(shape.heads, shape.outputs))
        self.target_attention = torch.nn.Parameter(torch.empty(shape.heads, shape.outputs))
        self.bias = torch.nn.Parameter(torch.empty(shape.outputs))

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Draw W, s and t by Glorot's rule; b is zero."""
        for parameter in (self.weight, self.source_attention, self.target_attention):
            glorot(parameter, generator)
        torch.nn.init.zeros_(self.bias)

    def prepare(self, inputs: StageInput) -> GatInput:
        """Stack the rows and add an edge from each inner node to itself."""
        return self._with_own_edges(inputs, compact_rows(stacked_rows(inputs), inputs.dtype))

    @staticmethod
    def _with_own_edges(inputs: StageInput, rows: Rows) -> GatInput:
        nodes = inputs.num_nodes
        inputs, scales = _attended(inputs)
        own = inputs.indptr[1:]
        indices = np.insert(inputs.indices.astype(np.int64), own, np.arange(nodes))
        return GatInput(
            rows=rows,
            hashes=np.concatenate([inputs.own_hashes, inputs.slot_hashes]),
            indptr=inputs.indptr + np.arange(nodes + 1),
            indices=indices,
            scales=None if scales is None else np.insert(scales, own, 1),
            dtype=inputs.dtype,
        )

    def trained_batches(
        self, inputs: StageInput, rows: np.ndarray
    ) -> Callable[[torch.Tensor], object]:
        """Prepare the edges once."""
        slots = inputs.num_nodes + len(inputs.slot_hashes)
        # Rows without columns: what is selected of them is replaced in every round.
        edges = self._with_own_edges(inputs, torch.empty((slots, 0), dtype=inputs.dtype))
        used, batch = self._selected(edges, rows)
        batch = moved(batch, inputs.device)
        places = None if len(used) == slots else places_on(used, inputs.device)

        def of_rows(stacked: torch.Tensor) -> GatBatch:
            needed = stacked if places is None else stacked.index_select(0, places)
            return replace(batch, rows=needed)

        return of_rows

    def batch(self, prepared: object, rows: np.ndarray) -> GatBatch:
        """Select the edges into ``rows`` and number their sources from zero."""
        assert isinstance(prepared, GatInput)
        return self._selected(prepared, rows)[1]

    def _selected(self, prepared: GatInput, rows: np.ndarray) -> tuple[np.ndarray, GatBatch]:
        """Return the (S,) rows of the sources, and the batch."""
        indptr, used, columns = edges_into(rows, prepared.indptr, prepared.indices)
        heads = self.shape.heads
        bag_columns = (columns[:, None] * heads + np.arange(heads)).reshape(-1)
        scales = None
        if prepared.scales is not None:
            edges = edge_numbers(rows, prepared.indptr)[1]
            scales = torch.from_numpy(prepared.scales[edges]).to(prepared.dtype)[:, None]
        return used, GatBatch(
            rows=select_rows(prepared.rows, used, prepared.dtype),
            hashes=prepared.hashes[used],
            edges=SparsePattern.from_csr(indptr, columns, len(used)),
            bags=SparsePattern.from_csr(indptr * heads, bag_columns, len(used) * heads),
            targets=torch.from_numpy(np.searchsorted(used, rows)),
            scales=scales,
        )

    def forward(self, batch: object, dropout: KeyedDropout | None) -> torch.Tensor:
        """Return the (R, H) rows of the batch's targets."""
        assert isinstance(batch, GatBatch)
        heads, width = self.shape.heads, self.shape.outputs
        values = linear(batch.rows, batch.hashes, self.weight, dropout).view(-1, heads, width)
        attention = self._attention(batch, values)
        if dropout is not None:
            attention = batch.dropped(attention, dropout)
        table = values.reshape(-1, width)
        summed = sparse_product(batch.bags, attention.reshape(-1), table)
        return summed / heads + self.bias

    def _attention(self, batch: GatBatch, values: torch.Tensor) -> torch.Tensor:
        """Return the (E, heads) softmax over each target's edges; ``values`` is (S, heads, H)."""
        # One product for all heads and both ends: a fourth of what sums over each head cost.
        scores = values.flatten(1) @ self._score_weight()
        source_part = scores[:, : self.shape.heads]
        target_part = scores[:, self.shape.heads :].index_select(0, batch.targets)
        logits = F.leaky_relu(
            spread_columns(batch.edges, source_part) + spread_rows(batch.edges, target_part),
            _NEGATIVE_SLOPE,
        )
        # Any constant per target leaves the softmax unchanged; the largest logit keeps exp finite.
        peaks = torch.segment_reduce(
            logits.detach(), "max", offsets=batch.edges.indptr, axis=0, unsafe=True
        )
        powers = torch.exp(logits - peaks.index_select(0, batch.edges.rows))
        if batch.scales is not None:
            powers = powers * batch.scales
        return powers / spread_rows(batch.edges, segment_sum(batch.edges, powers))

    def _score_weight(self) -> torch.Tensor:
        """Return s and t as a (K H, 2 K) matrix: column k reads head k, column K + k as well."""
        heads, width = self.shape.heads, self.shape.outputs
        weight = self.weight
        own_head = torch.eye(heads, dtype=weight.dtype, device=weight.device)[:, None, :]
        ends = (self.source_attention, self.target_attention)
        blocks = [(end[:, :, None] * own_head).view(heads * width, heads) for end in ends]
        return torch.cat(blocks, dim=1)


def _attended(inputs: StageInput) -> tuple[StageInput, np.ndarray | None]:
    """Leave out edges that weigh nothing; return what is left, and the factor of each edge.

    An edge whose factor is 0 must not be the largest logit, beside which all others vanish.
    """
    if inputs.edge_weights is None:
        return inputs, inputs.edge_scales
    factors = scaled_edges(np.ones(len(inputs.indices)), inputs)
    kept = inputs.edge_weights != 0
    if kept.all():
        return inputs, factors
    indptr = np.concatenate(([0], np.cumsum(kept)))[inputs.indptr]
    return replace(inputs, indptr=indptr, indices=inputs.indices[kept]), factors[kept]
