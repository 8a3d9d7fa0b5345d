"""Layers whose aggregation is fixed: messages are passed once per stage, training is dense."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from scipy.sparse import csr_array, hstack

from retexo_fl.layers.base import (
    GraphLayer,
    RowBatch,
    Rows,
    StageInput,
    compact_rows,
    dense_rows,
    places_on,
    select_rows,
    stacked_rows,
)
from retexo_fl.layers.dropout import KeyedDropout
from retexo_fl.layers.sparse import SparseRows, sparse_product

#: Of own and received rows that are put together for a product; wider ones are multiplied by
#: columns, this many at least.
_MOST_STACKED_BYTES: Final = 2**28
_FEWEST_COLUMNS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregatedInput:
    """The (N, D') rows that a stage trains on, with the hash of each node."""

    rows: Rows
    hashes: np.ndarray
    dtype: torch.dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossedRows:
    """Rows that a layer reads of n nodes, own and peers', as they crossed.

    Attributes:
        rows: (n, D').
        hashes: (n,) uint64.
        kinds: (n,) types of the nodes; None where they have none.
        dtype: Of the arithmetic.
    """

    rows: Rows
    hashes: np.ndarray
    kinds: np.ndarray | None
    dtype: torch.dtype


class AggregatedLayer(GraphLayer):
    """A linear map of rows that were aggregated once; subclasses define how.

    Dropout acts after the aggregation: before it, one mask would be frozen for the whole stage.
    """

    weight: torch.nn.Parameter
    bias: torch.nn.Parameter

    @abstractmethod
    def aggregated(self, inputs: StageInput) -> Rows:
        """Return the (N, D') rows that enter the linear map."""

    def feature_sums(self, inputs: StageInput) -> Rows:
        """Return the (N, D) sums over neighbours of rows of which a basis may be."""
        rows = self.aggregated(inputs)
        return rows[:, rows.shape[1] - inputs.own.shape[1] :]

    def prepare(self, inputs: StageInput) -> AggregatedInput:
        """Pass the messages of this stage."""
        rows = compact_rows(self.aggregated(inputs), inputs.dtype)
        if inputs.centre is not None:
            rows = centred(dense_rows(rows, inputs.dtype), inputs.centre)
        return AggregatedInput(rows=rows, hashes=inputs.own_hashes, dtype=inputs.dtype)

    def batch(self, prepared: object, rows: np.ndarray) -> RowBatch:
        """Select inner nodes."""
        assert isinstance(prepared, AggregatedInput)
        selected = select_rows(prepared.rows, rows, prepared.dtype)
        return RowBatch(rows=selected, hashes=np.asarray(prepared.hashes[rows]))

    def crossing_rows(self, inputs: StageInput) -> Rows:
        """Return the (N, D') rows of :meth:`crossing_width` that peers need of inner nodes."""
        return self.prepare(inputs).rows

    def crossed_batch(self, crossed: CrossedRows, wanted: np.ndarray) -> object:
        """Return the batch of some of the nodes whose rows crossed, (R,) int64."""
        rows = select_rows(crossed.rows, wanted, crossed.dtype)
        return RowBatch(rows=rows, hashes=crossed.hashes[wanted])

    def forward(self, batch: object, dropout: KeyedDropout | None) -> torch.Tensor:
        """Return ``dropout(rows) W + b``."""
        assert isinstance(batch, RowBatch)
        return linear(batch.rows, batch.hashes, self.weight, dropout) + self.bias


def centred(rows: torch.Tensor, centre: np.ndarray) -> torch.Tensor:
    """Return (N, D') rows with a (D,) centre subtracted from each D of their columns."""
    repeated = np.tile(centre, rows.shape[1] // len(centre))
    return rows - torch.from_numpy(repeated).to(rows)


def linear(
    rows: torch.Tensor | SparseRows,
    hashes: np.ndarray,
    weight: torch.Tensor,
    dropout: KeyedDropout | None,
) -> torch.Tensor:
    """Multiply (R, D) rows, after dropout, by a (D, H) weight."""
    if isinstance(rows, SparseRows):
        values = rows.values if dropout is None else dropout.sparse(rows, hashes)
        return sparse_product(rows.pattern, values, weight)
    return (rows if dropout is None else dropout.dense(rows, hashes)) @ weight


def aggregate(operator: csr_array, inputs: StageInput) -> Rows:
    """Apply an (N, N + B) sparse operator to the stage's rows: (N, D), sparse if those are."""
    if isinstance(inputs.own, torch.Tensor) and isinstance(inputs.received, torch.Tensor):
        return _dense_product(operator, inputs.own, inputs.received)
    rows = stacked_rows(inputs)
    if isinstance(rows, torch.Tensor):
        return _product(_matrix(operator, rows), rows)
    values = operator.astype(rows.dtype)
    product = csr_array(values @ rows)
    product.sort_indices()
    return product


def _dense_product(operator: csr_array, own: torch.Tensor, received: torch.Tensor) -> torch.Tensor:
    """Multiply (N, D) own rows above (B, D) received ones, never all of them put together.

    A column's sums do not depend on what is beside it, so by columns the bits are the same.
    """
    matrix, width = _matrix(operator, own), own.shape[1]
    row_bytes = max(1, (len(own) + len(received)) * own.element_size())
    columns = max(_FEWEST_COLUMNS, _MOST_STACKED_BYTES // row_bytes // 16 * 16)
    if columns >= width:
        return _product(matrix, torch.cat([own, received]))
    result = own.new_empty((matrix.pattern.indptr.shape[0] - 1, width))
    for first in range(0, width, columns):
        some = slice(first, first + columns)
        result[:, some] = _product(matrix, torch.cat([own[:, some], received[:, some]]))
    return result


def _matrix(operator: csr_array, rows: torch.Tensor) -> SparseRows:
    return SparseRows.from_scipy(operator, rows.dtype).to(rows.device)


def _product(matrix: SparseRows, rows: torch.Tensor) -> torch.Tensor:
    return sparse_product(matrix.pattern, matrix.values, rows)


def trained_sums(
    operators: Sequence[csr_array], inputs: StageInput, rows: np.ndarray, *, with_own: bool
) -> Callable[[torch.Tensor], RowBatch]:
    """Return what makes the batch of some nodes from rows that are trained themselves.

    Args:
        operators: (N, N + B) weights of sums.
        inputs: Hashes and arithmetic of the layer.
        rows: (R,) int64 inner nodes.
        with_own: Put each node's own row before its sums.

    Returns:
        A function of the (N + B, D) own rows above received ones; its batch has R rows of width D
        for each operator, and D more with own rows.
    """
    everyone = np.array_equal(rows, np.arange(inputs.num_nodes))
    matrices = [
        SparseRows.from_scipy(operator if everyone else csr_array(operator[rows]), inputs.dtype).to(
            inputs.device
        )
        for operator in operators
    ]
    hashes = np.asarray(inputs.own_hashes[rows])
    places = places_on(rows, inputs.device)

    def batch(stacked: torch.Tensor) -> RowBatch:
        sums = [sparse_product(matrix.pattern, matrix.values, stacked) for matrix in matrices]
        if not with_own and len(sums) == 1:
            return RowBatch(rows=sums[0], hashes=hashes)
        # The gradient of a slice costs a third of that of a selection.
        own = stacked[: len(rows)] if everyone else stacked.index_select(0, places)
        return RowBatch(rows=torch.cat([own, *sums], dim=1), hashes=hashes)

    return batch


def channel_means(inputs: StageInput, channel: int) -> np.ndarray:
    """Return each edge's share, (E,), of what one of the channels side by side weighs at a node.

    Of sampled neighbours each is the scaled sum divided by the weight of all neighbours.
    """
    assert inputs.edge_weights is not None
    total = inputs.neighbours[:, channel]
    shares = np.divide(1.0, total, out=np.zeros(len(total)), where=total > 0)
    factors: np.ndarray = inputs.edge_weights[:, channel] * np.repeat(
        shares, np.diff(inputs.indptr)
    )
    return factors


def channel_operator(factors: np.ndarray, inputs: StageInput) -> csr_array:
    """Return the (N, N + B) weights of a sum, without the (E,) factors that are 0."""
    shape = (inputs.num_nodes, inputs.num_nodes + len(inputs.slot_hashes))
    operator = csr_array((factors, inputs.indices, inputs.indptr), shape=shape, copy=True)
    operator.eliminate_zeros()
    return operator


def scaled_edges(weights: np.ndarray, inputs: StageInput) -> np.ndarray:
    """Multiply (E,) weights of a sum by those of the edges and by the scales of sampled ones."""
    if inputs.edge_weights is not None:
        weights = weights * inputs.edge_weights
    return weights if inputs.edge_scales is None else weights * inputs.edge_scales


def beside_own(inputs: StageInput, *aggregates: Rows) -> Rows:
    """Join own rows and their A aggregates, each (N, D): (N, (1 + A) D), sparse if all are."""
    parts = [inputs.own, *aggregates]
    if any(isinstance(part, torch.Tensor) for part in parts):
        return torch.cat([dense_rows(part, inputs.dtype) for part in parts], dim=1)
    return csr_array(hstack(parts, format="csr"))
