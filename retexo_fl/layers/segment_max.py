"""Largest entry of each column over segments of rows, with the gradient to one winner.

``torch.segment_reduce`` and ``torch.scatter_reduce`` want a row gathered for every entry, (Z, D)
values, and look at all of them again for the gradient. PyTorch's sparse product with maxima in
place of sums reads the table where it is and tells the winners; the gradient then touches R D
values. (Its own gradient sorts the entries in every step, which is why there is one here.)

Shapes: S rows of the table, R segments, Z entries, D width.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Segments:
    """Which rows of a table belong to each segment.

    Attributes:
        matrix: (R, S) sparse CSR matrix with a one for each entry, on the CPU.
        members: (Z + 1,) row of the table that each entry stands for, then S for no entry.
        filled: (R, 1), dtype of the table: 1 where a segment has an entry, else 0.
    """

    matrix: torch.Tensor
    members: np.ndarray
    filled: torch.Tensor

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


def segment_max(segments: Segments, table: torch.Tensor) -> torch.Tensor:
    """Take the maximum of each column over the members of each segment.

    The kernel is one for CPUs: a table on another device is copied, with its gradient.

    Among equal values the first member of the segment wins, and it alone gets the gradient.

    Args:
        segments: R segments with Z entries.
        table: (S, D) float32 or float64.

    Returns:
        (R, D); zero where a segment is empty.
    """
    result = _SegmentMax.apply(segments, table.cpu())  # type: ignore[no-untyped-call]
    assert isinstance(result, torch.Tensor)
    return result.to(table.device)


class _SegmentMax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, segments: Segments, table: torch.Tensor) -> torch.Tensor:
        table = table.contiguous()
        if not ctx.needs_input_grad[1]:
            # Without winners the kernel is vectorised: four times as fast.
            maxima: torch.Tensor = torch.sparse.mm(segments.matrix, table, "amax")
            return maxima
        with torch.enable_grad():
            # The kernel tells winners, by entry, only for a table that asks for a gradient.
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
