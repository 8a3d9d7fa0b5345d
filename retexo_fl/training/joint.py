"""The last two layers of a model, trained together after each was trained by itself.

Before the last stage peers are sent what the layer before reads (:meth:`.ModelShape
.crosses_as_inputs`). A client then has that of its own nodes and of all boundary nodes, and can
compute both layers: the gradient of its train nodes' loss reaches the first one's weights through
its peers' nodes, too. So a round is one of end-to-end training, in which nothing crosses but
weights and updates.

Symbols: N inner nodes, B slots, D' width of what the first of the two layers reads, H of what it
makes, R nodes of one use, C classes, P weights of both layers, those of the first before those of
the last.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np
import torch

from retexo_fl.layers.aggregate import AggregatedLayer, CrossedRows
from retexo_fl.layers.base import StageInput, compact_rows, stacked_rows
from retexo_fl.layers.dropout import KeyedDropout
from retexo_fl.training.judging import label_tensor
from retexo_fl.training.layer_trainer import NodeSets, StageTrainer
from retexo_fl.training.losses import check_loss, cross_entropy
from retexo_fl.training.recipe import Recipe
from retexo_fl.training.stage_model import FlatParameters, ModelShape, StageModel
from retexo_fl.training.stage_pass import differentiated
from retexo_fl.training.tally import PassSums, Tally, tally
from retexo_fl.transfers import borrowed

#: What a refined model is called in logs and results, beside what else a stage is trained as.
REFINED: Final = "both layers"


class JointTrainer(StageTrainer):
    """Holds what is fixed: what the first of two layers reads, and edges for the second.

    Args:
        shape: Of a model that :attr:`~.ModelShape.refines`.
        crossed: What crossed before the last stage: (N, D') own rows and (B, D') peers'.
        nodes: The client's labelled nodes.
        seed: Of the training.
        recipe: Loss, metric and local steps.
    """

    def __init__(
        self,
        shape: ModelShape,
        crossed: StageInput,
        nodes: NodeSets,
        *,
        seed: int,
        recipe: Recipe,
    ) -> None:
        assert shape.refinement is not None
        super().__init__(shape.refinement, seed=seed, recipe=recipe)
        last = shape.layers - 1
        self._first, self._last = StageModel(shape, last - 1), StageModel(shape, last)
        self._flat = FlatParameters(torch.nn.ModuleList([self._first, self._last]))
        self._flat.release()
        self.num_weights = self._flat.size
        layer = self._first.layer
        assert isinstance(layer, AggregatedLayer)
        read = CrossedRows(
            rows=compact_rows(stacked_rows(crossed), crossed.dtype),
            hashes=np.concatenate([crossed.own_hashes, crossed.slot_hashes]),
            kinds=crossed.kinds,
            dtype=crossed.dtype,
        )
        self._read = layer.crossed_batch(read, np.arange(len(read.hashes)))
        nothing = torch.empty(0, dtype=crossed.dtype)
        self._edges = replace(crossed, own=nothing, received=nothing)
        self._nodes = nodes
        self._makers: dict[str, Callable[[torch.Tensor], object]] = {}
        self._loss_checked = recipe.loss is cross_entropy

    @torch.no_grad()
    def evaluate(self, weights: np.ndarray, which: str) -> Tally:
        """See :class:`.StageTrainer`."""
        if not len(self._nodes.by_use[which]):
            return Tally()
        self._flat.bind_tensor(borrowed(weights))
        found = self._judged(self._first.embed(self._read), which)
        self._flat.release()
        return found

    def _begun(self, weights: np.ndarray, place: KeyedDropout) -> PassSums:
        """See :class:`.StageTrainer`: without dropout the same rows are judged."""
        if place.rate:
            return super()._begun(weights, place)
        return self._passed(weights, place, validates=True)

    def _sums(self, weights: np.ndarray, place: KeyedDropout) -> PassSums:
        """See :class:`.StageTrainer`."""
        return self._passed(weights, place, validates=False)

    def _passed(self, weights: np.ndarray, place: KeyedDropout, *, validates: bool) -> PassSums:
        """Return the gradient at (P,) weights, and maybe their validation."""
        sums = PassSums()
        self._flat.bind_tensor(borrowed(weights))
        rows = self._first.embed(self._read, place)
        if count := len(self._nodes.train):
            sums = self._differentiated(rows, place, count)
        if validates:
            with torch.no_grad():
                sums.validation = self._judged(rows.detach(), "validation")
        self._flat.release()
        return sums

    def _differentiated(self, rows: torch.Tensor, place: KeyedDropout, count: int) -> PassSums:
        """Return the gradient of train nodes by the (N + B, H) rows of the first layer."""
        labels = self._labels("train")
        # Of the layer behind, dropout of its own.
        behind = replace(place, stage=place.stage + 1)
        logits = self._last.classify(self._batch(rows, "train"), behind)
        if not self._loss_checked:
            check_loss(self._recipe.loss, logits, labels)
            self._loss_checked = True
        # The head of the first layer has no part in it.
        parameters = [*self._first.parameters(), *self._last.parameters()]
        return differentiated(logits, labels, self._recipe, parameters, count=count)

    def _judged(self, rows: torch.Tensor, which: str) -> Tally:
        logits = self._last.classify(self._batch(rows, which), None)
        of_types = self._nodes.types_of(self._nodes.by_use[which])
        return tally(logits, self._labels(which), self._recipe, which, of_types=of_types)

    def _batch(self, rows: torch.Tensor, which: str) -> object:
        """Return the last layer's batch of nodes of a use by (N + B, H) rows of the first."""
        if which not in self._makers:
            nodes = self._nodes.by_use[which]
            self._makers[which] = self._last.layer.trained_batches(self._edges, nodes)
        return self._makers[which](rows)

    def _labels(self, which: str) -> torch.Tensor:
        return label_tensor(self._nodes.labels[self._nodes.by_use[which]])
