"""The graph convolution of Kipf and Welling."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal

import numpy as np
import torch
from scipy.sparse import csr_array

from retexo_fl.layers.aggregate import AggregatedLayer, aggregate, scaled_edges, trained_sums
from retexo_fl.layers.base import LayerShape, Rows, StageInput, glorot


class GcnLayer(AggregatedLayer):
    r"""``h_u = b + sum_v (d_u + 1)^(-1/2) w_uv (d_v + 1)^(-1/2) x_v W`` over v in N(u) and u.

    An edge weighs w, a node itself 1; a node's degree d is what its edges weigh together. Degrees
    are those of the whole graph, so the layer computes the same function however the graph
    is split. RETEXO's code takes the degrees of each client's training subgraph and leaves out the
    self term; its function depends on the partition.

    Shapes: x (N + B, D), W (D, H), b (H,), result (R, H).

    Source: Kipf and Welling, ICLR 2017, equation 2; RETEXO, section 3.1.
    """

    sums_messages: ClassVar[bool] = True
    scales_edges: ClassVar[bool] = True
    takes_weights: ClassVar[Literal["positive"]] = "positive"

    def __init__(self, shape: LayerShape) -> None:
        super().__init__(shape)
        self.weight = torch.nn.Parameter(torch.empty(shape.inputs, shape.outputs))
        self.bias = torch.nn.Parameter(torch.empty(shape.outputs))

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Draw W by Glorot's rule; b is zero."""
        glorot(self.weight, generator)
        torch.nn.init.zeros_(self.bias)

    def start_as(self, weight: torch.Tensor, bias: torch.Tensor) -> bool:
        """W is the head's, b its bias."""
        with torch.no_grad():
            self.weight.copy_(weight)
            self.bias.copy_(bias)
        return True

    @staticmethod
    def message_scale(degrees: np.ndarray) -> np.ndarray:
        """Return ``(d + 1)^(-1/2)``."""
        return np.asarray(1.0 / np.sqrt(degrees + 1.0))

    @classmethod
    def fixed_width(cls, inputs: int) -> int:
        """Return D."""
        return inputs

    def aggregated(self, inputs: StageInput) -> Rows:
        """Return the (N, D) normalised sums."""
        return aggregate(self.operator(inputs), inputs)

    def trained_batches(
        self, inputs: StageInput, rows: np.ndarray
    ) -> Callable[[torch.Tensor], object]:
        """Prepare the sums' weights once."""
        return trained_sums([self.operator(inputs)], inputs, rows, with_own=False)

    @classmethod
    def operator(cls, inputs: StageInput) -> csr_array:
        """Return the (N, N + B) weights of the sums; received rows bring their own factor."""
        scale = cls.message_scale(inputs.degrees)
        column_scale = np.concatenate([scale, np.ones(len(inputs.slot_hashes))])
        targets = np.repeat(np.arange(inputs.num_nodes), np.diff(inputs.indptr))
        weights = scaled_edges(scale[targets] * column_scale[inputs.indices], inputs)
        width = inputs.num_nodes + len(inputs.slot_hashes)
        neighbours = csr_array(
            (weights, inputs.indices, inputs.indptr), shape=(inputs.num_nodes, width)
        )
        nodes = np.arange(inputs.num_nodes + 1)
        itself = csr_array((scale**2, nodes[:-1], nodes), shape=neighbours.shape)
        return csr_array(neighbours + itself)
