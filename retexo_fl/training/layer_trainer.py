"""Training of one stage on one client: pure functions of the stage's input and the weights.

Source: RETEXO (Kolluri et al.), section 3.1; one full-batch gradient per round; McMahan et al.,
AISTATS 2017, for several local steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import numpy as np
import torch

from retexo_fl.layers.base import StageInput
from retexo_fl.layers.dropout import KeyedDropout
from retexo_fl.training.local_steps import take_steps
from retexo_fl.training.recipe import Recipe
from retexo_fl.training.rounds import run_alone, without_exchange
from retexo_fl.training.stage_model import ModelShape, StageModel, borrowed
from retexo_fl.training.stage_pass import NodeSets, StageFacts, StagePass, chunks
from retexo_fl.training.tally import LayerUpdate, PassSums, Tally

__all__ = ["LayerTrainer", "NodeSets", "StageTrainer"]

_PLAIN: Final = Recipe()


class StageTrainer(Protocol):
    """Trains one stage on one client."""

    @property
    def num_weights(self) -> int:
        """P."""
        ...

    def update(
        self,
        weights: np.ndarray,
        *,
        round_number: int,
        dropout: float,
        correction: np.ndarray | None = None,
    ) -> LayerUpdate:
        """Validate the incoming weights, then train from them."""
        ...

    def evaluate(self, weights: np.ndarray, which: str) -> Tally:
        """Judge weights on what is of one use, without dropout."""
        ...

    def close(self) -> None:
        """Release what is held outside this process."""
        ...


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

    def update(
        self,
        weights: np.ndarray,
        *,
        round_number: int,
        dropout: float,
        correction: np.ndarray | None = None,
    ) -> LayerUpdate:
        """Validate the incoming weights, then train from them.

        Args:
            weights: (P,) of the model's dtype.
            round_number: From 1.
            dropout: Rate in [0, 1).
            correction: (P,) what is added to the mean gradient of each of several local steps.

        Raises:
            TrainingDiverged: A loss or a gradient is not finite.
        """
        keyed = KeyedDropout(
            rate=dropout, seed=self._seed, stage=self._stage, round=round_number, step=0
        )
        sums = self._begun(weights, keyed)
        update = take_steps(
            self._recipe.local,
            weights,
            sums,
            keyed,
            nodes=len(self._nodes.train),
            sums_at=lambda weights, place: without_exchange(self._sums(weights, place)),
            correction=correction,
        )
        return LayerUpdate(
            update_sum=run_alone(update), train=sums.train, validation=sums.validation
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
        """Release what is held outside this process: nothing."""

    def _begun(self, weights: np.ndarray, dropout: KeyedDropout) -> PassSums:
        """Return the gradient at the incoming weights, and their validation."""
        if self._facts.in_one_pass:
            return self._pass.sums(borrowed(weights), dropout, validate=True)
        sums = self._sums(weights, dropout)
        sums.validation = self.evaluate(weights, "validation")
        return sums

    def _sums(self, weights: np.ndarray, dropout: KeyedDropout) -> PassSums:
        """Return the gradient at ``weights``."""
        return self._pass.sums(borrowed(weights), dropout, validate=False)

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
