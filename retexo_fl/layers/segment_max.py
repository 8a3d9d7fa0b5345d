"""Largest entry of each column over segments of rows, with the gradient to one winner.

Gathering a row for every entry first, as ``torch.segment_reduce`` and ``torch.scatter_reduce``
want it, takes (Z, D) values; ``embedding_bag`` reads the table in place and tells the winners. The
gradient then touches R D values instead of Z D.

Shapes: S rows of the table, R segments, Z entries, D width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
import torch

#: ``embedding_bag``'s number for the maximum.
_MAX_MODE: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Segments:
    """Which rows of a table belong to each segment, in the order in which ties are resolved.

    Attributes:
        indptr: (R + 1,): entries ``indptr[r]:indptr[r + 1]`` belong to segment r.
        members: (Z,) row of the table that each entry stands for.
        filled: (R, 1) float64: 1 where a segment has an entry, else 0.
    """

    indptr: torch.Tensor
    members: torch.Tensor
    filled: torch.Tensor

    @classmethod
    def of(cls, indptr: np.ndarray, members: np.ndarray) -> Self:
        """Take over the (R + 1,) bounds and (Z,) members of segments."""
        largest = max(len(members), int(members.max(initial=0)))
        dtype = np.int32 if largest <= np.iinfo(np.int32).max else np.int64
        return cls(
            indptr=torch.from_numpy(np.ascontiguousarray(indptr, dtype=dtype)),
            members=torch.from_numpy(np.ascontiguousarray(members, dtype=dtype)),
            filled=torch.from_numpy((np.diff(indptr) > 0)[:, None].astype(np.float64)),
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
    result = _SegmentMax.apply(segments, table)  # type: ignore[no-untyped-call]
    assert isinstance(result, torch.Tensor)
    return result


class _SegmentMax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, segments: Segments, table: torch.Tensor) -> torch.Tensor:
        ctx.num_rows = len(table)
        if segments.members.numel() == 0:
            ctx.winners = None
            return table.new_zeros((len(segments.filled), table.shape[1]))
        result, _, _, winners = torch.embedding_bag(
            table.contiguous(),
            segments.members,
            segments.indptr,
            False,
            _MAX_MODE,
            False,
            None,
            True,
        )
        ctx.segments, ctx.winners = segments, winners
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[None, torch.Tensor]:
        upstream: torch.Tensor = grads[0]
        height, width = ctx.num_rows, upstream.shape[1]
        gradient = np.zeros(height * width, dtype=upstream.numpy().dtype)
        if ctx.winners is not None:
            filled = ctx.segments.filled.numpy()[:, 0] > 0
            places = ctx.winners.numpy()[filled].astype(np.intp)
            places *= width
            places += np.arange(width)
            # One flat index and one thread: the fastest of NumPy's and PyTorch's scatters, and
            # always in the same order.
            np.add.at(gradient, places.reshape(-1), upstream.numpy()[filled].reshape(-1))
        return None, torch.from_numpy(gradient.reshape(height, width))
