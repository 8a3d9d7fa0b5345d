"""Products of a stage's fixed rows with a trained weight, and their gradients, written out.

What never changes in a stage is prepared once: the transpose, the keys of the dropout mask, the
validation rows' values. Weight and bias are read as one table of D + 1 rows; their gradient is
formed in the first rows of a table with spare ones behind it, in which the caller completes the
flat gradient of its stage without a copy.

Symbols: T train rows, R train and validation rows, D width of the rows, H width of the product, Z
stored entries.
"""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np
import torch
from scipy.sparse import csr_array, hstack

from retexo_fl.layers.base import Rows
from retexo_fl.layers.dropout import EntryKeys, KeyedDropout
from retexo_fl.layers.sparse import SparsePattern, row_sums

#: A gradient of fewer rows than a table has, divided by this, is formed by itself.
_FEW: Final = 4


class FixedRows(Protocol):
    """Train rows, which dropout acts on, above validation rows.

    Attributes:
        filled: Rows of the table's gradient, ascending, beside which it is zero, the bias among
            them; None for all.
    """

    filled: np.ndarray | None

    def product(self, table: torch.Tensor, dropout: KeyedDropout, *, out: torch.Tensor) -> None:
        """Write (R, H): the rows times the first D rows of ``table``, plus its last."""
        ...

    def gradient(self, upstream: torch.Tensor) -> torch.Tensor:
        """Return the table's gradient, for the mask of the last :meth:`product`.

        Args:
            upstream: (T, H) gradient of the train rows' product.

        Returns:
            (D + 1 + spare, H), the spare rows undefined.
        """
        ...


def fixed_rows(
    rows: Rows, hashes: np.ndarray, *, train: np.ndarray, others: np.ndarray, spare: int
) -> FixedRows:
    """Select rows of a stage's input.

    Args:
        rows: (N, D).
        hashes: (N,) uint64.
        train: (T,) train nodes.
        others: (R - T,) nodes that are only validated.
        spare: Rows wanted behind the gradient.
    """
    mine = np.asarray(hashes[train])
    if isinstance(rows, torch.Tensor):
        return _DenseFixedRows(_selected(rows, train), _selected(rows, others), mine, spare=spare)
    both = csr_array(rows[np.concatenate((train, others))])
    return _SparseFixedRows(both, mine, spare=spare)


class _DenseFixedRows:
    def __init__(
        self, train: torch.Tensor, others: torch.Tensor, hashes: np.ndarray, *, spare: int
    ) -> None:
        self._train, self._others, self._hashes, self._spare = train, others, hashes, spare
        self._dropped = train
        # By shape: Tensor's len() and indexing take longer than what a small client computes.
        self._count, self._width = train.shape
        self.filled: np.ndarray | None = None

    def product(self, table: torch.Tensor, dropout: KeyedDropout, *, out: torch.Tensor) -> None:
        """See :class:`FixedRows`."""
        self._dropped = dropout.dense(self._train, self._hashes)
        weight, bias = table[:-1], table[-1]
        torch.addmm(bias, self._dropped, weight, out=out[: self._count])
        torch.addmm(bias, self._others, weight, out=out[self._count :])

    def gradient(self, upstream: torch.Tensor) -> torch.Tensor:
        """See :class:`FixedRows`."""
        width = self._width
        table = upstream.new_empty((width + 1 + self._spare, upstream.shape[1]))
        torch.mm(self._dropped.t(), upstream, out=table[:width])
        torch.sum(upstream, dim=0, out=table[width])
        return table


class _SparseFixedRows:
    """The bias is one more column, whose entries are 1 and never dropped."""

    def __init__(self, rows: csr_array, train_hashes: np.ndarray, *, spare: int) -> None:
        count, width = len(train_hashes), rows.shape[1]
        ones = csr_array(np.ones((rows.shape[0], 1), dtype=rows.dtype))
        extended = csr_array(hstack([rows, ones], format="csr"))
        extended.sort_indices()
        train = csr_array(extended[:count])
        self._pattern = SparsePattern.from_csr(extended.indptr, extended.indices, width + 1)
        self._train = SparsePattern.from_csr(train.indptr, train.indices, width + 1)
        self._keys, self._hashes = EntryKeys.of(self._train), train_hashes
        self._values, self._train_values = extended.data.copy(), train.data.copy()
        self._bias_at = train.indptr[1:] - 1
        ends = self._train.transposed.indptr
        self._table_rows = len(ends) - 1 + spare
        filled = np.flatnonzero(np.diff(ends.numpy()))
        self.filled = filled if len(filled) < self._table_rows // _FEW else None
        if self.filled is None:
            self._column_indptr = torch.cat([ends, ends[-1:].expand(spare)])
        else:
            self._column_indptr = torch.cat([ends[filled], ends[-1:]])
        self._order = self._train.transposed.order.numpy()

    def product(self, table: torch.Tensor, dropout: KeyedDropout, *, out: torch.Tensor) -> None:
        """See :class:`FixedRows`."""
        values = self._values[: len(self._train_values)]
        if dropout.rate:
            dropout.fill_sparse(values, self._keys, self._hashes)
            values[self._bias_at] = 1
            values *= self._train_values
        else:
            values[:] = self._train_values
        pattern, weights = self._pattern, torch.from_numpy(self._values)
        out.copy_(row_sums(table, pattern.columns, pattern.indptr, weights))

    def gradient(self, upstream: torch.Tensor) -> torch.Tensor:
        """See :class:`FixedRows`."""
        by_column = torch.from_numpy(self._values[: len(self._train_values)].take(self._order))
        found = row_sums(upstream, self._train.transposed.rows, self._column_indptr, by_column)
        if self.filled is None:
            return found
        # Zeros that nobody reads take no memory: NumPy asks the system for a large array of them.
        table = np.zeros((self._table_rows, found.shape[1]), found.numpy().dtype)
        table[self.filled] = found.numpy()
        return torch.from_numpy(table)


def _selected(rows: torch.Tensor, wanted: np.ndarray) -> torch.Tensor:
    return rows.index_select(0, torch.from_numpy(np.ascontiguousarray(wanted, np.int64)))
