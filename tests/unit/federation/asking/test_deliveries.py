"""Clients of a deployment whose machines go away and come back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from retexo_fl.client.api import HelloRequest, Ticket
from retexo_fl.errors import (
    AgentUnreachable,
    CheckpointError,
    ClientFailed,
    RemoteProtocolError,
    RoundIncomplete,
)
from retexo_fl.federation import records
from retexo_fl.federation.asking import Ask, Messenger, Silence, Wait, WaitPolicy
from retexo_fl.ledger import TrafficLedger
from tests.support.fickle_grid import FickleGrid
from tests.support.hand_clock import HandClock

TICKET = Ticket(job="job-1", attempt=2, stage=1, round=3)


def grid_of(clients: int, kind: type[FickleGrid] = FickleGrid) -> FickleGrid:
    app = ClientApp()

    @app.query("hello")
    def hello(message: Message, context: object) -> Message:
        record = ConfigRecord({"node": message.metadata.dst_node_id})
        return Message(RecordDict({"retexo": record}), reply_to=message)

    return kind(app, clients, {})


def messenger(
    grid: FickleGrid,
    timeout_s: float = 500.0,
    clock: HandClock | None = None,
    on_silence: Callable[[Silence], None] = lambda silence: None,
    **policy: float,
) -> Messenger:
    wanted = WaitPolicy(timeout_s=timeout_s, clients_return=True, **policy)  # type: ignore[arg-type]
    made = Messenger(
        grid,
        ledger=TrafficLedger(),
        policy=wanted,
        on_silence=on_silence,
        clock=clock or HandClock(),
    )
    made.introduce({client: client + 2 for client in range(3)}, attempt=1)
    return made


def ask(asked: Messenger, clients: range = range(3)) -> list[int]:
    wanted = Ask.of(clients, HelloRequest(ticket=TICKET), stage=1, purpose="train")
    return [client for client, _ in asked.replies(wanted, asked.questions(wanted))]


@pytest.mark.parametrize("code", [3, 4, 5, 8])
def test_client_that_was_away_is_asked_again(code: int) -> None:
    grid = grid_of(3)
    grid.weather.errors = {3: [code, code]}
    assert ask(messenger(grid)) == [0, 1, 2]
    names = [node for node, _ in grid.sent]
    assert sorted(names) == [2, 3, 3, 3, 4]


@pytest.mark.parametrize("told", ["left out", "gap", "nothing at all"])
def test_message_that_flower_does_not_take_is_sent_again(told: str) -> None:
    refused = {"left out": {3}, "gap": {3}, "nothing at all": {2, 3, 4}}[told]

    class RefusingGrid(FickleGrid):
        def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
            sent = list(messages)
            taken = [item for item in sent if item.metadata.dst_node_id not in refused]
            ids = [*super().push_messages(taken)]
            if told == "gap" and refused:
                ids.insert(1, "")
            refused.clear()
            return ids

    grid = grid_of(3, RefusingGrid)
    asked = messenger(grid)
    assert ask(asked) == [0, 1, 2]
    assert sorted(node for node, _ in grid.sent) == [2, 3, 4]
    # What was not taken is not counted.
    assert asked.ledger.sum(direction="in").messages == 3


def test_client_is_not_asked_before_its_node_is_back() -> None:
    grid = grid_of(3)
    grid.weather.away = {3}
    clock = HandClock()

    def come_back() -> None:
        if clock.time_s > 1000.0 + 30.0:
            grid.weather.away.clear()

    grid.on_look = come_back
    assert ask(messenger(grid, clock=clock)) == [0, 1, 2]
    again = [message for node, message in grid.sent if node == 3]
    assert len(again) == 2
    assert again[1].metadata.ttl < again[0].metadata.ttl
    assert again[1].metadata.group_id == again[0].metadata.group_id == "2.1.3"


def test_a_client_that_stays_away_is_asked_less_and_less_often() -> None:
    grid = grid_of(3)
    clock = HandClock()
    grid.weather.errors = {3: [3] * 9}
    asked_s: list[float] = []

    def look() -> None:
        if sum(node == 3 for node, _ in grid.sent) > len(asked_s):
            asked_s.append(clock.time_s)

    grid.on_look = look
    assert ask(messenger(grid, clock=clock)) == [0, 1, 2]
    gaps_s = [after - before for before, after in pairwise(asked_s)]
    for gap_s, least_s in zip(gaps_s, (1, 2, 4, 8, 16, 30, 30, 30, 30), strict=True):
        assert least_s <= gap_s < least_s + 5


@pytest.mark.parametrize("returns", [True, False])
def test_a_wait_is_reported_ever_less_often_if_clients_return(returns: bool) -> None:
    clock = HandClock()
    wait = Wait.for_answers(clock, WaitPolicy(timeout_s=1e6, clients_return=returns))
    reported_s = []
    for second in range(200):
        clock.time_s = 1000.0 + second
        if wait.is_report_due():
            reported_s.append(second)
    assert reported_s == ([30, 90] if returns else [])


def test_silent_clients_are_all_named_with_what_is_known_of_them() -> None:
    grid = grid_of(3)
    grid.weather.away, grid.weather.mute = {4}, {2}
    sentence = (
        r"no answer from client 0, client 2 \(.*not connected\) .*20 s "
        r"\(message-timeout-s\)"
    )
    with pytest.raises(RoundIncomplete, match=sentence):
        ask(messenger(grid, timeout_s=20.0))


@pytest.mark.parametrize("code", [1, 2, 7])
def test_client_app_that_raised_is_an_error_at_once(code: int) -> None:
    grid = grid_of(3)
    grid.weather.errors = {3: [code]}
    with pytest.raises(ClientFailed, match=f"client 1: made by a test: {code}"):
        ask(messenger(grid))


@pytest.mark.parametrize("quorum", [{}, {"quorum": 2, "deadline_s": 100.0}])
def test_failure_is_raised_though_clients_before_it_are_silent(quorum: dict[str, Any]) -> None:
    """They may wait for the one that failed."""
    grid, clock = grid_of(3), HandClock()
    grid.weather.mute = {2}

    def replace(message: Message, reply: Message) -> Message:
        if message.metadata.dst_node_id == 3:
            return Message(records.failure_content(CheckpointError("lost")), reply_to=message)
        return reply

    grid.weather.replace = replace
    begun_s = clock.now_s()
    with pytest.raises(CheckpointError, match="^client 1: lost"):
        ask(messenger(grid, clock=clock, **quorum))
    assert clock.now_s() == begun_s


def test_agent_that_does_not_answer_is_asked_again() -> None:
    grid = grid_of(3)
    left = [AgentUnreachable("no socket"), AgentUnreachable("no socket")]

    def replace(message: Message, reply: Message) -> Message:
        if message.metadata.dst_node_id == 4 and left:
            return Message(records.failure_content(left.pop()), reply_to=message)
        return reply

    grid.weather.replace = replace
    assert ask(messenger(grid)) == [0, 1, 2]
    assert not left


def test_answer_to_another_round_is_refused() -> None:
    grid = grid_of(3)

    def replace(message: Message, reply: Message) -> Message:
        reply.metadata.__dict__["_group_id"] = "2.1.2"
        return reply

    grid.weather.replace = replace
    with pytest.raises(RemoteProtocolError, match=r"client 0: .*'2\.1\.2'; expected .*'2\.1\.3'"):
        ask(messenger(grid))


def test_enough_clients_close_a_question_at_its_deadline() -> None:
    grid = grid_of(3)
    grid.weather.mute = {3}
    asked = messenger(grid, quorum=2, deadline_s=10.0)
    assert ask(asked) == [0, 2]


def test_too_few_clients_are_waited_for_beyond_the_deadline() -> None:
    grid = grid_of(3)
    grid.weather.mute = {3, 4}
    clock = HandClock()

    def come_back() -> None:
        if clock.time_s > 1000.0 + 30.0:
            grid.weather.mute = {3}

    grid.on_look = come_back
    asked = messenger(grid, clock=clock, quorum=2, deadline_s=5.0)
    assert ask(asked) == [0, 2]


def test_too_few_clients_fail_a_question_at_last() -> None:
    grid = grid_of(3)
    grid.weather.mute = {3, 4}
    with pytest.raises(RoundIncomplete, match="no answer from client 1, client 2 within"):
        ask(messenger(grid, timeout_s=20.0, quorum=2, deadline_s=5.0))


def test_late_answer_is_not_read_and_its_client_is_asked_anew() -> None:
    grid = grid_of(3)
    grid.weather.mute = {3}
    asked = messenger(grid, quorum=2, deadline_s=5.0)
    ask(asked)
    late = [message for node, message in grid.sent if node == 3]
    assert ask(asked) == [0, 2]
    # Still busy with the first question: a second one would wait behind it.
    assert [message for node, message in grid.sent if node == 3] == late
    grid.weather.mute = set()
    assert ask(asked) == [0, 1, 2]
    assert len([message for node, message in grid.sent if node == 3]) == 2


def test_silence_is_told() -> None:
    grid = grid_of(3)
    told: list[Silence] = []
    grid.weather.mute = {3, 4}
    asked = messenger(grid, timeout_s=100.0, on_silence=told.append)
    with pytest.raises(RoundIncomplete):
        ask(asked)
    assert told[0].clients == (1, 2)
    assert (told[0].question.stage, told[0].question.round) == (1, 3)


def test_hello_takes_who_comes_late_and_skips_nodes_that_left() -> None:
    grid = grid_of(4)
    grid.weather.away = {2}
    asked = messenger(grid)

    def change() -> None:
        if len(grid.sent) >= 3:
            grid.weather.away = {3}

    grid.weather.mute = {3}
    grid.on_look = change
    answers = asked.ask_whoever_comes(HelloRequest(ticket=TICKET), count=3, purpose="hello")
    assert sorted(node for node, _ in answers) == [2, 4, 5]


class LateGrid(FickleGrid):
    """Each node sends an answer with the next message that it gets: Flower's, after a bad moment.

    Attributes:
        late: Nodes that do.
        nudges: Nudges, by node.
    """

    late: frozenset[int] = frozenset()

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.nudges: list[int] = []
        self.held: set[str] = set()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        sent = list(messages)
        ids = [*super().push_messages(sent)]
        for name, message in zip(ids, sent, strict=True):
            node = message.metadata.dst_node_id
            if message.metadata.message_type == records.NUDGE:
                self.nudges.append(node)
                assert message.metadata.ttl < 15
            self.held -= {
                held for held in self.held if self._waiting[held].metadata.dst_node_id == node
            }
            if node in self.late:
                self.held.add(name)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        self.on_look()
        return super().pull_messages(name for name in message_ids if name not in self.held)


def test_a_client_that_answers_one_message_late_is_sent_another() -> None:
    grid = grid_of(3, LateGrid)
    assert isinstance(grid, LateGrid)
    grid.late = frozenset({3})
    clock = HandClock()
    asked = messenger(grid, clock=clock)
    took_s = []
    for _ in range(4):
        begun_s = clock.now_s()
        assert ask(asked) == [0, 1, 2]
        took_s.append(clock.now_s() - begun_s)
    # Nobody else is nudged, and the one that needs it sooner each time.
    assert {*grid.nudges} == {3}
    assert took_s == pytest.approx([15, 7.5, 4, 4], abs=1)
    assert asked.waited_s == pytest.approx(sum(took_s))
    # What holds nothing is counted nowhere.
    assert asked.ledger.sum(direction="in").messages == 12


def test_a_client_that_computes_is_nudged_ever_less_often() -> None:
    grid = grid_of(1, LateGrid)
    assert isinstance(grid, LateGrid)
    grid.weather.mute = {2}
    clock = HandClock()
    begun_s, times = clock.now_s(), list[float]()

    def note() -> None:
        while len(times) < len(grid.nudges):
            times.append(clock.now_s())
        if clock.now_s() > begun_s + 300:
            grid.weather.mute = set()

    grid.on_look = note
    assert ask(messenger(grid, clock=clock), range(1)) == [0]
    gaps = [after - before for before, after in pairwise([begun_s, *times])]
    assert gaps == pytest.approx([15, 30, 60, 120], abs=1)
