"""Enters in the ledger what clients and their peers exchanged for their answers to a round."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from retexo_fl.client.api import EvaluateAnswer, TrainAnswer
from retexo_fl.federation.asking import Answers, Ask, Round, through
from retexo_fl.federation.asking.ask import T
from retexo_fl.federation.rounds.clients import Clients
from retexo_fl.ledger import PeerTraffic


def accounted(asking: Round[T], clients: Clients) -> Round[T]:
    """Return a round whose answers have what was moved for them; masked ones, of whole cohorts."""

    def handle(ask: Ask) -> Round[Answers]:
        answers = yield ask
        if not ask.cohorts:
            return each(ask, answers)
        found = dict(answers)
        clients.count_cohorts(next(iter(ask.requests.values())), found)
        return found.items()

    def each(ask: Ask, answers: Answers) -> Iterator[tuple[int, Any]]:
        for client, answer in answers:
            ticket = ask.requests[client].ticket
            for purpose, traffic in _moved(answer).items():
                clients.count_round(ticket, client, traffic, purpose=purpose)
            yield client, answer

    return through(asking, handle)


def _moved(answer: object) -> Mapping[str, PeerTraffic]:
    """Return by purpose what a client and its peers exchanged for an answer."""
    if isinstance(answer, TrainAnswer):
        return {"train": answer.training_traffic, "evaluate": answer.validation_traffic}
    return {"evaluate": answer.traffic} if isinstance(answer, EvaluateAnswer) else {}
