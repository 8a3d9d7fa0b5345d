"""Training of one stage on one client: pure functions of the stage's input and the weights.

Source: RETEXO (Kolluri et al.), section 3.1; one full-batch gradient per round; McMahan et al.,
AISTATS 2017, for several local steps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

import numpy as np
import torch

from retexo_fl.layers.aggregate import AggregatedInput
from retexo_fl.layers.base import Rows, StageInput
from retexo_fl.layers.dropout import KeyedDropout
from retexo_fl.training.linear_step import ClippedPass
from retexo_fl.training.local_steps import finite_gradient, take_steps
from retexo_fl.training.recipe import Recipe
from retexo_fl.training.rounds import run_alone, without_exchange
from retexo_fl.training.stage_model import ModelShape, model_in_turn
from retexo_fl.training.stage_pass import BOTH, NodeSets, StageFacts, StagePass, chunks
from retexo_fl.training.tally import LayerUpdate, PassSums, Tally

__all__ = ["LayerTrainer", "NodeSets", "StageTrainer"]

_PLAIN: Final = Recipe()


class StageTrainer(ABC):
    """Trains one stage on one client; subclasses define a pass, forward and backward.

    Args:
        stage: Index.
        seed: Of the training.
        recipe: Loss, metric and local steps.

    Attributes:
        num_weights: P.
    """

    num_weights: int

    def __init__(self, stage: int, *, seed: int, recipe: Recipe) -> None:
        self._stage = stage
        self._seed = seed
        self._recipe = recipe

    @abstractmethod
    def evaluate(self, weights: np.ndarray, which: str) -> Tally:
        """Judge (P,) weights on ``train``, ``validation`` or ``test``, without dropout."""

    @abstractmethod
    def _sums(self, weights: np.ndarray, place: KeyedDropout) -> PassSums:
        """Return the gradient at (P,) ``weights``."""

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
        if self._recipe.local.count == 1:
            spans = sums.spans
            update_sum = finite_gradient(self._recipe.local, weights, sums, keyed)
        else:
            spans = None
            update_sum = self._stepped(weights, sums, keyed, correction)
        return LayerUpdate(
            update_sum=update_sum, spans=spans, train=sums.train, validation=sums.validation
        )

    def _stepped(
        self,
        weights: np.ndarray,
        sums: PassSums,
        keyed: KeyedDropout,
        correction: np.ndarray | None,
    ) -> np.ndarray:
        """Return the (P,) update of several steps, of which the first has ``sums``."""
        steps = take_steps(
            self._recipe.local,
            weights,
            sums,
            keyed,
            nodes=sums.train.count,
            sums_at=lambda weights, place: without_exchange(self._sums(weights, place)),
            correction=correction,
        )
        return run_alone(steps)

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Release what is held outside this process."""

    def _begun(self, weights: np.ndarray, place: KeyedDropout) -> PassSums:
        """Return the gradient at the incoming weights, and their validation."""
        sums = self._sums(weights, place)
        sums.validation = self.evaluate(weights, "validation")
        return sums


class LayerTrainer(StageTrainer):
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
        clip: float | None = None,
    ) -> None:
        super().__init__(stage, seed=seed, recipe=recipe)
        self._num_nodes = inputs.num_nodes
        model = model_in_turn(shape, stage)
        self._facts = StageFacts(model, model.layer.prepare(inputs), recipe)
        self._nodes = nodes
        self._pass = StagePass(self._facts, nodes)
        #: None where gradients are as long as they are.
        self._clipped: ClippedPass | None = None
        if clip is not None:
            self._clipped = ClippedPass(
                model, self._facts.prepared, train=nodes.train, labels=nodes.labels, clip=clip
            )
        self.num_weights = self._facts.flat.size

    def evaluate(self, weights: np.ndarray, which: str) -> Tally:
        """Count over the ``train``, ``validation`` or ``test`` nodes, without dropout."""
        return self._pass.tally(weights, which)

    @property
    def read_rows(self) -> Rows:
        """The (N, D') rows of all inner nodes that an :class:`.AggregatedLayer` reads."""
        prepared = self._facts.prepared
        assert isinstance(prepared, AggregatedInput)
        return prepared.rows

    def embed(self, weights: np.ndarray) -> torch.Tensor:
        """Return the (N, H) rows of all inner nodes for the next stage."""
        return self._all_rows(weights, self._facts.model.embed)

    def logits(self, weights: np.ndarray) -> torch.Tensor:
        """Return the (N, C) logits of all inner nodes."""
        return self._all_rows(weights, lambda batch: self._facts.model.classify(batch, None))

    def _begun(self, weights: np.ndarray, place: KeyedDropout) -> PassSums:
        """See :class:`StageTrainer`."""
        if self._facts.in_one_pass and self._clipped is None:
            return self._pass.sums(weights, place, BOTH)
        return super()._begun(weights, place)

    def _sums(self, weights: np.ndarray, place: KeyedDropout) -> PassSums:
        """See :class:`StageTrainer`."""
        if self._clipped is not None:
            return self._clipped.sums(weights, place)
        return self._pass.sums(weights, place)

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
