"""Training of one stage on one client: pure functions of the stage's input and the weights.

Source: RETEXO (Kolluri et al.), section 3.1; one full-batch gradient per round; McMahan et al.,
AISTATS 2017, for several local steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np
import torch

from retexo_fl.layers.base import StageInput
from retexo_fl.layers.dropout import KeyedDropout
from retexo_fl.training.divergence import finite_gradient
from retexo_fl.training.linear_step import PassSums
from retexo_fl.training.recipe import Recipe
from retexo_fl.training.stage_model import ModelShape, StageModel, borrowed
from retexo_fl.training.stage_pass import NodeSets, StageFacts, StagePass, chunks
from retexo_fl.training.tally import LayerUpdate, Tally

__all__ = ["LayerTrainer", "NodeSets"]

_PLAIN: Final = Recipe()


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
        model = StageModel(shape, stage)
        self._facts = StageFacts(model, model.layer.prepare(inputs), recipe)
        self._nodes = nodes
        self._pass = StagePass(self._facts, nodes)

    @property
    def num_weights(self) -> int:
        """P."""
        return self._facts.flat.size

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
        sums, validation = self._begun(weights, keyed)
        return LayerUpdate(
            update_sum=self._update_sum(weights, sums, keyed),
            train=Tally(count=len(self._nodes.train), loss_sum=sums.train_loss),
            validation=validation,
        )

    def evaluate(self, weights: np.ndarray, which: str) -> Tally:
        """Count over the ``train``, ``validation`` or ``test`` nodes, without dropout."""
        return self._pass.tally(borrowed(weights), which)

    def embed(self, weights: np.ndarray) -> torch.Tensor:
        """Return the (N, H) rows of all inner nodes for the next stage."""
        return self._all_rows(weights, self._facts.model.embed)

    def logits(self, weights: np.ndarray) -> torch.Tensor:
        """Return the (N, C) logits of all inner nodes."""
        return self._all_rows(weights, lambda batch: self._facts.model.classify(batch, None))

    def close(self) -> None:
        """Let go of what is held outside this process: nothing."""

    def _begun(self, weights: np.ndarray, dropout: KeyedDropout) -> tuple[PassSums, Tally]:
        """Return the gradient at the incoming weights, and their validation."""
        if not self._facts.in_one_pass:
            sums = self._sums(weights, dropout)
            return sums, self.evaluate(weights, "validation")
        sums = self._pass.sums(borrowed(weights), dropout, validate=True)
        return sums, Tally(
            count=len(self._nodes.validation),
            loss_sum=sums.validation_loss,
            correct=sums.validation_correct,
        )

    def _sums(self, weights: np.ndarray, dropout: KeyedDropout) -> PassSums:
        """Return the gradient at ``weights``."""
        return self._pass.sums(borrowed(weights), dropout, validate=False)

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
                sums = self._sums(optimizer.weights, keyed)
            optimizer.step(self._checked(sums, keyed) / count)
        change: np.ndarray = (optimizer.weights - weights) * count
        return change

    def _checked(self, sums: PassSums, place: KeyedDropout) -> np.ndarray:
        return finite_gradient(sums, place, local_steps=self._recipe.local.count)

    @torch.no_grad()
    def _all_rows(
        self, weights: np.ndarray, compute: Callable[[object], torch.Tensor]
    ) -> torch.Tensor:
        facts = self._facts
        facts.flat.bind(weights)
        parts = [
            compute(facts.model.layer.batch(facts.prepared, rows))
            for rows in chunks(np.arange(self._num_nodes))
        ]
        facts.flat.release()
        return torch.cat(parts)
