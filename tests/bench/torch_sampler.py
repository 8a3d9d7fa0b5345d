"""Neighbour sampling in PyTorch alone, as fast as whole-tensor operations do it here.

It does what ``NeighbourSampler`` does: the same expansion, no replacement, blocks with the same
fields. Draws are Floyd's algorithm with one pass over all targets for each pick. Random keys for
all neighbours with the largest kept are the other vectorised way; they read whole rows, which took
several times as long on a graph with hubs. ``index_select`` and its kin take half the time of
indexing by brackets.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from retexo_fl.additions.devices.sampling import Adjacency

#: indptr, columns, scales.
TorchBlock = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class TorchSampler:
    """Uniform picks without replacement; keyed by nothing but PyTorch's generator."""

    def __init__(self, adjacency: Adjacency, fanouts: Sequence[int]) -> None:
        """Share the graph's arrays."""
        self._indptr = torch.from_numpy(adjacency.indptr)
        self._indices = torch.from_numpy(adjacency.indices)
        self._fanouts = tuple(fanouts)
        self._places = torch.full((adjacency.num_nodes,), -1, dtype=torch.int32)

    def sample(self, roots: torch.Tensor) -> tuple[torch.Tensor, list[TorchBlock]]:
        """Return the ids of the input rows and the blocks, input layer first."""
        nodes, blocks = roots, []
        self._places[roots] = torch.arange(len(roots), dtype=torch.int32)
        for fanout in self._fanouts:
            block, new = self._draw(nodes, fanout)
            nodes = torch.cat((nodes, new))
            blocks.append(block)
        self._places.index_fill_(0, nodes, -1)
        return nodes, blocks[::-1]

    def _draw(self, targets: torch.Tensor, fanout: int) -> tuple[TorchBlock, torch.Tensor]:
        starts = self._indptr.index_select(0, targets)
        degrees = self._indptr.index_select(0, targets + 1) - starts
        counts = degrees.clamp(max=fanout)
        indptr = torch.zeros(len(targets) + 1, dtype=torch.int64)
        torch.cumsum(counts, 0, out=indptr[1:])
        picks = torch.arange(fanout).expand(len(targets), -1).clone()
        many = torch.nonzero(degrees > fanout).squeeze(1)
        picks.index_copy_(0, many, _floyd(degrees.index_select(0, many), fanout))
        picks += starts[:, None]
        taken = torch.arange(fanout) < counts[:, None]
        picked = self._indices.index_select(0, picks.masked_select(taken))
        new = self._place(picked, len(targets))
        scales = (degrees / counts).float().repeat_interleave(counts)
        return (indptr, self._places.index_select(0, picked), scales), new

    def _place(self, picked: torch.Tensor, count: int) -> torch.Tensor:
        """Give a place to each picked node that has none, and return these."""
        new = picked.masked_select(self._places.index_select(0, picked) < 0).long()
        # Of equal nodes one writes last and is kept: no sort, which `unique` would need.
        order = torch.arange(len(new), dtype=torch.int32)
        self._places.index_copy_(0, new, order)
        new = new.masked_select(self._places.index_select(0, new) == order)
        places = torch.arange(count, count + len(new), dtype=torch.int32)
        self._places.index_copy_(0, new, places)
        return new


def _floyd(degrees: torch.Tensor, fanout: int) -> torch.Tensor:
    """Return (R, fanout) distinct numbers below each of (R,) degrees, which are larger."""
    chosen = torch.empty(fanout, len(degrees), dtype=torch.int64)
    for taken in range(fanout):
        last = degrees - fanout + taken
        drawn = (torch.rand(len(degrees), dtype=torch.float64) * (last + 1)).long()
        twice = (chosen[:taken] == drawn).any(0)
        torch.where(twice, last, drawn, out=chosen[taken])
    return chosen.t()
