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
    """The stage's rows and edges.

    Each inner node has an edge to itself, whose scale is 1, where it attends to itself.
    """

    rows: Rows
    hashes: np.ndarray
    indptr: np.ndarray
    indices: np.ndarray
    scales: np.ndarray | None
    attributes: np.ndarray | None
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
        scales: (E, 1) how many neighbours each edge represents; None for 1.
        attributes: (E, A) of each edge; None for none.
        leads_out: Whether edges lead from targets to sources; it decides what is dropped.
    """

    rows: torch.Tensor | SparseRows
    hashes: np.ndarray
    edges: SparsePattern
    bags: SparsePattern
    targets: torch.Tensor
    scales: torch.Tensor | None
    attributes: torch.Tensor | None = None
    leads_out: bool = False

    def dropped(self, attention: torch.Tensor, dropout: KeyedDropout) -> torch.Tensor:
        """Drop (E, heads) attention, keyed by the hashes of each edge's source and target."""
        if attention.device.type != "cpu":
            hashes = on_device(self.hashes, attention.device)
            places = self.targets.index_select(0, self.edges.rows)
            there, here = (hashes.index_select(0, at) for at in (self.edges.columns, places))
            there, here = (here, there) if self.leads_out else (there, here)
            return dropout.attention_on_device(attention, there, here)
        target_hashes = self.hashes[self.targets.numpy()]
        sources = self.hashes[self.edges.columns.numpy()]
        targets = target_hashes[self.edges.rows.numpy()]
        sources, targets = (targets, sources) if self.leads_out else (sources, targets)
        return dropout.attention(attention, sources, targets)


class GatAttention(GraphLayer):
    """The sum over heads and neighbours of :class:`GatLayer`, without its bias: (R, H)."""

    uses_heads: ClassVar[bool] = True
    scales_edges: ClassVar[bool] = True
    takes_weights: ClassVar[Literal["positive"]] = "positive"
    attributes: ClassVar[Literal["read"]] = "read"

    #: Whether a node attends to its own row, too.
    attends_itself: ClassVar[bool] = True
    #: Whether edges lead from the nodes that attend to those attended to.
    leads_out: ClassVar[bool] = False

    def __init__(self, shape: LayerShape) -> None:
        super().__init__(shape)
        self.weight = torch.nn.Parameter(torch.empty(shape.inputs, shape.heads * shape.outputs))
        self.source_attention = torch.nn.Parameter(torch.empty(shape.heads, shape.outputs))
        self.target_attention = torch.nn.Parameter(torch.empty(shape.heads, shape.outputs))
        if shape.edge_features:
            edge_attention = torch.empty(shape.edge_features, shape.heads)
            self.edge_attention = torch.nn.Parameter(edge_attention)

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Draw W, s, t and Q by Glorot's rule."""
        for parameter in (self.weight, self.source_attention, self.target_attention):
            glorot(parameter, generator)
        if self.shape.edge_features:
            glorot(self.edge_attention, generator)

    def prepare(self, inputs: StageInput) -> GatInput:
        """Stack the rows and add an edge from each inner node to itself."""
        return self.edges_of(inputs, compact_rows(stacked_rows(inputs), inputs.dtype))

    def edges_of(self, inputs: StageInput, rows: Rows) -> GatInput:
        """Join the stage's edges to (N + B, D) rows, with one from each inner node to itself."""
        inputs, scales = _attended(inputs)
        nodes, attributes = inputs.num_nodes, inputs.edge_attributes
        if not self.shape.edge_features:
            attributes = None
        indptr, indices = inputs.indptr, inputs.indices.astype(np.int64)
        if self.attends_itself:
            own = inputs.indptr[1:]
            indptr = inputs.indptr + np.arange(nodes + 1)
            indices = np.insert(indices, own, np.arange(nodes))
            scales = None if scales is None else np.insert(scales, own, 1)
            if attributes is not None:
                means = _means(inputs.indptr, attributes)
                attributes = np.insert(attributes, own, means, axis=0)
        return GatInput(
            rows=rows,
            hashes=np.concatenate([inputs.own_hashes, inputs.slot_hashes]),
            indptr=indptr,
            indices=indices,
            scales=scales,
            attributes=attributes,
            dtype=inputs.dtype,
        )

    def trained_batches(
        self, inputs: StageInput, rows: np.ndarray
    ) -> Callable[[torch.Tensor], object]:
        """Prepare the edges once."""
        slots = inputs.num_nodes + len(inputs.slot_hashes)
        # Rows without columns: what is selected of them is replaced in every round.
        edges = self.edges_of(inputs, torch.empty((slots, 0), dtype=inputs.dtype))
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
        indptr, edges = edge_numbers(rows, prepared.indptr)
        sources = prepared.indices[edges]
        # A node's own row is one of them: of its edge to itself, or for what it attends by.
        used = np.unique(np.concatenate((sources, rows)))
        columns = np.searchsorted(used, sources)
        heads = self.shape.heads
        bag_columns = (columns[:, None] * heads + np.arange(heads)).reshape(-1)
        scales = attributes = None
        if prepared.scales is not None:
            scales = torch.from_numpy(prepared.scales[edges]).to(prepared.dtype)[:, None]
        if prepared.attributes is not None:
            attributes = torch.from_numpy(prepared.attributes[edges]).to(prepared.dtype)
        return used, GatBatch(
            rows=select_rows(prepared.rows, used, prepared.dtype),
            hashes=prepared.hashes[used],
            edges=SparsePattern.from_csr(indptr, columns, len(used)),
            bags=SparsePattern.from_csr(indptr * heads, bag_columns, len(used) * heads),
            targets=torch.from_numpy(np.searchsorted(used, rows)),
            scales=scales,
            attributes=attributes,
            leads_out=self.leads_out,
        )

    def forward(self, batch: object, dropout: KeyedDropout | None) -> torch.Tensor:
        """Return the (R, H) rows of the batch's targets."""
        assert isinstance(batch, GatBatch)
        values = self.values_of(batch, dropout)
        # One product for all heads and both ends: a fourth of what sums over each head cost.
        scores = values.flatten(1) @ self._score_weight()
        heads = self.shape.heads
        ends = scores[:, :heads], scores[:, heads:].index_select(0, batch.targets)
        return self.summed(batch, values, ends, dropout)

    def values_of(self, batch: GatBatch, dropout: KeyedDropout | None) -> torch.Tensor:
        """Return ``x W`` of the sources by head: (S, heads, H)."""
        heads, width = self.shape.heads, self.shape.outputs
        return linear(batch.rows, batch.hashes, self.weight, dropout).view(-1, heads, width)

    def summed(
        self,
        batch: GatBatch,
        values: torch.Tensor,
        ends: tuple[torch.Tensor, torch.Tensor],
        dropout: KeyedDropout | None,
    ) -> torch.Tensor:
        """Return the (R, H) sums over heads and edges.

        Args:
            batch: Edges.
            values: (S, heads, H) of the sources.
            ends: What sources and targets add to the logits: (S, heads) and (R, heads).
            dropout: Of the attention.
        """
        attention = self._attention(batch, *ends)
        if dropout is not None:
            attention = batch.dropped(attention, dropout)
        table = values.reshape(-1, self.shape.outputs)
        summed = sparse_product(batch.bags, attention.reshape(-1), table)
        return summed / self.shape.heads

    def _attention(
        self, batch: GatBatch, source_part: torch.Tensor, target_part: torch.Tensor
    ) -> torch.Tensor:
        """Return the (E, heads) softmax over each target's edges."""
        ends = spread_columns(batch.edges, source_part) + spread_rows(batch.edges, target_part)
        if batch.attributes is not None:
            ends = ends + batch.attributes @ self.edge_attention
        logits = F.leaky_relu(ends, _NEGATIVE_SLOPE)
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
        ends = (self.source_attention, self.target_attention)
        return torch.cat([self.block_of_heads(end) for end in ends], dim=1)

    def block_of_heads(self, attention: torch.Tensor) -> torch.Tensor:
        """Return (K, H) vectors as a (K H, K) matrix, whose column k reads head k."""
        heads, width = self.shape.heads, self.shape.outputs
        own_head = torch.eye(heads, dtype=attention.dtype, device=attention.device)[:, None, :]
        return (attention[:, :, None] * own_head).view(heads * width, heads)


class GatLayer(GatAttention):
    r"""``h_u = b + 1/K sum_k sum_v a_uvk x_v W_k`` over v in N(u) and u itself.

    ``a_uv = softmax_v leaky_relu(x_v W_k s_k + x_u W_k t_k)``, K heads. Heads are averaged, so a
    hidden state is ``hidden / heads`` wide: the shape of RETEXO's GAT. Attention is trained, so
    messages are passed in every round; the rows they need still cross the network once per stage.
    Dropout acts on the input rows and on the attention.

    What an edge weighs is a factor of its attention before that is divided: ``w_uv exp(...)`` over
    the sum of these; a node itself weighs 1. Sampled neighbours count in the same way,
    times their scales. That is a self-normalised estimate of the attention over all neighbours:
    consistent, exact where none is left out, with a bias that falls with their number.

    With attributes e of edges, ``e_uv Q_k`` is added to what the leaky ReLU gets. That of a node
    itself is the mean over its edges. This is PyG's ``GATConv`` with ``edge_dim``; Q holds what it
    has as a product of two parameters.

    Shapes: x (N + B, D), e (E, A), W (D, K H), s and t (K, H), Q (A, K), b (H,), result (R, H).

    Source: Velickovic et al., ICLR 2018, equations 3 and 6.
    """

    def __init__(self, shape: LayerShape) -> None:
        super().__init__(shape)
        self.bias = torch.nn.Parameter(torch.empty(shape.outputs))

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Draw W, s, t and Q by Glorot's rule; b is zero."""
        super().reset_parameters(generator)
        torch.nn.init.zeros_(self.bias)

    def forward(self, batch: object, dropout: KeyedDropout | None) -> torch.Tensor:
        """Return the (R, H) rows of the batch's targets."""
        return super().forward(batch, dropout) + self.bias


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
    attributes = inputs.edge_attributes
    left = replace(
        inputs,
        indptr=np.concatenate(([0], np.cumsum(kept)))[inputs.indptr],
        indices=inputs.indices[kept],
        edge_attributes=None if attributes is None else attributes[kept],
    )
    return left, factors[kept]


def _means(indptr: np.ndarray, attributes: np.ndarray) -> np.ndarray:
    """Return the (N, A) float64 means of (E, A) attributes over the edges into each node."""
    counts = np.diff(indptr)
    rows = np.repeat(np.arange(len(counts)), counts)
    sums = np.zeros((len(counts), attributes.shape[1]))
    np.add.at(sums, rows, attributes)
    return sums / np.maximum(counts, 1)[:, None]
