"""Largest entry of each column over segments of rows, with the gradient to one winner.

``torch.segment_reduce`` and ``torch.scatter_reduce`` need a row gathered for every entry, (Z, D)
values, and look at all of them again for the gradient. PyTorch's sparse product with maxima in
place of sums reads the table where it is and returns the winners; the gradient then touches R D
values. (Its own gradient sorts the entries in every step, which is why there is one here.) That
kernel is one for CPUs; other devices gather, some columns at a time.

Shapes: S rows of the table, R segments, Z entries, D width.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import numpy as np
import torch

from retexo_fl.layers.sparse import SparsePattern, row_sums
from retexo_fl.transfers import onto

#: Entries times columns that are gathered at once on a device: 256 MiB of float32.
_GATHERED: Final = 2**26


@dataclass(frozen=True, slots=True, kw_only=True)
class Segments:
    """Which rows of a table belong to each segment.

    Attributes:
        matrix: (R, S) sparse CSR matrix with a one for each entry, on the CPU.
        members: (Z + 1,) row of the table of each entry, then S for no entry.
        filled: (R, 1), dtype of the table: 1 where a segment has an entry, else 0.
        pattern: (R, S) with the same entries, where the table is; None on a CPU.
    """

    matrix: torch.Tensor
    members: np.ndarray
    filled: torch.Tensor
    pattern: SparsePattern | None = None

    @classmethod
    def of(
        cls, indptr: np.ndarray, members: np.ndarray, *, num_rows: int, dtype: torch.dtype
    ) -> Self:
        """Take over segments.

        Args:
            indptr: (R + 1,): entries ``indptr[r]:indptr[r + 1]`` belong to segment r.
            members: (Z,) rows of the table, ascending within a segment.
            num_rows: S.
            dtype: Of the table: float32 or float64.
        """
        small = max(len(members), num_rows) <= np.iinfo(np.int32).max
        index = np.dtype(np.int32 if small else np.int64)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta", UserWarning)
            matrix = torch.sparse_csr_tensor(
                torch.from_numpy(np.ascontiguousarray(indptr, dtype=index)),
                torch.from_numpy(np.ascontiguousarray(members, dtype=index)),
                torch.ones(len(members), dtype=dtype),
                (len(indptr) - 1, num_rows),
                check_invariants=False,
            )
        return cls(
            matrix=matrix,
            members=np.append(members, num_rows).astype(index),
            filled=torch.from_numpy(np.diff(indptr) > 0)[:, None].to(dtype),
        )

    def on(self, device: torch.device) -> Self:
        """Return the segments of a table that is on a device; themselves where they are."""
        if device == self.filled.device:
            return self
        matrix = self.matrix
        indptr, members = matrix.crow_indices().numpy(), matrix.col_indices().numpy()
        return replace(
            self,
            filled=onto(self.filled, device),
            pattern=SparsePattern.from_csr(indptr, members, matrix.shape[1]).to(device),
        )


def segment_max(segments: Segments, table: torch.Tensor) -> torch.Tensor:
    """Take the maximum of each column over the members of each segment.

    Among equal values the first member of the segment wins, and it alone gets the gradient.

    Args:
        segments: R segments with Z entries.
        table: (S, D) float32 or float64.

    Returns:
        (R, D); zero where a segment is empty.
    """
    if table.device.type == "cpu":
        result = _SegmentMax.apply(segments, table)  # type: ignore[no-untyped-call]
    else:
        assert segments.pattern is not None, "segments are moved to where the table is"
        result = DeviceSegmentMax.apply(segments.pattern, table)  # type: ignore[no-untyped-call]
    assert isinstance(result, torch.Tensor)
    return result


class _SegmentMax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, segments: Segments, table: torch.Tensor) -> torch.Tensor:
        table = table.contiguous()
        if not ctx.needs_input_grad[1]:
            # Without winners the kernel is vectorised: four times as fast.
            maxima: torch.Tensor = torch.sparse.mm(segments.matrix, table, "amax")
            return maxima
        with torch.enable_grad():
            # The kernel returns winners, by entry, only for a table that requires a gradient.
            leaf = table.detach().requires_grad_()
            found, winners = torch.ops.aten._sparse_mm_reduce_impl(segments.matrix, leaf, "amax")
        assert isinstance(found, torch.Tensor)
        # Without any entry the kernel names no winner: entry Z, which is then the first of members.
        ctx.winners = winners.numpy() if winners.numel() else np.zeros(found.shape, np.intp)
        ctx.members, ctx.num_rows = segments.members, len(table)
        return found.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[None, torch.Tensor]:
        upstream: np.ndarray = grads[0].numpy()
        width = upstream.shape[1]
        # Where nothing won (no entry, or minus infinity) the kernel names entry Z, hence row S.
        gradient = np.zeros((ctx.num_rows + 1, width), dtype=upstream.dtype)
        places = ctx.members.take(ctx.winners).astype(np.intp)
        places *= width
        places += np.arange(width)
        # One flat index and one thread: the fastest of NumPy's and PyTorch's scatters, and always
        # in the same order.
        np.add.at(gradient.reshape(-1), places.reshape(-1), upstream.reshape(-1))
        return None, torch.from_numpy(gradient[:-1])


class DeviceSegmentMax(torch.autograd.Function):
    """What :func:`segment_max` does on any device, by operations that leave the same bits always.

    Maxima do not depend on the order in which they are taken, nor do least numbers of entries;
    gradients are added in the order of the segments.
    """

    @staticmethod
    def forward(ctx: Any, pattern: SparsePattern, table: torch.Tensor) -> torch.Tensor:
        """Take (R, D) maxima of an (S, D) table."""
        segments, entries = pattern.indptr.numel() - 1, pattern.rows.numel()
        maxima = table.new_zeros((segments, table.shape[1]))
        winners = torch.full(maxima.shape, entries, dtype=torch.int64, device=table.device)
        is_filled = (pattern.indptr[1:] > pattern.indptr[:-1])[:, None]
        for part in _columns(entries, table.shape[1]):
            found, winners[:, part] = _first_largest(pattern, table[:, part])
            maxima[:, part] = torch.where(is_filled, found, maxima[:, part])
        ctx.pattern = pattern
        ctx.save_for_backward(winners)
        return maxima

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[None, torch.Tensor]:
        """Give each winner the gradient of its maximum."""
        (winners,) = ctx.saved_tensors
        pattern: SparsePattern = ctx.pattern
        entries = pattern.rows.numel()
        numbers = torch.arange(entries, device=winners.device)[:, None]
        gradient = grads[0].new_zeros((pattern.num_columns, winners.shape[1]))
        for part in _columns(entries, winners.shape[1]):
            has_won = winners[:, part].index_select(0, pattern.rows) == numbers
            upstream = grads[0][:, part].index_select(0, pattern.rows).mul_(has_won)
            gradient[:, part] = row_sums(
                upstream, pattern.transposed.order, pattern.transposed.indptr
            )
        return None, gradient


def _first_largest(
    pattern: SparsePattern, table: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (R, D) maxima, and the first entry that has each; Z where there is none."""
    entries = pattern.rows.numel()
    shape = (pattern.indptr.numel() - 1, table.shape[1])
    values = table.index_select(0, pattern.columns)
    places = pattern.rows.to(torch.int64)[:, None].expand(values.shape)
    maxima = values.new_full(shape, -torch.inf).scatter_reduce_(0, places, values, "amax")
    is_largest = (values == maxima.index_select(0, pattern.rows)) & (values > -torch.inf)
    numbers = torch.arange(entries, device=table.device)[:, None]
    named = torch.where(is_largest, numbers, entries)
    first = torch.full(shape, entries, dtype=torch.int64, device=table.device)
    return maxima, first.scatter_reduce_(0, places, named, "amin")


def _columns(entries: int, width: int) -> list[slice]:
    size = max(1, _GATHERED // max(1, entries))
    return [slice(start, min(start + size, width)) for start in range(0, width, size)]
