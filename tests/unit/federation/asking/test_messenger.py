from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from retexo_fl.client.api import HelloRequest, Ticket
from retexo_fl.config import Scalar
from retexo_fl.errors import ConfigurationError, RoundIncomplete
from retexo_fl.federation import records
from retexo_fl.federation.asking import Ask, Messenger, WaitPolicy
from retexo_fl.ledger import TrafficLedger
from retexo_fl.simulation.inline_grid import InlineGrid
from tests.support.hand_clock import HandClock

TICKET = Ticket(job="job-1", attempt=1)
HELLO = HelloRequest(ticket=TICKET)


def echo_app(calls: list[int]) -> ClientApp:
    app = ClientApp()

    @app.query("hello")
    def hello(message: Message, context: object) -> Message:
        calls.append(message.metadata.dst_node_id)
        record = ConfigRecord({"node": message.metadata.dst_node_id})
        return Message(RecordDict({"retexo": record}), reply_to=message)

    return app


class LateGrid(InlineGrid):
    """Answers some nodes late or never, and later messages before earlier ones."""

    silent: frozenset[int] = frozenset()
    looks = 0

    def pull_messages(self, message_ids: object) -> list[Message]:
        self.looks += 1
        names = [n for n in reversed(list(message_ids)) if n in self._waiting]  # type: ignore[call-overload]
        heard = [n for n in names if self._waiting[n].metadata.dst_node_id not in self.silent]
        return list(super().pull_messages(heard[:1])) if self.looks % 2 == 0 else []


def messenger(grid: InlineGrid, timeout_s: float = 50.0) -> Messenger:
    policy = WaitPolicy(timeout_s=timeout_s)
    made = Messenger(grid, ledger=TrafficLedger(), policy=policy, clock=HandClock())
    made.introduce({client: client + 2 for client in range(4)}, attempt=1)
    return made


def replies(
    asked: Messenger, clients: Iterable[int], *, stage: int = -1, purpose: str = "hello"
) -> Iterator[tuple[int, Message]]:
    wanted = Ask.of(clients, HELLO, stage=stage, purpose=purpose)
    return asked.replies(wanted, asked.questions(wanted))


def test_ask_yields_in_the_order_asked_however_replies_arrive() -> None:
    asked = messenger(LateGrid(echo_app([]), 4, {}))
    answers = list(replies(asked, [2, 0, 3, 1]))
    assert [client for client, _ in answers] == [2, 0, 3, 1]
    nodes = [reply.content.config_records["retexo"]["node"] for _, reply in answers]
    assert nodes == [4, 2, 5, 3]


def test_ask_runs_a_client_only_when_its_answer_is_wanted() -> None:
    calls: list[int] = []
    asked = messenger(InlineGrid(echo_app(calls), 4, {}))
    answers = replies(asked, range(4))
    next(answers)
    assert calls == [2]


def test_ask_gives_up_by_name_when_its_time_is_over() -> None:
    grid = LateGrid(echo_app([]), 4, {})
    grid.silent = frozenset({4})
    asked = messenger(grid, timeout_s=20.0)
    with pytest.raises(RoundIncomplete, match="no answer from client 2 within 20 s"):
        list(replies(asked, range(4)))


class HerdGrid(InlineGrid):
    """Is silent for two seconds; then answers come a third of a second after each other."""

    def __init__(self, clock: HandClock) -> None:
        super().__init__(echo_app([]), 4, {})
        self._clock = clock
        self._next_s = clock.time_s + 2.0
        self.pauses_before: list[int] = []

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        if self._clock.time_s < self._next_s:
            return []
        self.pauses_before.append(len(self._clock.pauses_s))
        self._next_s = self._clock.time_s + 1 / 3
        return list(super().pull_messages([*message_ids][:1]))


def test_where_one_answer_has_come_others_are_looked_for_soon() -> None:
    clock = HandClock()
    grid = HerdGrid(clock)
    asked = Messenger(grid, ledger=TrafficLedger(), policy=WaitPolicy(timeout_s=500.0), clock=clock)
    asked.introduce({client: client + 2 for client in range(4)}, attempt=1)
    assert len(list(replies(asked, range(4)))) == 4
    first_s, longest_s = clock.pauses_s[0], max(clock.pauses_s)
    assert first_s < longest_s
    assert {clock.pauses_s[count] for count in grid.pauses_before[:-1]} == {first_s}


def test_hello_gives_up_and_says_how_many_came() -> None:
    asked = messenger(InlineGrid(echo_app([]), 4, {}), timeout_s=10.0)
    answers = asked.ask_whoever_comes(HELLO, count=5, purpose="hello")
    with pytest.raises(RoundIncomplete, match="clients connected: 4 of 5 after 10 s"):
        list(answers)


def test_wait_for_first_answers_names_who_is_missing(caplog: pytest.LogCaptureFixture) -> None:
    grid = InlineGrid(echo_app([]), 4, {})
    policy = WaitPolicy(timeout_s=100.0, clients_return=True)
    asked = Messenger(grid, ledger=TrafficLedger(), policy=policy, clock=HandClock())
    answers = asked.ask_whoever_comes(HELLO, count=5, purpose="hello", missing=lambda: "client 4")
    with pytest.raises(RoundIncomplete, match="4 of 5 after 100 s .*; missing: client 4$"):
        list(answers)
    told = [record.message for record in caplog.records]
    assert told[0] == "waiting for hello: clients connected: 4 of 5 so far; missing: client 4"


def test_ask_counts_both_ways() -> None:
    ledger = TrafficLedger()
    grid = InlineGrid(echo_app([]), 4, {})
    asked = Messenger(grid, ledger=ledger, policy=WaitPolicy(timeout_s=5.0))
    asked.introduce({0: 2}, attempt=3)
    list(replies(asked, [0]))
    lines = {(account.direction, account.attempt): volume for account, volume in ledger.lines()}
    assert lines[("out", 3)].payload == len("node") + 8
    assert lines[("in", 3)].payload > 0


def test_client_app_without_partition_id_is_named() -> None:
    from flwr.app import Context

    from retexo_fl.federation.client_handlers import client_index

    context = Context(run_id=1, node_id=9, node_config={}, state=RecordDict(), run_config={})
    with pytest.raises(ConfigurationError, match="node 9 has neither an agent nor a partition-id"):
        client_index(context)


def test_every_answer_is_told_to_those_who_show_progress() -> None:
    told: list[tuple[int, str]] = []
    grid = InlineGrid(echo_app([]), 4, {})
    asked = Messenger(
        grid,
        ledger=TrafficLedger(),
        policy=WaitPolicy(timeout_s=5.0),
        on_answer=lambda *step: told.append(step),
    )
    asked.introduce({client: client + 2 for client in range(4)}, attempt=1)
    answers = replies(asked, range(3), stage=1, purpose="publish")
    next(answers)
    assert told == [(1, "publish")]
    list(answers)
    assert told == [(1, "publish")] * 3


class CountingGrid(InlineGrid):
    """Counts the messages that it is asked about, and the nodes that it names."""

    looked_at = 0
    named = 0

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        wanted = list(message_ids)
        self.looked_at += len(wanted)
        return super().pull_messages(wanted)

    def get_node_ids(self) -> Iterable[int]:
        nodes = list(super().get_node_ids())
        self.named += len(nodes)
        return nodes


@pytest.mark.parametrize("clients", [100, 400])
def test_a_question_is_linear_in_the_clients_of_a_process(clients: int) -> None:
    grid = CountingGrid(echo_app([]), clients, {})
    made = messenger(grid)
    came = list(made.ask_whoever_comes(HELLO, count=clients, purpose="hello"))
    assert len(came) == clients
    made.introduce({client: client + 2 for client in range(clients)}, attempt=1)
    assert len(list(replies(made, range(clients)))) == clients
    assert grid.looked_at < 70 * clients
    assert grid.named <= 2 * clients


def test_a_request_to_many_clients_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[object] = []
    real = records.request_content

    def counted(
        request: HelloRequest, first: Sequence[HelloRequest], *, settled: Mapping[str, Scalar]
    ) -> RecordDict:
        written.append(request)
        return real(request, first, settled=settled)

    monkeypatch.setattr(records, "request_content", counted)
    made = messenger(InlineGrid(echo_app([]), 4, {}))
    other = HelloRequest(ticket=TICKET)
    asked = Ask(requests={0: HELLO, 1: HELLO, 2: other, 3: HELLO}, stage=-1, purpose="hello")
    assert len(made.questions(asked)) == 4
    assert len(written) == 2
