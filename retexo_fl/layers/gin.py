"""The graph isomorphism network of Xu et al."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar, Final, Literal

import numpy as np
import torch
import torch.nn.functional as F
from scipy.sparse import csr_array

from retexo_fl.layers.aggregate import (
    AggregatedLayer,
    aggregate,
    beside_own,
    linear,
    scaled_edges,
    trained_sums,
)
from retexo_fl.layers.base import LayerShape, RowBatch, Rows, StageInput, glorot
from retexo_fl.layers.dropout import KeyedDropout
from retexo_fl.layers.sparse import SparseRows

#: Changes a node's hash, so that the mask of the rows inside the layer is not that of its input.
#: Any number serves.
_INNER_ROWS: Final = np.uint64(0x9C3A65F1D2B84E17)


class GinLayer(AggregatedLayer):
    r"""``h_u = b + ReLU(LayerNorm(c + ((1 + e) x_u + sum of x_v) V)) W`` over v in N(u).

    e is trained and starts at zero. The sum runs over the neighbours whose rows are there, each
    times what its edge weighs.

    In place of LayerNorm the paper has batch normalisation. Its statistics are those of the nodes
    that happen to be computed together: they would differ with the partition, reveal others'
    nodes, and cross the network in every step. LayerNorm reads one row; c keeps it from
    forgetting how large the sum was. Without either, logits grow with a node's degree and a few
    nodes rule the loss: that of the last stage began at 17.2 instead of 2.2 on a graph of 22,470
    pages with at most 709 neighbours.

    Dropout acts on the input of both maps: on ``[x_u | sum]``, after the aggregation, and on the
    rows between them, as in the paper.

    Shapes: x (N + B, D), e (1,), V (D, P), c (P,), W (P, H), b (H,), result (R, H); P is
    ``hidden``.

    Source: Xu, Hu, Leskovec and Jegelka, ICLR 2019, equation 4.1 and section 7.
    """

    sums_messages: ClassVar[bool] = True
    scales_edges: ClassVar[bool] = True
    takes_weights: ClassVar[Literal["any"]] = "any"

    def __init__(self, shape: LayerShape) -> None:
        super().__init__(shape)
        self.epsilon = torch.nn.Parameter(torch.empty(1))
        self.first_weight = torch.nn.Parameter(torch.empty(shape.inputs, shape.hidden))
        self.first_bias = torch.nn.Parameter(torch.empty(shape.hidden))
        self.norm = torch.nn.LayerNorm(shape.hidden)
        self.weight = torch.nn.Parameter(torch.empty(shape.hidden, shape.outputs))
        self.bias = torch.nn.Parameter(torch.empty(shape.outputs))

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Draw V and W by Glorot's rule; e, c and b are zero."""
        glorot(self.first_weight, generator)
        glorot(self.weight, generator)
        self.norm.reset_parameters()
        for parameter in (self.epsilon, self.first_bias, self.bias):
            torch.nn.init.zeros_(parameter)

    def own_weights(self) -> Iterator[tuple[torch.Tensor, float]]:
        """Yield e, which leaves the own row out at -1."""
        yield self.epsilon, -1.0

    @classmethod
    def fixed_width(cls, inputs: int) -> int:
        """Return 2 D."""
        return 2 * inputs

    def aggregated(self, inputs: StageInput) -> Rows:
        """Return (N, 2 D): own rows beside the neighbours' sum."""
        return beside_own(inputs, aggregate(self.operator(inputs), inputs))

    def trained_batches(
        self, inputs: StageInput, rows: np.ndarray
    ) -> Callable[[torch.Tensor], object]:
        """Prepare the sums' weights once."""
        return trained_sums([self.operator(inputs)], inputs, rows, with_own=True)

    @staticmethod
    def operator(inputs: StageInput) -> csr_array:
        """Return the (N, N + B) weights of the sums: ones, or the scales of sampled edges."""
        ones = scaled_edges(np.ones(len(inputs.indices)), inputs)
        width = inputs.num_nodes + len(inputs.slot_hashes)
        return csr_array((ones, inputs.indices, inputs.indptr), shape=(inputs.num_nodes, width))

    def forward(self, batch: object, dropout: KeyedDropout | None) -> torch.Tensor:
        """Return the (R, H) rows of the batch's nodes."""
        assert isinstance(batch, RowBatch)
        inner = F.relu(self.norm(self._combined(batch, dropout) + self.first_bias))
        inner = linear(inner, batch.hashes ^ _INNER_ROWS, self.weight, dropout)
        return inner + self.bias

    def _combined(self, batch: RowBatch, dropout: KeyedDropout | None) -> torch.Tensor:
        """Return the (R, P) rows ``((1 + e) x + sum) V``."""
        if isinstance(batch.rows, SparseRows):
            # The product is linear in the rows, so e may go to the weight: values that are trained
            # would cost an inner product for each entry, and the two halves have few entries.
            both = torch.cat([(1 + self.epsilon) * self.first_weight, self.first_weight])
            return linear(batch.rows, batch.hashes, both, dropout)
        rows = batch.rows if dropout is None else dropout.dense(batch.rows, batch.hashes)
        own, sums = torch.split(rows, self.shape.inputs, dim=1)
        return torch.addcmul(sums, own, 1 + self.epsilon) @ self.first_weight
