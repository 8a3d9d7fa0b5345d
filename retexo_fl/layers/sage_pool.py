"""GraphSAGE with the maximum over pooled neighbours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

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
    device_of,
    edges_into,
    glorot,
    moved,
    places_on,
    select_rows,
    stacked_rows,
)
from retexo_fl.layers.dropout import KeyedDropout
from retexo_fl.layers.segment_max import Segments, segment_max
from retexo_fl.layers.sparse import SparseRows


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolInput:
    """The stage's rows and edges, sources numbered by their hashes.

    Attributes:
        rows: (N + B, D).
        hashes: (N + B,) uint64.
        by_hash: (N + B,) rows in the order of their hashes.
        indptr: (N + 1,): edges ``indptr[u]:indptr[u + 1]`` enter inner node u.
        ranks: (E,) place of each edge's source in ``by_hash``, ascending for each inner node.
        dtype: Arithmetic of the training.
    """

    rows: Rows
    hashes: np.ndarray
    by_hash: np.ndarray
    indptr: np.ndarray
    ranks: np.ndarray
    dtype: torch.dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedRows:
    """Some of the stage's rows: sparse ones as they are, dense ones picked when they are needed.

    A node is the source of many batches: copies for each would multiply a dense input.

    Attributes:
        table: All (N + B, D) dense rows, or the (S, D) sparse rows that were selected.
        places: (S,) int64, numbers of the selected rows in a dense table.
        hashes: (S,) uint64 of the selected rows.
    """

    table: torch.Tensor | SparseRows
    places: torch.Tensor
    hashes: np.ndarray

    def times(self, weight: torch.Tensor, dropout: KeyedDropout | None) -> torch.Tensor:
        """Multiply the rows, after dropout, by a (D, H) weight: (S, H)."""
        if isinstance(self.table, SparseRows):
            return linear(self.table, self.hashes, weight, dropout)
        return linear(self.table.index_select(0, self.places), self.hashes, weight, dropout)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolBatch:
    """R targets, the S sources of the edges into them, and each target's sources."""

    targets: SelectedRows
    sources: SelectedRows
    neighbours: Segments


class SagePoolLayer(GraphLayer):
    r"""``h_u = b + [x_u | max over v in N(u) of ReLU(x_v V + c)] W``.

    The maximum is taken column by column over the neighbours whose rows are there; it is zero for a
    node without neighbours. It runs over trained values, so messages are passed in every round; the
    rows they need still cross the network once per stage. A maximum over sampled neighbours is that
    of these: ``edge_scales`` are not read, since no factor makes it one over all.

    Bias and ReLU do not change an order, so both act behind the maximum, on fewer rows. Of
    neighbours with equal values the one with the least hash gets the gradient: it is the same one
    however the graph is split.

    Shapes: x (N + B, D), V (D, P), c (P,), W (D + P, H), b (H,), result (R, H); P is ``hidden``.

    Source: Hamilton, Ying and Leskovec, NeurIPS 2017, equation 3 and algorithm 1.
    """

    def __init__(self, shape: LayerShape) -> None:
        super().__init__(shape)
        self.pool_weight = torch.nn.Parameter(torch.empty(shape.inputs, shape.hidden))
        self.pool_bias = torch.nn.Parameter(torch.empty(shape.hidden))
        self.weight = torch.nn.Parameter(torch.empty(shape.inputs + shape.hidden, shape.outputs))
        self.bias = torch.nn.Parameter(torch.empty(shape.outputs))

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Draw V and W by Glorot's rule; c and b are zero."""
        glorot(self.pool_weight, generator)
        glorot(self.weight, generator)
        torch.nn.init.zeros_(self.pool_bias)
        torch.nn.init.zeros_(self.bias)

    def own_weights(self) -> Iterator[tuple[torch.Tensor, float]]:
        """Yield the upper part of W."""
        yield self.weight[: self.shape.inputs], 0.0

    def prepare(self, inputs: StageInput) -> PoolInput:
        """Stack the rows and put the edges into each node in the order of their sources' hashes."""
        hashes = np.concatenate([inputs.own_hashes, inputs.slot_hashes])
        by_hash = np.argsort(hashes, kind="stable")
        rank = np.empty_like(by_hash)
        rank[by_hash] = np.arange(len(hashes))
        targets = np.repeat(np.arange(inputs.num_nodes), np.diff(inputs.indptr))
        # One number for target and rank: NumPy sorts these many times faster than pairs.
        edges = np.sort(targets * len(hashes) + rank[inputs.indices])
        return PoolInput(
            rows=compact_rows(stacked_rows(inputs), inputs.dtype),
            hashes=hashes,
            by_hash=by_hash,
            indptr=inputs.indptr,
            ranks=edges - targets * len(hashes),
            dtype=inputs.dtype,
        )

    def batch(self, prepared: object, rows: np.ndarray) -> PoolBatch:
        """Select the edges into ``rows`` and number their sources from zero."""
        assert isinstance(prepared, PoolInput)
        indptr, used, members = edges_into(rows, prepared.indptr, prepared.ranks)
        segments = Segments.of(indptr, members, num_rows=len(used), dtype=prepared.dtype)
        return PoolBatch(
            targets=_selected(prepared, rows),
            sources=_selected(prepared, prepared.by_hash[used]),
            neighbours=moved(segments, device_of(prepared.rows)),
        )

    def forward(self, batch: object, dropout: KeyedDropout | None) -> torch.Tensor:
        """Return the (R, H) rows of the batch's targets."""
        assert isinstance(batch, PoolBatch)
        values = batch.sources.times(self.pool_weight, dropout)
        maxima = segment_max(batch.neighbours, values)
        pooled = F.relu(torch.addcmul(maxima, batch.neighbours.filled, self.pool_bias))
        own_weight, pooled_weight = torch.split(self.weight, [self.shape.inputs, self.shape.hidden])
        own = batch.targets.times(own_weight, dropout)
        return own + torch.addmm(self.bias, pooled, pooled_weight)


def _selected(prepared: PoolInput, nodes: np.ndarray) -> SelectedRows:
    rows = prepared.rows
    places = places_on(nodes, device_of(rows))
    table = rows if isinstance(rows, torch.Tensor) else select_rows(rows, nodes, prepared.dtype)
    return SelectedRows(table=table, places=places, hashes=prepared.hashes[nodes])
