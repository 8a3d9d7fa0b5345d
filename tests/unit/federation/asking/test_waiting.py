"""The server looks at an open exchange less and less often, and survives clients that are away."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace

import pytest
from flwr.app import Message
from flwr.clientapp import ClientApp

from retexo_fl.client import api
from retexo_fl.client.api import (
    CollectAnswer,
    CollectRequest,
    PublishAnswer,
    PublishRequest,
    Ticket,
)
from retexo_fl.client.peering import relay_answer
from retexo_fl.config import make_config
from retexo_fl.errors import ExchangeIncomplete, RoundIncomplete
from retexo_fl.federation import records
from retexo_fl.federation.asking import (
    Clock,
    Messenger,
    OpenExchange,
    Pauses,
    Wait,
    WaitPolicy,
    Watch,
)
from retexo_fl.federation.rounds.clients import Clients
from retexo_fl.federation.rounds.exchange import Exchanged, exchange_rows
from retexo_fl.ledger import Traffic, TrafficLedger
from tests.support.fickle_grid import FickleGrid
from tests.support.hand_clock import HandClock
from tests.support.promises import hello_of

DAY_S = 86_400.0
TICKET = Ticket(job="job-0123456789ab", attempt=1, weights_digest=bytes(32))


def test_pauses_grow_with_the_exchange_and_end_at_its_deadline() -> None:
    clock = HandClock()
    made: Clock = clock
    wait = Wait(
        made,
        timeout_s=7 * DAY_S,
        pauses=Pauses(first_s=0.2, share=0.25, longest_s=60.0),
        longest_report_gap_s=3600.0,
    )
    told_s = []
    while not wait.is_over:
        if wait.is_report_due():
            told_s.append(wait.elapsed_s)
        wait.pause()
    assert clock.pauses_s[0] == 0.2
    assert clock.time_s - 1000.0 == pytest.approx(7 * DAY_S)
    open_s = 0.0
    for pause_s in clock.pauses_s[:-1]:
        assert pause_s == pytest.approx(min(max(0.2, open_s / 4), 60.0))
        open_s += pause_s
    # A look a minute, and some at the beginning.
    assert len(clock.pauses_s) < 7 * 24 * 60 + 40
    gaps_s = [later - sooner for sooner, later in itertools.pairwise(told_s)]
    assert 30.0 <= told_s[0] < 45.0
    assert max(gaps_s) <= 3600.0 + 60.0
    assert len(told_s) < 7 * 24 + 10


@dataclass(slots=True)
class _Clients:
    """Clients that lack vectors until a time, over a grid whose machines come and go."""

    clock: HandClock = field(default_factory=HandClock)
    lacks: dict[int, int] = field(default_factory=dict)
    closed: list[int] = field(default_factory=list)
    grid: FickleGrid = field(init=False)
    messenger: Messenger = field(init=False)
    timeout_s: float = 30.0
    has_parcels: bool = False

    def __post_init__(self) -> None:
        app = ClientApp()

        @app.query("publish")
        def published(message: Message, context: object) -> Message:
            answer = PublishAnswer(vectors=3, traffic=Traffic())
            return Message(records.answer_content(answer), reply_to=message)

        @app.query("collect")
        def collected(message: Message, context: object) -> Message:
            client = message.metadata.dst_node_id - 2
            missing = self.lacks.get(client, 0)
            request = records.read_request(message)
            assert isinstance(request, CollectRequest)
            if request.close:
                self.closed.append(client)
            answer = CollectAnswer(
                complete=not missing, missing=missing, missing_peers=1, traffic=Traffic()
            )
            return Message(records.answer_content(answer), reply_to=message)

        @app.query("relay")
        def relayed(message: Message, context: object) -> Message:
            self.clock.time_s += 1.0
            parcels = (
                [(1, b"again")] if self.has_parcels and message.metadata.dst_node_id == 2 else []
            )
            return Message(records.answer_content(relay_answer(parcels)), reply_to=message)

        self.grid = FickleGrid(app, 3, {})
        self.messenger = Messenger(
            self.grid,
            ledger=TrafficLedger(),
            policy=WaitPolicy(timeout_s=self.timeout_s, clients_return=True),
            clock=self.clock,
        )
        self.messenger.introduce({client: client + 2 for client in range(3)}, attempt=1)

    def run(self, told: list[OpenExchange], **keys: object) -> Exchanged:
        values = {"engine": "deployment", "clients": 3, **keys}
        clients = Clients(
            hellos={client: hello_of(client, vectors_out=3) for client in range(3)},
            policy=self.messenger.policy,
            ledger=self.messenger.ledger,
        )
        return self.messenger.run(
            exchange_rows(
                clients,
                PublishRequest(ticket=TICKET),
                config=make_config(values),
                watch=Watch(clock=self.clock, on_wait=told.append),
            )
        )


@pytest.mark.parametrize("how", ["away", "mute"])
def test_client_away_beyond_a_messages_life_ends_no_exchange(how: str) -> None:
    clients = _Clients(lacks={0: 5})
    told: list[OpenExchange] = []
    begun_s = clients.clock.time_s

    def weather() -> None:
        gone = clients.grid.weather.away if how == "away" else clients.grid.weather.mute
        gone.clear()
        # Two lives of a message.
        if clients.clock.pauses_s and clients.clock.time_s - begun_s < 2.5 * clients.timeout_s:
            gone.add(3)
        elif clients.clock.pauses_s:
            clients.lacks.clear()

    clients.lacks[1] = 7
    clients.grid.on_look = weather
    exchanged = clients.run(told, **{"exchange-deadline-s": 9 * DAY_S})
    assert exchanged == Exchanged(vectors=9, missing=0, closed=frozenset({0, 1, 2}))
    assert clients.clock.time_s - begun_s > 2 * clients.timeout_s


def test_it_is_told_who_lacks_how_many_and_who_does_not_answer() -> None:
    clients = _Clients(lacks={0: 5, 2: 1}, timeout_s=20.0)
    told: list[OpenExchange] = []

    def weather() -> None:
        # Away from the exchange's beginning on: it has published before.
        if clients.clock.pauses_s or clients.grid.sent[-1][1].metadata.message_type == (
            api.COLLECT.message_type
        ):
            clients.grid.weather.mute = {3}
        if clients.clock.time_s > 1000.0 + 2 * DAY_S:
            clients.lacks.clear()
            clients.grid.weather.mute = set()

    clients.grid.on_look = weather
    clients.run(told, **{"exchange-deadline-s": 9 * DAY_S, "exchange-poll-s": DAY_S / 2})
    assert told
    assert {tuple(exchange.lacks.items()) for exchange in told} == {((0, 5), (1, None), (2, 1))}
    assert all(exchange.stage == 0 and exchange.open_s >= 30.0 for exchange in told)


def test_deadline_of_days_ends_by_policy() -> None:
    clients = _Clients(lacks={1: 4})
    keys = {"exchange-deadline-s": 9 * DAY_S, "exchange-poll-s": 3600.0}
    with pytest.raises(ExchangeIncomplete, match=r"after 777600 s .*: client 1 lacks 4;"):
        clients.run([], **keys)
    assert clients.clock.time_s == pytest.approx(1000.0 + 9 * DAY_S)
    dropped = _Clients(lacks={1: 4})
    exchanged = dropped.run([], **keys, **{"missing-peers": "drop"})
    assert exchanged.missing == 4
    assert dropped.closed == [1]


def test_who_does_not_answer_after_the_deadline_is_named() -> None:
    clients = _Clients(lacks={1: 4})

    def weather() -> None:
        if clients.clock.time_s > 1000.0 + 60.0:
            clients.grid.weather.mute = {4}

    clients.grid.on_look = weather
    with pytest.raises(RoundIncomplete, match="no answer from client 2 within"):
        clients.run([], **{"exchange-deadline-s": 120.0, "missing-peers": "drop"})


def test_relayed_exchange_ends_though_there_are_parcels_for_ever() -> None:
    clients = _Clients(lacks={1: 4}, has_parcels=True)
    with pytest.raises(ExchangeIncomplete, match="after 60 s .*: client 1 lacks 4;"):
        clients.run([], **{"exchange-deadline-s": 60.0, "relay": True})
    assert clients.clock.time_s <= 1000.0 + 60.0 + 3.0


def test_relay_is_not_left_to_other_runs() -> None:
    clients = _Clients(lacks={1: 4})
    with pytest.raises(ExchangeIncomplete):
        clients.run([], **{"exchange-deadline-s": 600.0, "relay": True})
    assert max(clients.clock.pauses_s) == 10.0


def test_nobody_has_to_answer_a_look_in_a_deployment_only() -> None:
    simulated = WaitPolicy(timeout_s=100.0)
    assert simulated.with_answers_optional(5.0) == simulated
    quorum = WaitPolicy(timeout_s=100.0, clients_return=True, quorum=2, deadline_s=7.0)
    assert quorum.with_answers_optional(5.0) == quorum
    deployed = replace(simulated, clients_return=True)
    for within_s, closed_s in ((5.0, 5.0), (1e6, 100.0)):
        look = deployed.with_answers_optional(within_s)
        assert look.may_close_early
        assert look.deadline_s == closed_s
        assert look.timeout_s > look.deadline_s
