"""The score of federated benchmarks that grade each client's own model on its own nodes."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Any, Final

from retexo_fl.client.api import (
    CollectRequest,
    EvaluateRequest,
    PublishRequest,
    Request,
    TrainRequest,
)
from retexo_fl.client.factory import InProcessClients
from retexo_fl.client.preparation import make_parts
from retexo_fl.config import make_config
from retexo_fl.updates import with_zeros
from sims.trained import Trained
from sims.training import train_whole
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


def train_with_local_scores(keys: Keys) -> Trained:
    """Train by federated averaging of the whole model, and grade the clients' own models too.

    Source: OpenFGL 1.1.0, evaluation mode ``local_model_on_local_data``: after its local epochs,
    on its own test nodes, each node counting once, at the round that validates best.
    """
    config, scores = make_config(keys), LocalScores()
    # Of their own: a client that trains answers for one content at a place, its server's.
    graders = InProcessClients(make_parts(config), config)

    def grade(index: int, request: Request[Any], answer: Any) -> Any:
        """Judge what the client's model has become; an update says what it differs by."""
        grader = graders.find(request.ticket.job, index)
        if isinstance(request, PublishRequest | CollectRequest):
            grader.ask(request)
        if isinstance(request, TrainRequest):
            own = request.weights
            if answer.examples:
                own = own + (with_zeros(answer.update_sum) / answer.examples).astype(own.dtype)
            for nodes in ("validation", "test"):
                asked = EvaluateRequest(ticket=request.ticket, weights=own, nodes=nodes)
                found = grader.ask(asked)
                scores.add(request.ticket.round, nodes, found.correct, found.examples)
        return answer

    trained = train_whole(keys, grade)
    return replace(trained, result={**trained.result, LOCAL_ACCURACY: scores.selected()})
