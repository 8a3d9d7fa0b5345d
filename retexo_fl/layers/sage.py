"""GraphSAGE with the mean of all neighbours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar, Literal

import numpy as np
import torch
from scipy.sparse import csr_array

from retexo_fl.layers.aggregate import (
    AggregatedLayer,
    aggregate,
    beside_own,
    scaled_edges,
    trained_sums,
)
from retexo_fl.layers.base import LayerShape, Rows, StageInput, glorot


class SageLayer(AggregatedLayer):
    r"""``h_u = b + [x_u | mean of x_v over v in N(u)] W``.

    The mean runs over the neighbours whose rows are there; a node without neighbours has mean zero.
    Of weighted edges it is the weighted sum divided by the sum of the weights; of sampled
    neighbours the scaled sum divided by the number, or the weight, of all neighbours.

    Shapes: x (N + B, D), W (2 D, H), b (H,), result (R, H).

    Source: Hamilton, Ying and Leskovec, NeurIPS 2017, algorithm 1 (mean aggregator, concatenation).
    """

    sums_messages: ClassVar[bool] = True
    scales_edges: ClassVar[bool] = True
    takes_weights: ClassVar[Literal["positive"]] = "positive"

    def __init__(self, shape: LayerShape) -> None:
        super().__init__(shape)
        self.weight = torch.nn.Parameter(torch.empty(2 * shape.inputs, shape.outputs))
        self.bias = torch.nn.Parameter(torch.empty(shape.outputs))

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Draw W by Glorot's rule; b is zero."""
        glorot(self.weight, generator)
        torch.nn.init.zeros_(self.bias)

    def start_as(self, weight: torch.Tensor, bias: torch.Tensor) -> bool:
        """Apply the head to the mean of a node's own row and its neighbours' mean."""
        with torch.no_grad():
            self.weight.copy_(torch.cat([weight, weight]) / 2)
            self.bias.copy_(bias)
        return True

    def own_weights(self) -> Iterator[tuple[torch.Tensor, float]]:
        """Yield the upper half of W."""
        yield self.weight[: self.shape.inputs], 0.0

    def weights_beyond(self, first: int) -> Iterator[torch.Tensor]:
        """Yield rows of both halves of W."""
        for half in torch.split(self.weight, self.shape.inputs):
            yield half[first:]

    @classmethod
    def fixed_width(cls, inputs: int) -> int:
        """Return 2 D."""
        return 2 * inputs

    def aggregated(self, inputs: StageInput) -> Rows:
        """Return (N, 2 D): own rows beside the neighbours' mean."""
        return beside_own(inputs, aggregate(self.operator(inputs), inputs))

    def feature_sums(self, inputs: StageInput) -> Rows:
        """Return the (N, D) means."""
        return aggregate(self.operator(inputs), inputs)

    def trained_batches(
        self, inputs: StageInput, rows: np.ndarray
    ) -> Callable[[torch.Tensor], object]:
        """Prepare the sums' weights once."""
        return trained_sums([self.operator(inputs)], inputs, rows, with_own=True)

    @staticmethod
    def operator(inputs: StageInput) -> csr_array:
        """Return the (N, N + B) weights of the means."""
        total = inputs.neighbours
        shares = np.divide(1.0, total, out=np.zeros(len(total)), where=total > 0)
        weights = scaled_edges(np.repeat(shares, np.diff(inputs.indptr)), inputs)
        width = inputs.num_nodes + len(inputs.slot_hashes)
        return csr_array((weights, inputs.indices, inputs.indptr), shape=(inputs.num_nodes, width))
