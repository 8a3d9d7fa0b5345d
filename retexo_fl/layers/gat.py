"""Graph attention with averaged heads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Final

import numpy as np
import torch
import torch.nn.functional as F

from retexo_fl.layers.aggregate import linear
from retexo_fl.layers.base import (
    GraphLayer,
    LayerShape,
    Rows,
    StageInput,
    compact_rows,
    edges_into,
    glorot,
    select_rows,
    stacked_rows,
)
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
    """The stage's rows and edges, each inner node with an edge to itself."""

    rows: Rows
    hashes: np.ndarray
    indptr: np.ndarray
    indices: np.ndarray
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
    """

    rows: torch.Tensor | SparseRows
    hashes: np.ndarray
    edges: SparsePattern
    bags: SparsePattern
    targets: torch.Tensor

    def edge_hashes(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the (E,) uint64 hashes of each edge's source and target."""
        target_hashes = self.hashes[self.targets.numpy()]
        return self.hashes[self.edges.columns.numpy()], target_hashes[self.edges.rows.numpy()]


class GatLayer(GraphLayer):
    r"""``h_u = b + 1/K sum_k sum_v a_uvk x_v W_k`` over v in N(u) and u itself.

    ``a_uv = softmax_v leaky_relu(x_v W_k s_k + x_u W_k t_k)``, K heads. Heads are averaged, so a
    hidden state is ``hidden / heads`` wide: the shape of RETEXO's GAT. Attention is trained, so
    messages are passed in every round; the rows they need still cross the network once per stage.
    Dropout acts on the input rows and on the attention.

    Shapes: x (N + B, D), W (D, K H), s and t (K, H), b (H,), result (R, H).

    Source: Velickovic et al., ICLR 2018, equations 3 and 6.
    """

    uses_heads: ClassVar[bool] = True

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
        indices = np.insert(inputs.indices.astype(np.int64), inputs.indptr[1:], np.arange(nodes))
        return GatInput(
            rows=rows,
            hashes=np.concatenate([inputs.own_hashes, inputs.slot_hashes]),
            indptr=inputs.indptr + np.arange(nodes + 1),
            indices=indices,
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
        places = None if len(used) == slots else torch.from_numpy(used)

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
        return used, GatBatch(
            rows=select_rows(prepared.rows, used, prepared.dtype),
            hashes=prepared.hashes[used],
            edges=SparsePattern.from_csr(indptr, columns, len(used)),
            bags=SparsePattern.from_csr(indptr * heads, bag_columns, len(used) * heads),
            targets=torch.from_numpy(np.searchsorted(used, rows)),
        )

    def forward(self, batch: object, dropout: KeyedDropout | None) -> torch.Tensor:
        """Return the (R, H) rows of the batch's targets."""
        assert isinstance(batch, GatBatch)
        heads, width = self.shape.heads, self.shape.outputs
        values = linear(batch.rows, batch.hashes, self.weight, dropout).view(-1, heads, width)
        attention = self._attention(batch, values)
        if dropout is not None:
            attention = dropout.attention(attention, *batch.edge_hashes())
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
        return powers / spread_rows(batch.edges, segment_sum(batch.edges, powers))

    def _score_weight(self) -> torch.Tensor:
        """Return s and t as a (K H, 2 K) matrix: column k reads head k, column K + k as well."""
        heads, width = self.shape.heads, self.shape.outputs
        own_head = torch.eye(heads, dtype=self.weight.dtype)[:, None, :]
        ends = (self.source_attention, self.target_attention)
        blocks = [(end[:, :, None] * own_head).view(heads * width, heads) for end in ends]
        return torch.cat(blocks, dim=1)
