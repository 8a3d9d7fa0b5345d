"""The score of federated benchmarks that grade each client's own model on its own nodes."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Final

from retexo_fl.client.api import (
    AnswerT,
    ClientApi,
    EvaluateRequest,
    Request,
    TrainAnswer,
    TrainRequest,
)
from retexo_fl.updates import with_zeros
from sims.trained import Trained
from sims.training import Change, train_whole
from sims.trainings import Keys

#: Where :func:`train_with_local_scores` leaves its figure.
LOCAL_ACCURACY: Final = "local_test_accuracy"


@dataclass(slots=True)
class LocalScores:
    """Right and all nodes of the clients' own models, over all clients.

    Attributes:
        counts: By round and by ``validation`` or ``test``: ``[right, all]``.
    """

    counts: dict[tuple[int, str], list[int]] = field(
        default_factory=lambda: defaultdict(lambda: [0, 0])
    )

    def add(self, round_number: int, nodes: str, correct: int, examples: int) -> None:
        """Add one client's score after its steps of one round."""
        count = self.counts[round_number, nodes]
        count[0] += correct
        count[1] += examples

    def accuracy(self, round_number: int, nodes: str) -> float:
        """Return the share of right ones in one round."""
        right, total = self.counts[round_number, nodes]
        return right / total

    def selected(self) -> float:
        """Return the test accuracy of the round whose validation accuracy is best; the first."""
        rounds = sorted({number for number, nodes in self.counts if nodes == "validation"})
        best = max(rounds, key=lambda number: self.accuracy(number, "validation"))
        return self.accuracy(best, "test")


class ScoredClient:
    """Does all that its client does, and grades the client's model after its local steps."""

    def __init__(self, client: ClientApi, scores: LocalScores) -> None:
        self._client = client
        self._scores = scores

    def ask(self, request: Request[AnswerT]) -> AnswerT:
        """Return the client's answer; the change in an update is what its model differs by."""
        answer = self._client.ask(request)
        if isinstance(request, TrainRequest) and isinstance(answer, TrainAnswer):
            self._grade(request, answer)
        return answer

    def _grade(self, request: TrainRequest, answer: TrainAnswer) -> None:
        own = request.weights
        if answer.examples:
            own = own + (with_zeros(answer.update_sum) / answer.examples).astype(own.dtype)
        for nodes in ("validation", "test"):
            asked = EvaluateRequest(ticket=request.ticket, weights=own, nodes=nodes)
            found = self._client.ask(asked)
            self._scores.add(request.ticket.round, nodes, found.correct, found.examples)


def train_with_local_scores(keys: Keys) -> Trained:
    """Train by federated averaging of the whole model, and grade the clients' own models too.

    Source: OpenFGL 1.1.0, evaluation mode ``local_model_on_local_data``: after its local epochs,
    on its own test nodes, each node counting once, at the round that validates best.
    """
    scores = LocalScores()

    def scoring() -> Change:
        return lambda _, client: ScoredClient(client, scores)

    trained = train_whole(keys, scoring())
    return replace(trained, result={**trained.result, LOCAL_ACCURACY: scores.selected()})
