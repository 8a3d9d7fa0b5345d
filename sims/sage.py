"""GraphSAGE with mean aggregation on sampled blocks and on whole graphs, in plain PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from retexo_fl.additions.devices.sampling.adjacency import Adjacency
from retexo_fl.additions.devices.sampling.sample import Block, Sample
from retexo_fl.layers.sparse import SparsePattern, Transpose, row_sums, sparse_product


class Sage(nn.Module):
    """``relu(x W + mean over neighbours of x W' + b)`` for each layer; the last has no relu.

    Source: Hamilton, Ying and Leskovec (2017), algorithm 2 with the mean of section 3.3.

    Args:
        widths: Of the input, of each layer's output, and the number of classes.
        dropout: Rate, before each layer but the first.
        seed: Of weights and dropout.
    """

    def __init__(self, widths: Sequence[int], *, dropout: float, seed: int) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(seed)
        self._dropout = dropout
        pairs = list(pairwise(widths))
        self.own = nn.ParameterList([self._matrix(*pair) for pair in pairs])
        self.neighbours = nn.ParameterList([self._matrix(*pair) for pair in pairs])
        self.biases = nn.ParameterList([nn.Parameter(torch.zeros(width)) for _, width in pairs])

    def forward(self, rows: torch.Tensor, sample: Sample) -> torch.Tensor:
        """Return (B, C) logits of a sample's roots from its (S, D) input rows."""
        for layer, block in enumerate(sample.blocks):
            if layer:
                rows = self._dropped(rows)
            sums = sparse_product(_pattern(block), _mean_weights(block), rows)
            rows = self._layer(layer, rows[: block.num_targets], sums)
        return rows[torch.from_numpy(sample.root_places)]

    @torch.no_grad()
    def on_graph(self, rows: torch.Tensor, adjacency: Adjacency) -> torch.Tensor:
        """Return (N, C) logits of all nodes from all neighbours, without dropout."""
        indptr = torch.from_numpy(adjacency.indptr.astype(np.int32))
        indices = torch.from_numpy(adjacency.indices)
        degrees = torch.from_numpy(np.maximum(adjacency.degrees, 1)).to(rows.dtype)[:, None]
        for layer in range(len(self.biases)):
            rows = self._layer(layer, rows, row_sums(rows, indices, indptr) / degrees)
        return rows

    def _layer(self, layer: int, own: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
        found = torch.addmm(self.biases[layer], own, self.own[layer])
        found = torch.addmm(found, mean, self.neighbours[layer])
        return found if layer == len(self.biases) - 1 else found.relu()

    def _matrix(self, inputs: int, outputs: int) -> nn.Parameter:
        matrix = torch.empty(inputs, outputs)
        nn.init.xavier_uniform_(matrix, generator=self._generator)
        return nn.Parameter(matrix)

    def _dropped(self, rows: torch.Tensor) -> torch.Tensor:
        kept = torch.rand(rows.shape, generator=self._generator) >= self._dropout
        return rows * kept / (1 - self._dropout)


def loss_of(logits: torch.Tensor, labels: np.ndarray) -> torch.Tensor:
    """Return the mean cross entropy of (B, C) logits."""
    return F.cross_entropy(logits, torch.from_numpy(labels))


def _mean_weights(block: Block) -> torch.Tensor:
    """Return the (E,) weights that make a block's sums means over all neighbours."""
    scales = np.ones(block.num_edges, np.float32) if block.scales is None else block.scales
    degrees = np.maximum(block.degrees, 1).astype(np.float32)
    return torch.from_numpy(scales / np.repeat(degrees, np.diff(block.indptr)))


def _pattern(block: Block) -> SparsePattern:
    rows = np.repeat(np.arange(block.num_targets, dtype=np.int32), np.diff(block.indptr))
    column_indptr, column_order = block.transposed()
    return SparsePattern(
        indptr=torch.from_numpy(block.indptr.astype(np.int32)),
        columns=torch.from_numpy(block.columns),
        num_columns=len(column_indptr) - 1,
        at_hand=Transpose(
            indptr=torch.from_numpy(column_indptr),
            order=torch.from_numpy(column_order),
            rows=torch.from_numpy(rows[column_order]),
        ),
    )
