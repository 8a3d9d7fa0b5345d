"""What the ledger has of an exchange whose answers are lost, or given twice."""

from __future__ import annotations

import pytest
from flwr.app import Message
from flwr.clientapp import ClientApp

from retexo_fl.client.api import (
    CollectAnswer,
    CollectRequest,
    PublishAnswer,
    PublishRequest,
    Ticket,
)
from retexo_fl.errors import RemoteProtocolError
from retexo_fl.federation import records
from retexo_fl.federation.asking import Messenger, WaitPolicy
from retexo_fl.federation.rounds.checked_answers import check_published
from retexo_fl.federation.rounds.clients import Clients
from retexo_fl.federation.rounds.exchange import collect, publish
from retexo_fl.ledger import Traffic, TrafficLedger, Volume
from tests.support.fickle_grid import FickleGrid
from tests.support.promises import hello_of

TICKET = Ticket(job="job-0123456789ab", attempt=1, weights_digest=bytes(32))
MOVED = Traffic(
    boundary=Volume(messages=1, raw=40, payload=20, wire=30),
    control=Volume(messages=0, payload=5, wire=5),
)


class NodelessGrid(FickleGrid):
    """Takes no message for a node that is away."""

    def push_messages(self, messages: list[Message]) -> list[str]:  # type: ignore[override]
        names = iter(super().push_messages([m for m in messages if not self._is_away(m)]))
        return [None if self._is_away(m) else next(names) for m in messages]  # type: ignore[misc]

    def _is_away(self, message: Message) -> bool:
        return message.metadata.dst_node_id in self.weather.away


def _messenger(
    *, returns: bool, grid: type[FickleGrid] = FickleGrid
) -> tuple[Messenger, Clients, FickleGrid]:
    """Return a messenger to a client that tells of the same bytes each time."""
    app = ClientApp()

    @app.query("publish")
    def published(message: Message, context: object) -> Message:
        answer = PublishAnswer(vectors=3, traffic=MOVED)
        return Message(records.answer_content(answer), reply_to=message)

    @app.query("collect")
    def collected(message: Message, context: object) -> Message:
        answer = CollectAnswer(complete=True, missing=0, missing_peers=0, traffic=MOVED)
        return Message(records.answer_content(answer), reply_to=message)

    made = grid(app, 1, {})
    policy = WaitPolicy(timeout_s=20.0, clients_return=returns)
    messenger = Messenger(made, ledger=TrafficLedger(), policy=policy)
    messenger.introduce({0: 2}, attempt=1)
    hellos = {0: hello_of(0, vectors_out=3)}
    return messenger, Clients(hellos=hellos, policy=policy, ledger=messenger.ledger), made


@pytest.mark.parametrize(("returns", "times"), [(True, 1), (False, 2)])
def test_an_agent_tells_sums_and_a_local_client_what_is_new(returns: bool, times: int) -> None:
    messenger, clients, _ = _messenger(returns=returns)
    for _ in range(2):
        published = messenger.run(publish(clients, PublishRequest(ticket=TICKET), [0]))
        assert {client: answer.vectors for client, answer in published.items()} == {0: 3}
        assert messenger.run(collect(clients, CollectRequest(ticket=TICKET), [0])) == {0: None}
    for direction in ("out", "in"):
        for kind, volume in (("boundary", MOVED.boundary), ("control", MOVED.control)):
            wanted = {"purpose": "exchange", "direction": direction, "kind": kind}
            assert messenger.ledger.sum(**wanted).payload == times * volume.payload
            assert messenger.ledger.sum(**wanted).wire == times * (volume.wire or 0)


def test_a_client_is_held_to_what_it_said_of_each_exchange() -> None:
    hello = hello_of(0, vectors_out=3, vectors_later=(2, 0))
    for stage, vectors in enumerate((3, 2, 0)):
        check_published(hello, PublishAnswer(vectors=vectors, traffic=MOVED), stage=stage)
        with pytest.raises(
            RemoteProtocolError, match=f"vectors is {vectors + 1}; expected {vectors}"
        ):
            check_published(hello, PublishAnswer(vectors=vectors + 1, traffic=MOVED), stage=stage)


def test_a_message_that_nobody_takes_is_not_counted() -> None:
    messenger, clients, grid = _messenger(returns=True, grid=NodelessGrid)
    grid.weather.away = {2}
    looks: list[None] = []

    def come_back() -> None:
        looks.append(None)
        if len(looks) > 2:
            grid.weather.away.clear()

    grid.on_look = come_back
    messenger.run(publish(clients, PublishRequest(ticket=TICKET), [0]))
    assert messenger.ledger.sum(purpose="publish", direction="in").messages == 1
