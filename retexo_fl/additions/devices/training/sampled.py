"""All layers of a model over a sample of the graph: the gradient of some roots, on any device.

What a root's loss reads does not depend on the other roots of its sample, and losses are summed: so
the gradients of the shares of a mini-batch, cut in any way, add up to that of the whole.

Symbols: K layers, B roots, S source and R target rows of a block, E its edges, D width of the input
rows, P parameters of all layers.

Source: Hamilton, Ying and Leskovec, NeurIPS 2017, algorithm 2 (mini-batches of sampled neighbours);
Zeng et al. (shaDow-GNN), NeurIPS 2021, section 3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch

from retexo_fl.additions.devices.sampling.adjacency import Adjacency
from retexo_fl.additions.devices.sampling.edge_places import edge_places
from retexo_fl.additions.devices.sampling.sample import Block, Sample
from retexo_fl.graph.neighbours import EdgeValues, weighted_degrees
from retexo_fl.layers.base import GraphLayer, StageInput
from retexo_fl.layers.dropout import KeyedDropout
from retexo_fl.training.judging import count_right, label_tensor
from retexo_fl.training.losses import Loss, check_loss, cross_entropy
from retexo_fl.training.stage_model import FlatParameters, ModelShape, StageModel
from retexo_fl.transfers import onto

#: Makes a layer's batch from the rows that it reads.
_MakeBatch = Callable[[torch.Tensor], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledBatch:
    """What a pass over a sample needs beside the weights.

    Attributes:
        rows: (S, D) input rows, on the model's device.
        labels: Of the B roots, as :mod:`.judging` has them, there too.
        makers: What makes the batch of each layer from its input rows.
    """

    rows: torch.Tensor
    labels: torch.Tensor
    makers: tuple[_MakeBatch, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledSums:
    """What a pass over a sample adds up.

    Attributes:
        gradient_sum: (P,) of the roots' summed loss, on the model's device.
        loss_sum: Of the roots, with dropout.
        correct: How many roots were classified rightly, with dropout.
        count: B.
    """

    gradient_sum: torch.Tensor
    loss_sum: float
    correct: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledEdges:
    """What a graph's edges weigh and carry, found for the edges of a sample.

    Attributes:
        adjacency: The graph.
        values: Of its edges.
        degrees: (N,) or (N, 2), what the edges of each node weigh together.
    """

    adjacency: Adjacency
    values: EdgeValues
    degrees: np.ndarray

    @classmethod
    def of(cls, adjacency: Adjacency, values: EdgeValues) -> Self | None:
        """Add the weights up; None where all edges are alike."""
        if values.is_plain:
            return None
        degrees = weighted_degrees(adjacency.indptr, values)
        return cls(adjacency=adjacency, values=values, degrees=degrees)

    def valued(
        self, inputs: StageInput, block: Block, targets: np.ndarray, sources: np.ndarray
    ) -> tuple[StageInput, np.ndarray]:
        """Return a layer's input with its edges' values, and the degrees of the S sources.

        Args:
            inputs: Of the block, whose edges are all alike.
            block: The edges.
            targets: (R,) ids of its targets.
            sources: (S,) ids of its sources.
        """
        found = self.values.taken(edge_places(self.adjacency, block, targets, sources))
        # Without scales all neighbours are there: in the graph, or in the subgraph that counts.
        degrees = (
            weighted_degrees(block.indptr, found) if block.scales is None else self.degrees[targets]
        )
        of_sources = np.concatenate([degrees, self.degrees[sources[block.num_targets :]]])
        valued = replace(
            inputs,
            edge_weights=found.weights,
            edge_attributes=found.attributes,
            neighbours=degrees,
            degrees=degrees,
        )
        return valued, of_sources


class SampledModel:
    """The layers of a model without heads between them, on one device."""

    def __init__(
        self,
        shape: ModelShape,
        *,
        hashes: np.ndarray,
        labels: np.ndarray,
        loss: Loss = cross_entropy,
        device: torch.device | None = None,
        edges: SampledEdges | None = None,
    ) -> None:
        """Make the layers, without values.

        Args:
            shape: Of the model.
            hashes: (N,) uint64, keyed randomness of all nodes.
            labels: Of all N nodes, as stored.
            loss: Summed over roots.
            device: Where to compute; the CPU if None.
            edges: What the graph's edges weigh and carry; None where all are alike.
        """
        self._edges = edges
        self._device = torch.device("cpu") if device is None else device
        self._hashes, self._labels, self._loss = hashes, labels, loss
        self._dtype = getattr(torch, shape.dtype)
        self._stages = [StageModel(shape, m) for m in range(shape.layers)]
        self._flat = FlatParameters(torch.nn.ModuleList(self._stages).to(self._device))
        self._flat.release()
        self._loss_checked = loss is cross_entropy

    @property
    def num_weights(self) -> int:
        """P."""
        return self._flat.size

    def prepare(self, sample: Sample, rows: torch.Tensor) -> SampledBatch:
        """Do what is the same for all weights.

        Args:
            sample: With K blocks.
            rows: (S, D) rows of ``sample.nodes``, on the model's device.
        """
        makers: list[_MakeBatch] = []
        nodes, degrees = sample.nodes, sample.input_degrees
        for m, block in enumerate(sample.blocks):
            is_last = m == len(sample.blocks) - 1
            layer = self._stages[m].layer
            if m and not is_last and layer.scales_edges and block is sample.blocks[m - 1]:
                # All layers of a ShaDow sample have one square block.
                makers.append(makers[-1])
                continue
            targets = sample.root_places if is_last else np.arange(block.num_targets)
            inputs = self._stage_input(block, self._hashes[nodes])
            if self._edges is not None:
                reached = sample.layer_nodes[m]
                inputs, degrees = self._edges.valued(inputs, block, reached, nodes)
            makers.append(_maker(layer, inputs, degrees, targets))
            nodes, degrees = sample.layer_nodes[m], block.degrees
        labels = onto(label_tensor(self._labels[sample.roots]), self._device)
        return SampledBatch(rows=rows, labels=labels, makers=tuple(makers))

    def sums(
        self, weights: torch.Tensor, batch: SampledBatch, dropout: KeyedDropout
    ) -> SampledSums:
        """Return loss and gradient at (P,) ``weights``, which lie on the model's device.

        Args:
            weights: Layer after layer.
            batch: From :meth:`prepare`.
            dropout: Of this step; its stage is replaced by each layer's number.
        """
        if not len(batch.labels):
            nothing = torch.zeros_like(weights)
            return SampledSums(gradient_sum=nothing, loss_sum=0.0, correct=0, count=0)
        gradient, loss, correct = self.differentiated(weights, batch, dropout)
        return SampledSums(
            gradient_sum=gradient,
            loss_sum=float(loss),
            correct=int(correct),
            count=len(batch.labels),
        )

    def differentiated(
        self, weights: torch.Tensor, batch: SampledBatch, dropout: KeyedDropout
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return what :meth:`sums` does of at least one root, where the device has it.

        Returns:
            The (P,) gradient, the loss and how many roots were classified rightly, both scalars.
        """
        self._flat.bind_tensor(weights)
        logits = self._logits(batch, dropout)
        if not self._loss_checked:
            check_loss(self._loss, logits, batch.labels)
            self._loss_checked = True
        loss = self._loss(logits, batch.labels)
        parameters = [item for stage in self._stages for item in stage.parameters()]
        parts = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        self._flat.release()
        correct = count_right(logits.detach(), batch.labels)
        return torch.cat([part.reshape(-1) for part in parts]), loss.detach(), correct

    def _logits(self, batch: SampledBatch, dropout: KeyedDropout) -> torch.Tensor:
        """Return the (B, C) logits of the roots."""
        rows = batch.rows
        for m, (stage, make) in enumerate(zip(self._stages, batch.makers, strict=True)):
            keyed = replace(dropout, stage=m)
            made = make(rows)
            rows = stage.classify(made, keyed) if stage.is_last else stage.embed(made, keyed)
        return rows

    def _stage_input(self, block: Block, hashes: np.ndarray) -> StageInput:
        """Return what a layer reads of a block; sources that are no targets are its boundary."""
        nothing = torch.empty(0, dtype=self._dtype, device=self._device)
        return StageInput(
            own=nothing,
            received=nothing,
            indptr=block.indptr,
            indices=block.columns,
            neighbours=block.degrees,
            degrees=block.degrees,
            own_hashes=hashes[: block.num_targets],
            slot_hashes=hashes[block.num_targets :],
            edge_scales=block.scales,
        )


def _maker(
    layer: GraphLayer, inputs: StageInput, degrees: np.ndarray, targets: np.ndarray
) -> _MakeBatch:
    """Return what makes a layer's batch; slots' rows are scaled as their senders would.

    Args:
        layer: The layer.
        inputs: A block as its input.
        degrees: (S,) of the sources.
        targets: (B,) rows that are wanted.
    """
    scale, own = layer.message_scale(degrees), inputs.num_nodes
    if (beside := layer.message_factors(degrees)) is not None:
        inputs = replace(inputs, slot_factors=beside[own:])
    if scale is None or own == len(degrees):
        return layer.trained_batches(inputs, targets)
    factors = np.concatenate([np.ones(own), scale[own:]])
    if layer.sums_messages and layer.scales_edges:
        # A factor of a row is one of its edges where rows are summed: E numbers, not S rows.
        scales = factors[inputs.indices]
        if inputs.edge_scales is not None:
            scales *= inputs.edge_scales
        return layer.trained_batches(replace(inputs, edge_scales=scales), targets)
    of_rows = onto(torch.from_numpy(factors[:, None]).to(inputs.dtype), inputs.device)
    make = layer.trained_batches(inputs, targets)
    return lambda rows: make(rows * of_rows)
