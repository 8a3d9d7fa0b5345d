"""An exchange in the messages of the question after it: late vectors, lost weights, the account."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from flwr.app import Context

from retexo_fl.client.api import (
    CollectAnswer,
    EvaluateAnswer,
    EvaluateRequest,
    PublishAnswer,
    PublishRequest,
    Request,
    Ticket,
    question_of,
)
from retexo_fl.errors import RemoteProtocolError
from retexo_fl.federation.asking import Ask, Messenger, Round, WaitPolicy
from retexo_fl.federation.client_handlers import build_client_app
from retexo_fl.federation.exchange_with import ExchangeWith
from retexo_fl.federation.rounds.clients import Clients
from retexo_fl.ledger import Traffic, TrafficLedger, Volume
from retexo_fl.simulation.inline_grid import InlineGrid
from tests.support.promises import hello_of

TICKET = Ticket(job="job-0123456789ab", attempt=1, weights_digest=bytes(32))
MOVED = Traffic(boundary=Volume(messages=1, raw=40, payload=20, wire=30))
NAME, WHOLE = np.array([1.0]), np.array([2.0, 3.0])
CLIENTS = 3


@dataclass
class Told:
    """What scripted clients were asked, and what some of them answer.

    Attributes:
        late: Clients whose vectors have not arrived when they are asked with the question.
        lacking: Clients that do not hold the weights that are named.
        vectors: That each says it has sent.
        asked: Client and question, as they came.
    """

    late: set[int] = field(default_factory=set)
    lacking: set[int] = field(default_factory=set)
    vectors: int = 1000
    asked: list[tuple[int, str]] = field(default_factory=list)

    def ask(self, client: int, request: Request[Any]) -> Any:
        name = question_of(request).name
        self.asked.append((client, name))
        if isinstance(request, PublishRequest):
            assert request.weights is not None
            if client in self.lacking and np.array_equal(request.weights, NAME):
                return PublishAnswer(vectors=0, traffic=Traffic(), lacks_weights=True)
            return PublishAnswer(vectors=self.vectors, traffic=MOVED, error_bound=(client / 10,))
        if name == "collect":
            missing = 5 if client in self.late else 0
            return CollectAnswer(
                complete=not missing, missing=missing, missing_peers=min(missing, 1), traffic=MOVED
            )
        return EvaluateAnswer(examples=3, loss_sum=float(client), correct=1)


@dataclass(frozen=True)
class Client:
    told: Told
    index: int

    def ask(self, request: Request[Any]) -> Any:
        return self.told.ask(self.index, request)


def run(
    told: Told, *, deployed: bool = True
) -> tuple[list[int], ExchangeWith, TrafficLedger, list[list[int]]]:
    """Run an exchange with an evaluation; return whose answers came, in order, and the rest."""

    def find(context: Context, ticket: Ticket) -> Any:
        return Client(told, int(context.node_config["partition-id"]))

    policy = WaitPolicy(timeout_s=20.0, clients_return=deployed)
    ledger = TrafficLedger()
    grid = InlineGrid(build_client_app(find), CLIENTS, {})
    messenger = Messenger(grid, ledger=ledger, policy=policy)
    messenger.introduce({client: client + 2 for client in range(CLIENTS)}, attempt=1)
    late: list[list[int]] = []

    def collect_late(clients: Sequence[int]) -> Round[int]:
        late.append(list(clients))
        told.late.clear()
        yield from ()
        return 0

    both = ExchangeWith(
        messenger=messenger,
        clients=Clients(
            hellos={client: hello_of(client) for client in range(CLIENTS)},
            policy=policy,
            ledger=ledger,
        ),
        request=PublishRequest(ticket=TICKET, weights=WHOLE),
        name=NAME,
        collect_late=collect_late,
    )
    ask = Ask.of(
        range(CLIENTS),
        EvaluateRequest(ticket=TICKET, weights=WHOLE, nodes="validation"),
        stage=0,
        purpose="evaluate",
    )
    answers = [(client, answer.loss_sum) for client, answer in both.answers(ask)]
    assert all(client == loss for client, loss in answers)
    return [client for client, _ in answers], both, ledger, late


def messages(ledger: TrafficLedger) -> Counter[str]:
    """Return how many messages each purpose took of client 0, from the server."""
    return Counter(
        {
            account.purpose: volume.messages
            for account, volume in ledger.lines()
            if account.kind == "control" and account.client == 0 and account.direction == "in"
            if account.peer == -1
        }
    )


def test_one_message_has_vectors_sent_awaited_and_used() -> None:
    told = Told()
    order, both, ledger, late = run(told)
    assert order == [0, 1, 2]
    assert late == []
    assert [name for client, name in told.asked if client == 1] == [
        "publish",
        "collect",
        "evaluate_layer",
    ]
    assert both.exchanged.vectors == 3000
    assert both.exchanged.error_bound == 0.2
    assert messages(ledger) == {"publish": 0, "collect": 0, "evaluate": 1}
    # What clients told of their peers stands under the exchange, once.
    assert ledger.sum(kind="boundary").payload == CLIENTS * MOVED.boundary.payload


def test_in_a_process_all_send_before_any_is_asked() -> None:
    told = Told()
    order, both, ledger, _ = run(told, deployed=False)
    assert order == [0, 1, 2]
    assert told.asked[:CLIENTS] == [(client, "publish") for client in range(CLIENTS)]
    assert both.exchanged.vectors == 3000
    assert messages(ledger) == {"publish": 1, "collect": 0, "evaluate": 1}


@pytest.mark.parametrize("late", [{0}, {1}, {2}, {0, 2}, {0, 1, 2}])
def test_who_is_late_is_asked_again_and_answers_stay_in_order(late: set[int]) -> None:
    told = Told(late=set(late))
    order, both, _, waited = run(told)
    assert order == [0, 1, 2]
    assert waited == [sorted(late)]
    asked = Counter(client for client, name in told.asked if name == "evaluate_layer")
    assert asked == dict.fromkeys(range(CLIENTS), 1)
    assert both.exchanged.vectors == 3000


@pytest.mark.parametrize("deployed", [True, False])
def test_who_lacks_weights_gets_them_whole(deployed: bool) -> None:
    told = Told(lacking={1})
    order, both, _, late = run(told, deployed=deployed)
    assert order == [0, 1, 2]
    assert late == ([[1]] if deployed else [])
    assert both.exchanged.vectors == 3000
    published = Counter(client for client, name in told.asked if name == "publish")
    assert published == {0: 1, 1: 2, 2: 1}


def test_a_client_that_sent_another_number_of_vectors_is_named() -> None:
    with pytest.raises(RemoteProtocolError, match="client 0: vectors is 7; expected 1000"):
        run(Told(vectors=7))
