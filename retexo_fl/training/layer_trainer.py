"""Training of one stage on one client: pure functions of the stage's input and the weights.

Source: RETEXO (Kolluri et al.), section 3.1; one full-batch gradient per round.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from retexo_fl.errors import TrainingDiverged
from retexo_fl.layers.base import StageInput
from retexo_fl.layers.dropout import KeyedDropout
from retexo_fl.training.stage_model import FlatParameters, ModelShape, StageModel

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
        self._prepared = self._model.layer.prepare(inputs)
        self._nodes = nodes
        self._batches: dict[str, list[_LabelledBatch]] = {}

    @property
    def num_weights(self) -> int:
        """P."""
        return self._flat.values.numel()

    def update(self, weights: np.ndarray, *, round_number: int, dropout: float) -> LayerUpdate:
        """Validate the incoming weights, then return the gradient sum over the train nodes.

        Args:
            weights: (P,) of the model's dtype.
            round_number: From 1.
            dropout: Rate in [0, 1).

        Raises:
            TrainingDiverged: A loss or a gradient is not finite.
        """
        validation = self.evaluate(weights, "validation")
        keyed = KeyedDropout(
            rate=dropout, seed=self._seed, stage=self._stage, round=round_number, step=0
        )
        loss_sum, gradient_sum = self._train_sums(keyed)
        if not (np.isfinite(loss_sum) and _all_finite(gradient_sum)):
            raise TrainingDiverged(
                f"stage {self._stage}, round {round_number}: the training loss is {loss_sum} and "
                "its gradient is not finite; lower learning-rate or check the features"
            )
        train = Tally(count=len(self._nodes.train), loss_sum=loss_sum)
        return LayerUpdate(gradient_sum=gradient_sum, train=train, validation=validation)

    def _train_sums(self, dropout: KeyedDropout) -> tuple[float, np.ndarray]:
        """Return the summed loss over the train nodes and its (P,) gradient."""
        parameters = list(self._model.parameters())
        loss_sum, gradient_sum = 0.0, None
        for batch in self._labelled("train"):
            logits = self._model.classify(batch.rows, dropout)
            loss = F.cross_entropy(logits, batch.labels, reduction="sum")
            # Not backward(): it would add to a zeroed buffer, two more passes over P values.
            parts = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
            flat = torch.cat([part.reshape(-1) for part in parts])
            gradient_sum = flat if gradient_sum is None else gradient_sum.add_(flat)
            loss_sum += float(loss.detach())
        if gradient_sum is None:
            gradient_sum = torch.zeros_like(self._flat.values)
        return loss_sum, gradient_sum.numpy()

    @torch.no_grad()
    def evaluate(self, weights: np.ndarray, which: str) -> Tally:
        """Count over the ``train``, ``validation`` or ``test`` nodes, without dropout."""
        self._flat.load(weights)
        loss_sum, correct = 0.0, 0
        for batch in self._labelled(which):
            logits = self._model.classify(batch.rows, None)
            loss_sum += float(F.cross_entropy(logits, batch.labels, reduction="sum"))
            correct += int((logits.argmax(dim=1) == batch.labels).sum())
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
        self._flat.load(weights)
        parts = [
            compute(self._model.layer.batch(self._prepared, rows))
            for rows in _chunks(np.arange(self._num_nodes))
        ]
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


def _all_finite(values: np.ndarray) -> bool:
    # A finite sum has finite terms, and is a third of the cost; large terms may overflow it.
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(values.sum()) or np.isfinite(values).all())


def _chunks(rows: np.ndarray) -> list[np.ndarray]:
    return [rows[start : start + ROWS_PER_BATCH] for start in range(0, len(rows), ROWS_PER_BATCH)]
