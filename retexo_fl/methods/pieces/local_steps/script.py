"""What corrects the clients' local steps, kept by the server: SCAFFOLD's control variates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from retexo_fl.client.api import Request, Ticket, TrainAnswer, TrainRequest
from retexo_fl.config import RunConfig
from retexo_fl.federation.asking import Round, Who, members, named
from retexo_fl.federation.rounds.stage import StageTraining
from retexo_fl.federation.rounds.stage_state import StageState
from retexo_fl.training.selection import Score


class ControlVariates:
    """The control variate of each client, and of all of them together.

    A client's is the mean of its gradients over its last round; that of all is their mean, weighed
    by train nodes as the loss is. A client that has not answered yet has zeros, one that missed
    rounds keeps its last. All are read off the changes of weights that the server is sent in any
    case, so clients keep nothing, and an answer still follows from its request alone.

    Source: Karimireddy et al., ICML 2020, algorithm 1, option II, with clients weighed by their
    train nodes: ``c_i+ = c_i - c + (x - y_i) / (K s)``.
    """

    def __init__(
        self, nodes: Mapping[int, int], held: Mapping[int, np.ndarray], *, step_length: float
    ) -> None:
        """Continue with what is known.

        Args:
            nodes: By client, ascending, its train nodes.
            held: By client, its (P,) control variate; none before its first answer.
            step_length: ``K s``: local steps of a round, times the step size.
        """
        self._nodes = nodes
        self._held = dict(held)
        self._step_length = step_length
        self._corrections: dict[int, np.ndarray] = {}

    @property
    def held(self) -> Mapping[int, np.ndarray]:
        """By client, its (P,) control variate."""
        return dict(self._held)

    def begin(self) -> None:
        """Begin a round: form the corrections."""
        everyone = sum(self._nodes.values())
        if not self._held:
            return
        none = np.zeros_like(next(iter(self._held.values())))
        own = {client: self._held.get(client, none) for client in self._nodes}
        of_all = none.copy()
        for client, nodes in self._nodes.items():
            # Shares, not sums divided once: of one client this is its own, to the bit.
            of_all += (nodes / everyone) * own[client]
        self._corrections = {client: of_all - item for client, item in own.items()}

    def beside(self, weights: np.ndarray, client: int) -> np.ndarray:
        """Return what a client is sent: (P,) weights, and behind them its correction if any."""
        if not self._corrections:
            return weights
        return np.concatenate([weights, self._corrections[client]])

    def learn(self, client: int, change: np.ndarray) -> None:
        """Learn from the (P,) mean change of weights in a client's answer."""
        self._held[client] = -change / self._step_length - self._corrections.get(client, 0)


class CorrectedStage(StageTraining):
    """A stage whose clients' local steps are corrected.

    Takes what a :class:`.StageTraining` takes; goes on with the control variates of ``state``.
    """

    def __init__(self, config: RunConfig, ticket: Ticket, state: StageState, **others: Any) -> None:
        super().__init__(config, ticket, state, **others)
        self._controls = ControlVariates(
            {client: self._clients.hellos[client].train for client in self.training_clients},
            state.controls,
            step_length=config.local_steps * config.local_learning_rate,
        )

    def train(self, weights: np.ndarray | None = None) -> Round[Score]:
        """See :meth:`.StageTraining.train`."""
        self._controls.begin()
        return (yield from super().train(weights))

    def state(self) -> StageState:
        """Return the stage's state."""
        return replace(super().state(), controls=self._controls.held)

    def _train_requests(self, coded: np.ndarray, number: int) -> dict[int, Request[object]]:
        requests = super()._train_requests(coded, number)
        for client, request in requests.items():
            if isinstance(request, TrainRequest):
                weights = self._controls.beside(coded, client)
                requests[client] = replace(request, weights=weights)
        return requests

    def _add_update(self, who: Who, number: int, answer: TrainAnswer) -> np.ndarray:
        """Hand an update to the aggregator, and learn its client's control variate from it."""
        client = members(who)[0]
        with named(who):
            key = self._key(number, client)
            update = self._codec.decode_update(answer.update_sum, key, self._steps)
        update_sum = update if isinstance(update, np.ndarray) else update.dense()
        self._aggregator.add(client, update_sum, answer.examples)
        self._controls.learn(client, update_sum / answer.examples)
        return self._codec.measure(update_sum, answer.update_sum)
