"""Sparse kernels: a constant sparse matrix times a dense one, and sums over segments.

One kernel carries them all, ``embedding_bag``: an order of magnitude faster than ``index_add`` on
a CPU, equal in its bits for any number of threads, and there on every device. Gradients
use the same kernel on a transpose that is computed once, where PyTorch's own sparse product would
transpose again in every step.

Shapes: R rows, C columns, Z stored entries, D width of the dense operand.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse import csr_array

from retexo_fl.transfers import onto

#: Entries whose products are formed at once in :func:`_entry_products`: both operands of 32 columns
#: stay in the cache (0.5 MiB), which halves the time of whole-array passes.
_ENTRIES_PER_CHUNK = 2**11
#: The same on other devices than a CPU, where a start costs more than a pass over memory.
_ENTRIES_PER_DEVICE_CHUNK = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Transpose:
    """The transpose of an (R, C) pattern with Z entries.

    Attributes:
        indptr: (C + 1,): entries of column c are ``indptr[c]:indptr[c + 1]`` of the transpose.
        order: (Z,): the transpose's z-th entry is entry ``order[z]``.
        rows: (Z,) row of each entry of the transpose.
    """

    indptr: torch.Tensor
    order: torch.Tensor
    rows: torch.Tensor

    def to(self, device: torch.device) -> Self:
        """Return it on a device."""
        return type(self)(
            indptr=onto(self.indptr, device),
            order=onto(self.order, device),
            rows=onto(self.rows, device),
        )


@dataclass(frozen=True, kw_only=True)
class SparsePattern:
    """Where the entries of an (R, C) sparse matrix are, by row and by column.

    Attributes:
        indptr: (R + 1,): entries ``indptr[r]:indptr[r + 1]`` belong to row r.
        columns: (Z,) column of each entry.
        num_columns: C.
        at_hand: The transpose, where it is known.

    Tensors are int32, or int64 where R, C or Z is beyond it: half the bytes to read, the same sums.
    What only gradients read is made when one is first asked for.
    """

    indptr: torch.Tensor
    columns: torch.Tensor
    num_columns: int
    at_hand: Transpose | None = None

    @classmethod
    def from_csr(cls, indptr: np.ndarray, columns: np.ndarray, num_columns: int) -> Self:
        """Build the pattern.

        Args:
            indptr: (R + 1,) integers.
            columns: (Z,) integers below ``num_columns``.
            num_columns: C.
        """
        small = max(len(columns), len(indptr), num_columns) <= np.iinfo(np.int32).max
        dtype = np.int32 if small else np.int64
        tensors = [_as_tensor(item, dtype) for item in (indptr, columns)]
        return cls(indptr=tensors[0], columns=tensors[1], num_columns=num_columns)

    @cached_property
    def rows(self) -> torch.Tensor:
        """(Z,) row of each entry."""
        numbers = torch.arange(
            self.indptr.numel() - 1, dtype=self.indptr.dtype, device=self.indptr.device
        )
        return numbers.repeat_interleave(self.indptr.diff(), output_size=self.columns.numel())

    @cached_property
    def transposed(self) -> Transpose:
        """The transpose; made once, on the CPU."""
        if self.at_hand is not None:
            return self.at_hand
        indptr, columns = self.indptr.numpy(), self.columns.numpy()
        # One pass that counts instead of sorting; entries of a column keep the order of their rows.
        numbered = csr_array(
            (np.arange(len(columns), dtype=columns.dtype), columns, indptr),
            shape=(len(indptr) - 1, self.num_columns),
        ).tocsc()
        arrays = (numbered.indptr, numbered.data, numbered.indices)
        tensors = [_as_tensor(item, columns.dtype) for item in arrays]
        return Transpose(indptr=tensors[0], order=tensors[1], rows=tensors[2])

    def to(self, device: torch.device) -> Self:
        """Return the pattern on a device, with its transpose; itself where it is there."""
        if self.indptr.device == device:
            return self
        return type(self)(
            indptr=onto(self.indptr, device),
            columns=onto(self.columns, device),
            num_columns=self.num_columns,
            at_hand=self.transposed.to(device),
        )


def _as_tensor(values: np.ndarray, dtype: npt.DTypeLike) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=dtype))


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseRows:
    """A constant (R, C) sparse matrix whose products with dense weights can be differentiated.

    Attributes:
        pattern: Where the entries are.
        values: (Z,) the entries.
    """

    pattern: SparsePattern
    values: torch.Tensor

    @classmethod
    def from_scipy(cls, matrix: csr_array, dtype: torch.dtype) -> Self:
        """Take over a SciPy CSR matrix."""
        pattern = SparsePattern.from_csr(matrix.indptr, matrix.indices, matrix.shape[1])
        values = torch.from_numpy(np.array(matrix.data, copy=True)).to(dtype)
        return cls(pattern=pattern, values=values)

    def to(self, device: torch.device) -> Self:
        """Return the matrix on a device."""
        return type(self)(pattern=self.pattern.to(device), values=onto(self.values, device))

    def dense(self) -> torch.Tensor:
        """Return it as a dense tensor."""
        pattern = self.pattern
        result = self.values.new_zeros(len(pattern.indptr) - 1, pattern.num_columns)
        result[pattern.rows.long(), pattern.columns.long()] = self.values
        return result


def sparse_product(
    pattern: SparsePattern, values: torch.Tensor, dense: torch.Tensor
) -> torch.Tensor:
    """Multiply a sparse matrix by a dense one; gradients flow to ``values`` and ``dense``.

    Args:
        pattern: (R, C) with Z entries.
        values: (Z,) entries, dtype of ``dense``.
        dense: (C, D) float32 or float64.

    Returns:
        (R, D).
    """
    return _apply(_SparseProduct, pattern, values, dense)


def segment_sum(pattern: SparsePattern, entries: torch.Tensor) -> torch.Tensor:
    """Sum (Z, D) entries over each row of the pattern: (R, D)."""
    return _apply(_SegmentSum, pattern, entries)


def spread_rows(pattern: SparsePattern, per_row: torch.Tensor) -> torch.Tensor:
    """Give each entry the value of its row: (R, D) to (Z, D)."""
    return _apply(_SpreadRows, pattern, per_row)


def spread_columns(pattern: SparsePattern, per_column: torch.Tensor) -> torch.Tensor:
    """Give each entry the value of its column: (C, D) to (Z, D)."""
    return _apply(_SpreadColumns, pattern, per_column)


def row_sums(
    table: torch.Tensor,
    indices: torch.Tensor,
    indptr: torch.Tensor,
    weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """Sum weighted rows ``table[indices]`` within the segments of ``indptr``; no gradient.

    Args:
        table: (C, D) float32 or float64.
        indices: (Z,) rows of the table, int32 or int64.
        indptr: (R + 1,), dtype of ``indices``.
        weights: (Z,), dtype of ``table``; None for ones.

    Returns:
        (R, D); zero where a segment is empty.
    """
    if indices.numel() == 0:
        return table.new_zeros((indptr.numel() - 1, table.shape[1]))
    result: torch.Tensor = torch.embedding_bag(
        table.contiguous(), indices, indptr, False, 0, False, weights, True
    )[0]
    return result


def _apply(function: type[torch.autograd.Function], *arguments: object) -> torch.Tensor:
    result = function.apply(*arguments)  # type: ignore[no-untyped-call]
    assert isinstance(result, torch.Tensor)
    return result


def _entry_products(
    pattern: SparsePattern, per_row: torch.Tensor, per_column: torch.Tensor
) -> torch.Tensor:
    """Return the inner product of row and column vector for each entry: (Z,)."""
    products = per_row.new_empty(pattern.rows.numel())
    on_cpu = per_row.device.type == "cpu"
    size = _ENTRIES_PER_CHUNK if on_cpu else _ENTRIES_PER_DEVICE_CHUNK
    for start in range(0, products.numel(), size):
        part = slice(start, start + size)
        left = per_row.index_select(0, pattern.rows[part])
        right = per_column.index_select(0, pattern.columns[part])
        torch.sum(left.mul_(right), dim=1, out=products[part])
    return products


class _SparseProduct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, pattern: SparsePattern, values: torch.Tensor, dense: torch.Tensor
    ) -> torch.Tensor:
        ctx.pattern = pattern
        ctx.save_for_backward(values, dense)
        return row_sums(dense, pattern.columns, pattern.indptr, values)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[None, torch.Tensor | None, torch.Tensor | None]:
        values, dense = ctx.saved_tensors
        pattern: SparsePattern = ctx.pattern
        grad_values = grad_dense = None
        if ctx.needs_input_grad[1]:
            grad_values = _entry_products(pattern, grads[0], dense)
        if ctx.needs_input_grad[2]:
            across = pattern.transposed
            by_column = values.index_select(0, across.order)
            grad_dense = row_sums(grads[0], across.rows, across.indptr, by_column)
        return None, grad_values, grad_dense


class _SegmentSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pattern: SparsePattern, entries: torch.Tensor) -> torch.Tensor:
        ctx.pattern = pattern
        order = torch.arange(
            entries.shape[0], dtype=pattern.indptr.dtype, device=pattern.indptr.device
        )
        return row_sums(entries, order, pattern.indptr)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[None, torch.Tensor]:
        return None, grads[0].index_select(0, ctx.pattern.rows)


class _SpreadRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pattern: SparsePattern, per_row: torch.Tensor) -> torch.Tensor:
        ctx.pattern = pattern
        return per_row.index_select(0, pattern.rows)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[None, torch.Tensor]:
        pattern: SparsePattern = ctx.pattern
        order = torch.arange(
            grads[0].shape[0], dtype=pattern.indptr.dtype, device=pattern.indptr.device
        )
        return None, row_sums(grads[0], order, pattern.indptr)


class _SpreadColumns(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pattern: SparsePattern, per_column: torch.Tensor) -> torch.Tensor:
        ctx.pattern = pattern
        return per_column.index_select(0, pattern.columns)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[None, torch.Tensor]:
        pattern: SparsePattern = ctx.pattern
        return None, row_sums(grads[0], pattern.transposed.order, pattern.transposed.indptr)
