"""A stage of which some weights stay as they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np

from retexo_fl.client.api import Ticket
from retexo_fl.config import RunConfig
from retexo_fl.federation.aggregators import Aggregator, CheckedAggregator, RoundFacts
from retexo_fl.federation.asking import Round
from retexo_fl.federation.optimizers import Partial, make_optimizer
from retexo_fl.federation.rounds.stage import StageTraining
from retexo_fl.federation.rounds.stage_state import StageState
from retexo_fl.training.candidates import FixedWeights
from retexo_fl.training.selection import Score


class CandidateStage(StageTraining):
    """A stage of which some weights stay as they are.

    Clients send gradients of these, too, which are not read: where updates have few bits, the
    server has them coded as zeros.

    Args:
        config: As of a :class:`.StageTraining`, likewise ``ticket``, ``state`` and ``others``.
        fixed: The weights that stay.
        weight_decay: Of the others; as configured if None.
    """

    def __init__(
        self,
        config: RunConfig,
        ticket: Ticket,
        state: StageState,
        *,
        fixed: FixedWeights,
        weight_decay: float | None,
        **others: Any,
    ) -> None:
        super().__init__(config, ticket, replace(state, optimizer={}), **others)
        if weight_decay is not None:
            config = replace(config, weight_decay=weight_decay)
        self._blocks = fixed.blocks
        self._optimizer = Partial(
            state.weights, ~fixed.places, lambda moved: make_optimizer(config, moved)
        )
        self._optimizer.load_state(state.optimizer)
        self._aggregator = CheckedAggregator(
            config.aggregator, _WithoutFixed(self._aggregator, fixed)
        )

    def train(self, weights: np.ndarray | None = None) -> Round[Score]:
        """See :meth:`.StageTraining.train`."""
        self._steps = self._codec.without(self._steps, self._blocks)
        return (yield from super().train(weights))


class _WithoutFixed:
    """Gives an aggregator updates that leave fixed weights as they are."""

    def __init__(self, inner: Aggregator, fixed: FixedWeights) -> None:
        self.needs: Literal["sum", "each"] = inner.needs
        self._inner = inner
        self._fixed = fixed

    def start(self, begun: RoundFacts) -> None:
        """See :class:`~retexo_fl.federation.aggregators.Aggregator`."""
        self._inner.start(begun)

    def add(self, client: int, update_sum: np.ndarray, count: int) -> None:
        """See :class:`~retexo_fl.federation.aggregators.Aggregator`."""
        self._inner.add(client, self._fixed.left_out_of(update_sum), count)

    def finish(self) -> np.ndarray:
        """See :class:`~retexo_fl.federation.aggregators.Aggregator`."""
        return self._inner.finish()
