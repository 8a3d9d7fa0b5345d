"""Training of one stage on one client: pure functions of the stage's input and the weights.

Source: RETEXO (Kolluri et al.), section 3.1; one full-batch gradient per round; McMahan et al.,
AISTATS 2017, for several local steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Final

import numpy as np
import torch

from retexo_fl.layers.aggregate import AggregatedInput
from retexo_fl.layers.base import StageInput
from retexo_fl.layers.dropout import KeyedDropout
from retexo_fl.training.divergence import finite_gradient
from retexo_fl.training.linear_step import LinearBatch, PassSums, all_finite, is_linear
from retexo_fl.training.losses import check_loss, cross_entropy
from retexo_fl.training.recipe import Recipe
from retexo_fl.training.stage_model import FlatParameters, ModelShape, StageModel, borrowed
from retexo_fl.training.tally import LayerUpdate, Tally, tally

#: Rows computed at once. Fixed, since a product over other rows differs in its last bits; 8,192
#: rows of 256 float32 values are 8 MiB, about a core's share of cache. Chosen; not tuned.
ROWS_PER_BATCH = 8192

_PLAIN: Final = Recipe()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSets:
    """Inner nodes of one client by use, each (n,) int64, ascending; labels (N,) int64."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class _LabelledBatch:
    rows: object
    labels: torch.Tensor


class LayerTrainer:
    """Holds what is fixed in a stage: the aggregated input and its batches."""

    def __init__(
        self,
        shape: ModelShape,
        stage: int,
        inputs: StageInput,
        nodes: NodeSets,
        *,
        seed: int,
        recipe: Recipe = _PLAIN,
    ) -> None:
        self._stage = stage
        self._seed = seed
        self._recipe = recipe
        self._num_nodes = inputs.num_nodes
        self._model = StageModel(shape, stage)
        self._flat = FlatParameters(self._model)
        self._flat.release()
        self._prepared = self._model.layer.prepare(inputs)
        self._nodes = nodes
        self._batches: dict[str, list[_LabelledBatch]] = {}
        self._is_linear = is_linear(self._model) and recipe.loss is cross_entropy
        self._loss_checked = recipe.loss is cross_entropy
        self._linear: dict[bool, list[LinearBatch]] = {}

    @property
    def num_weights(self) -> int:
        """P."""
        return self._flat.size

    def update(self, weights: np.ndarray, *, round_number: int, dropout: float) -> LayerUpdate:
        """Validate the incoming weights, then train from them.

        Args:
            weights: (P,) of the model's dtype.
            round_number: From 1.
            dropout: Rate in [0, 1).

        Raises:
            TrainingDiverged: A loss or a gradient is not finite.
        """
        keyed = KeyedDropout(
            rate=dropout, seed=self._seed, stage=self._stage, round=round_number, step=0
        )
        # The written-out step validates on its way; it counts nothing but accuracy.
        in_one_pass = self._is_linear and self._recipe.metric is None
        sums = self._sums(weights, keyed, validate=in_one_pass)
        return LayerUpdate(
            update_sum=self._update_sum(weights, sums, keyed),
            train=Tally(count=len(self._nodes.train), loss_sum=sums.train_loss),
            validation=self._validated(sums)
            if in_one_pass
            else self.evaluate(weights, "validation"),
        )

    def _update_sum(self, weights: np.ndarray, sums: PassSums, dropout: KeyedDropout) -> np.ndarray:
        """Return the update; ``sums`` are those of the first step."""
        if sums.gradient_sum is None:
            return np.zeros(self.num_weights, dtype=weights.dtype)
        local, count = self._recipe.local, len(self._nodes.train)
        if local.count == 1:
            return self._checked(sums, dropout)
        optimizer = local.begin(weights)
        for step in range(local.count):
            keyed = replace(dropout, step=step)
            if step:
                sums = self._sums(optimizer.weights, keyed, validate=False)
            optimizer.step(self._checked(sums, keyed) / count)
        change: np.ndarray = (optimizer.weights - weights) * count
        return change

    def _checked(self, sums: PassSums, place: KeyedDropout) -> np.ndarray:
        return finite_gradient(sums, place, local_steps=self._recipe.local.count)

    def _sums(self, weights: np.ndarray, dropout: KeyedDropout, *, validate: bool) -> PassSums:
        """Return the gradient at ``weights`` and, on the way, validation where asked."""
        total = PassSums()
        if self._is_linear:
            flat = borrowed(weights).numpy()
            for linear in self._linear_batches(validate=validate):
                total.add(linear.sums(flat, dropout))
            return total
        assert not validate
        self._flat.bind(weights)
        for batch in self._labelled("train"):
            total.add(self._differentiated(batch, dropout))
        self._flat.release()
        return total

    def _linear_batches(self, *, validate: bool) -> list[LinearBatch]:
        if validate not in self._linear:
            assert isinstance(self._prepared, AggregatedInput)
            none = np.zeros(0, dtype=np.int64)
            validation = _chunks(self._nodes.validation) if validate else []
            pairs = zip_longest(_chunks(self._nodes.train), validation, fillvalue=none)
            self._linear[validate] = [
                LinearBatch(
                    self._model,
                    self._prepared,
                    self._flat.shapes,
                    train=trained,
                    validation=validated,
                    labels=self._nodes.labels,
                )
                for trained, validated in pairs
            ]
        return self._linear[validate]

    def _differentiated(self, batch: _LabelledBatch, dropout: KeyedDropout) -> PassSums:
        """Return the sums of one batch of any layer and loss, by automatic differentiation."""
        parameters = list(self._model.parameters())
        logits = self._model.classify(batch.rows, dropout)
        if not self._loss_checked:
            check_loss(self._recipe.loss, logits, batch.labels)
            self._loss_checked = True
        loss = self._recipe.loss(logits, batch.labels)
        # Not backward(): it would add to a zeroed buffer, two more passes over P values.
        parts = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        flat = torch.cat([part.reshape(-1) for part in parts]).numpy()
        return PassSums(
            gradient_sum=flat, is_finite=all_finite(flat), train_loss=float(loss.detach())
        )

    def _validated(self, sums: PassSums) -> Tally:
        return Tally(
            count=len(self._nodes.validation),
            loss_sum=sums.validation_loss,
            correct=sums.validation_correct,
        )

    @torch.no_grad()
    def evaluate(self, weights: np.ndarray, which: str) -> Tally:
        """Count over the ``train``, ``validation`` or ``test`` nodes, without dropout."""
        self._flat.bind(weights)
        total = Tally()
        for batch in self._labelled(which):
            total += tally(self._model.classify(batch.rows, None), batch.labels, self._recipe)
        self._flat.release()
        return total

    def embed(self, weights: np.ndarray) -> torch.Tensor:
        """Return the (N, H) rows of all inner nodes for the next stage."""
        return self._all_rows(weights, self._model.embed)

    def logits(self, weights: np.ndarray) -> torch.Tensor:
        """Return the (N, C) logits of all inner nodes."""
        return self._all_rows(weights, lambda batch: self._model.classify(batch, None))

    @torch.no_grad()
    def _all_rows(
        self, weights: np.ndarray, compute: Callable[[object], torch.Tensor]
    ) -> torch.Tensor:
        self._flat.bind(weights)
        parts = [
            compute(self._model.layer.batch(self._prepared, rows))
            for rows in _chunks(np.arange(self._num_nodes))
        ]
        self._flat.release()
        return torch.cat(parts)

    def _node_set(self, which: str) -> np.ndarray:
        nodes: np.ndarray = getattr(self._nodes, which)
        return nodes

    def _labelled(self, which: str) -> list[_LabelledBatch]:
        if which not in self._batches:
            self._batches[which] = [
                _LabelledBatch(
                    rows=self._model.layer.batch(self._prepared, rows),
                    labels=torch.from_numpy(np.asarray(self._nodes.labels[rows], np.int64)),
                )
                for rows in _chunks(self._node_set(which))
            ]
        return self._batches[which]


def _chunks(rows: np.ndarray) -> list[np.ndarray]:
    return [rows[start : start + ROWS_PER_BATCH] for start in range(0, len(rows), ROWS_PER_BATCH)]
