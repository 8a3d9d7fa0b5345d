"""What a client does in rounds: decode the weights, train or judge, and make the answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, TypeVar

import numpy as np

from retexo_fl.client.answers import evaluate_answer, train_answer
from retexo_fl.client.api import (
    EvaluateAnswer,
    EvaluateRequest,
    Ticket,
    TrainAnswer,
    TrainRequest,
)
from retexo_fl.client.client import GraphClient
from retexo_fl.ledger import PeerTraffic
from retexo_fl.run_log.cached_rows import CachedRows
from retexo_fl.training.rounds import Steps
from retexo_fl.training.selection import Score
from retexo_fl.training.tally import LayerUpdate, Tally

AnyAnswer = TypeVar("AnyAnswer", TrainAnswer, EvaluateAnswer)
#: Of what its mini-batches have read, until the test: rounds may be of other processes.
_CACHED: Final = "cached-rows"


class TrainingClient(GraphClient):
    """A client that is trained in rounds; how, a way of training says (``methods/``)."""

    # ---- a round in steps, between which vectors cross -----------------------------------------

    def train_steps(self, request: TrainRequest) -> Steps[TrainAnswer]:
        """Answer a ``train.layer`` in steps between which vectors cross; here there is one."""
        yield from ()
        return self.ask(request)

    def evaluate_steps(self, request: EvaluateRequest) -> Steps[EvaluateAnswer]:
        """Answer an ``evaluate.layer`` as :meth:`train_steps` does a ``train.layer``."""
        yield from ()
        return self.ask(request)

    def finished(
        self,
        request: TrainRequest | EvaluateRequest,
        answer: AnyAnswer,
        moved: Mapping[str, PeerTraffic],
    ) -> AnyAnswer:
        """Return what steps have answered, with what crossed for it, by purpose."""
        del request, moved
        return answer

    # ---- the start of a round, and its answer --------------------------------------------------

    def _start(
        self, request: TrainRequest, size: int
    ) -> tuple[np.ndarray, np.ndarray | None] | None:
        """Return the (size,) weights that a round starts from, and the correction of its steps.

        None if the request changes weights that are not held.
        """
        if self._config.local_correction == "none" or request.ticket.round < 2:
            weights = self._weights(request, size)
            return None if weights is None else (weights, None)
        both = self._weights(request, 2 * size)
        return None if both is None else (both[:size], both[size:])

    def _train_answer(
        self, request: TrainRequest, update: LayerUpdate | None, weights: np.ndarray
    ) -> TrainAnswer:
        again = self._is_again(request)
        if update is None:
            return self._sealing.answered(request, None, weights, len(weights), again=again)
        if update.cached:
            self._note_cached(request.ticket, update.cached)
        if "train" not in self.part.uses:
            # Peers' nodes, too, give a gradient.
            update = replace(update, update_sum=np.zeros_like(update.update_sum))
        answer = train_answer(
            update,
            self.weights.coded(request, update),
            counts_train=self._counts_train,
        )
        values = update.update_sum
        return self._sealing.answered(
            request, answer, weights, len(values), values=values, again=again
        )

    def _judged(
        self, request: EvaluateRequest, tally: Tally | None, weights: np.ndarray
    ) -> EvaluateAnswer:
        answer = None
        if tally is not None:
            own: tuple[float, ...] = ()
            cached: tuple[float, ...] = ()
            if self._config.per_client_metrics and request.nodes == "test":
                own = self._own_figure(tally)
            if self.counts_cached and request.nodes == "test":
                cached = self._cached_before(request.ticket).numbers
            answer = evaluate_answer(tally, own, cached if any(cached) else ())
        again = self._is_again(request)
        return self._sealing.answered(request, answer, weights, again=again)

    def _note_cached(self, ticket: Ticket, cached: tuple[int, ...]) -> None:
        """Add what a round has read to what the client sends at the test."""
        numbers = (self._cached_before(ticket) + CachedRows.of(cached)).numbers
        facts = {"attempt": ticket.attempt, "numbers": numbers}
        self._store.put_note(_CACHED, json.dumps(facts).encode())

    def _cached_before(self, ticket: Ticket) -> CachedRows:
        """Return what rounds of the attempt have read."""
        content = self._store.note(_CACHED)
        known = {} if content is None else json.loads(content)
        if known.get("attempt") != ticket.attempt:
            return CachedRows()
        return CachedRows.of(known["numbers"])

    def _own_figure(self, tally: Tally) -> tuple[float, ...]:
        """Return what the metric makes of its own nodes alone; nothing where that is undefined."""
        counts_right = self._config.goal.counts_right
        value = Score.of(tally, self._made.recipe.metric, counts_right=counts_right).value
        return () if value is None else (value,)
