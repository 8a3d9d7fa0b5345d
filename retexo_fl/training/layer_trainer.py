"""Training of one stage on one client: pure functions of the stage's input and the weights.

Source: RETEXO (Kolluri et al.), section 3.1; one full-batch gradient per round.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
import torch
import torch.nn.functional as F

from retexo_fl.errors import TrainingDiverged
from retexo_fl.layers.aggregate import AggregatedInput
from retexo_fl.layers.base import StageInput
from retexo_fl.layers.dropout import KeyedDropout
from retexo_fl.training.linear_step import LinearBatch, PassSums, all_finite, is_linear
from retexo_fl.training.stage_model import FlatParameters, ModelShape, StageModel, borrowed

#: Rows computed at once. Fixed, since a product over other rows differs in its last bits; 8,192
#: rows of 256 float32 values are 8 MiB, about a core's share of cache. Chosen; not tuned.
ROWS_PER_BATCH = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Counts and loss sums of one client over one set of nodes.

    Attributes:
        count: Labelled nodes of the set.
        loss_sum: Sum of their cross entropies, natural logarithm.
        correct: How many were classified rightly.
    """

    count: int = 0
    loss_sum: float = 0.0
    correct: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerUpdate:
    """What a client returns from a round.

    Attributes:
        gradient_sum: (P,) gradient of the summed loss over its train nodes; zeros without any.
        train: Over the train nodes, with dropout; ``correct`` is not counted.
        validation: Over the validation nodes, at the incoming weights, without dropout.
    """

    gradient_sum: np.ndarray
    train: Tally
    validation: Tally


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
        self, shape: ModelShape, stage: int, inputs: StageInput, nodes: NodeSets, *, seed: int
    ) -> None:
        self._stage = stage
        self._seed = seed
        self._num_nodes = inputs.num_nodes
        self._model = StageModel(shape, stage)
        self._flat = FlatParameters(self._model)
        self._flat.release()
        self._prepared = self._model.layer.prepare(inputs)
        self._nodes = nodes
        self._batches: dict[str, list[_LabelledBatch]] = {}
        self._linear: list[LinearBatch] | None = None

    @property
    def num_weights(self) -> int:
        """P."""
        return self._flat.size

    def update(self, weights: np.ndarray, *, round_number: int, dropout: float) -> LayerUpdate:
        """Validate the incoming weights, then return the gradient sum over the train nodes.

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
        sums = self._linear_sums(weights, keyed) or self._differentiated_sums(weights, keyed)
        gradient_sum = sums.gradient_sum
        if gradient_sum is None:
            gradient_sum = np.zeros(self.num_weights, dtype=weights.dtype)
        if not (sums.is_finite and np.isfinite(sums.train_loss)):
            raise TrainingDiverged(
                f"stage {self._stage}, round {round_number}: the training loss is "
                f"{sums.train_loss} and its gradient is not finite; lower learning-rate or check "
                "the features"
            )
        return LayerUpdate(
            gradient_sum=gradient_sum,
            train=Tally(count=len(self._nodes.train), loss_sum=sums.train_loss),
            validation=Tally(
                count=len(self._nodes.validation),
                loss_sum=sums.validation_loss,
                correct=sums.validation_correct,
            ),
        )

    def _linear_sums(self, weights: np.ndarray, dropout: KeyedDropout) -> PassSums | None:
        """Return the sums of the written-out step, or None for a layer that has none."""
        if not is_linear(self._model):
            return None
        if self._linear is None:
            self._linear = self._linear_batches()
        total = PassSums()
        flat = borrowed(weights).numpy()
        for batch in self._linear:
            total.add(batch.sums(flat, dropout))
        return total

    def _linear_batches(self) -> list[LinearBatch]:
        assert isinstance(self._prepared, AggregatedInput)
        train, validation = _chunks(self._nodes.train), _chunks(self._nodes.validation)
        none = np.zeros(0, dtype=np.int64)
        return [
            LinearBatch(
                self._model,
                self._prepared,
                self._flat.shapes,
                train=trained,
                validation=validated,
                labels=self._nodes.labels,
            )
            for trained, validated in zip_longest(train, validation, fillvalue=none)
        ]

    def _differentiated_sums(self, weights: np.ndarray, dropout: KeyedDropout) -> PassSums:
        """Return the sums of any layer, by automatic differentiation."""
        validation = self.evaluate(weights, "validation")
        sums = PassSums(validation_loss=validation.loss_sum, validation_correct=validation.correct)
        self._flat.bind(weights)
        parameters = list(self._model.parameters())
        for batch in self._labelled("train"):
            logits = self._model.classify(batch.rows, dropout)
            loss = F.cross_entropy(logits, batch.labels, reduction="sum")
            # Not backward(): it would add to a zeroed buffer, two more passes over P values.
            parts = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
            flat = torch.cat([part.reshape(-1) for part in parts]).numpy()
            sums.add(
                PassSums(
                    gradient_sum=flat, is_finite=all_finite(flat), train_loss=float(loss.detach())
                )
            )
        self._flat.release()
        return sums

    @torch.no_grad()
    def evaluate(self, weights: np.ndarray, which: str) -> Tally:
        """Count over the ``train``, ``validation`` or ``test`` nodes, without dropout."""
        self._flat.bind(weights)
        loss_sum, correct = 0.0, 0
        for batch in self._labelled(which):
            logits = self._model.classify(batch.rows, None)
            loss_sum += float(F.cross_entropy(logits, batch.labels, reduction="sum"))
            correct += int((logits.argmax(dim=1) == batch.labels).sum())
        self._flat.release()
        return Tally(count=len(self._node_set(which)), loss_sum=loss_sum, correct=correct)

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
