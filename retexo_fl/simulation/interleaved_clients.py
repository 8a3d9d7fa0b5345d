"""Clients of one process whose rounds exchange: the first one asked runs the round of all.

A server sends a round's weights to every client. In this process the first of these messages
starts the steps of all clients, interleaved; the answers of the others wait until their message
comes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, Protocol, TypeVar, cast, runtime_checkable

import numpy as np

from retexo_fl.client.api import (
    AnswerT,
    ClientApi,
    EvaluateAnswer,
    EvaluateRequest,
    Request,
    Ticket,
    TrainAnswer,
    TrainRequest,
)
from retexo_fl.client.peer_exchange import RoundName
from retexo_fl.ledger import PeerTraffic
from retexo_fl.simulation.interleaved import RoundOutcome, Watcher, no_watch, run_round
from retexo_fl.training.rounds import Steps

FindClient = Callable[[str, int], ClientApi]
RoundRequest = TrainRequest | EvaluateRequest
AnyRequest = TypeVar("AnyRequest", TrainRequest, EvaluateRequest)
AnyAnswer = TypeVar("AnyAnswer", TrainAnswer, EvaluateAnswer)


@runtime_checkable
class SteppingClient(Protocol):
    """A client whose rounds are generators of their exchanges."""

    def train_steps(self, request: TrainRequest) -> Steps[TrainAnswer]:
        """Answer a ``train.layer`` in steps."""
        ...

    def evaluate_steps(self, request: EvaluateRequest) -> Steps[EvaluateAnswer]:
        """Answer an ``evaluate.layer`` in steps."""
        ...

    def finished(
        self, request: AnyRequest, answer: AnyAnswer, moved: Mapping[str, PeerTraffic]
    ) -> AnyAnswer:
        """Complete what steps have returned by what crossed, by purpose."""
        ...


class InterleavedClients:
    """Finds clients of one process, whose rounds it runs side by side."""

    def __init__(
        self,
        find: FindClient,
        clients: int,
        *,
        codec: str = "lossless",
        watch: Watcher = no_watch,
    ) -> None:
        """Run the clients' rounds together.

        Args:
            find: Finds a client whose rounds are steps.
            clients: How many there are.
            codec: How vectors are written.
            watch: Called for every exchange inside a round.
        """
        self._find = find
        self._clients = range(clients)
        self._codec = codec
        self._watch = watch
        self._training: _Meeting[TrainRequest, TrainAnswer] = _Meeting()
        self._evaluation: _Meeting[EvaluateRequest, EvaluateAnswer] = _Meeting()

    def find(self, job: str, client: int) -> ClientApi:
        """Return a client of a job."""
        return _InterleavedClient(self, self._find(job, client), client)

    def train(self, client: int, request: TrainRequest) -> TrainAnswer:
        """Return a client's answer; the first client that is asked runs the round of all."""

        def start(stepping: SteppingClient) -> Steps[TrainAnswer]:
            return stepping.train_steps(request)

        answer, moved = self._training.answer(
            client, request, lambda: self._run(request.ticket, start)
        )
        return self._stepping(request.ticket.job, client).finished(request, answer, moved)

    def evaluate(self, client: int, request: EvaluateRequest) -> EvaluateAnswer:
        """Return a client's answer, as :meth:`train` does."""

        def start(stepping: SteppingClient) -> Steps[EvaluateAnswer]:
            return stepping.evaluate_steps(request)

        answer, moved = self._evaluation.answer(
            client, request, lambda: self._run(request.ticket, start)
        )
        return self._stepping(request.ticket.job, client).finished(request, answer, moved)

    def _run(
        self, ticket: Ticket, start: Callable[[SteppingClient], Steps[AnyAnswer]]
    ) -> RoundOutcome[AnyAnswer]:
        steps = {client: start(self._stepping(ticket.job, client)) for client in self._clients}
        name = RoundName(job=ticket.job, layer=ticket.stage, codec=self._codec)
        return run_round(steps, name, self._watch)

    def _stepping(self, job: str, client: int) -> SteppingClient:
        found = self._find(job, client)
        assert isinstance(found, SteppingClient), "its rounds exchange, so they are steps"
        return found


class _Meeting(Generic[AnyRequest, AnyAnswer]):
    """The answers of one round, kept until each client's message has come."""

    def __init__(self) -> None:
        self._request: AnyRequest | None = None
        self._answers: dict[int, AnyAnswer] = {}
        self._moved: Mapping[int, Mapping[str, PeerTraffic]] = {}

    def answer(
        self, client: int, request: AnyRequest, run: Callable[[], RoundOutcome[AnyAnswer]]
    ) -> tuple[AnyAnswer, Mapping[str, PeerTraffic]]:
        """Return a client's answer to a request, and what crossed for it."""
        if client not in self._answers or not _is_same(self._request, request):
            outcome = run()
            self._request, self._moved = request, outcome.moved
            self._answers = dict(outcome.results)
        return self._answers.pop(client), self._moved[client]


def _is_same(known: RoundRequest | None, request: RoundRequest) -> bool:
    """Return whether two messages of a round ask for the same."""
    return (
        known is not None
        and known.ticket == request.ticket
        and getattr(known, "nodes", "") == getattr(request, "nodes", "")
        and np.array_equal(known.weights, request.weights)
    )


class _InterleavedClient:
    """A client whose rounds are run with those of all others; the rest it does alone."""

    def __init__(self, everyone: InterleavedClients, client: ClientApi, index: int) -> None:
        self._everyone = everyone
        self._client = client
        self._index = index

    def ask(self, request: Request[AnswerT]) -> AnswerT:
        """See :class:`~retexo_fl.client.api.ClientApi`."""
        if isinstance(request, TrainRequest):
            return cast(AnswerT, self._everyone.train(self._index, request))
        if isinstance(request, EvaluateRequest):
            return cast(AnswerT, self._everyone.evaluate(self._index, request))
        return self._client.ask(request)
