"""Runs rounds: sends messages to clients and returns their answers in client order."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import chain
from typing import Any, Final
from weakref import ref

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from retexo_fl.client.api import Request, answer_class, question_of
from retexo_fl.config import Scalar
from retexo_fl.errors import RoundIncomplete
from retexo_fl.federation import records
from retexo_fl.federation.asking.ask import Answers, Ask, Round, T, Wrapper, named
from retexo_fl.federation.asking.bounded_grid import BoundedGrid
from retexo_fl.federation.asking.deliveries import Deliveries, Delivery, Post
from retexo_fl.federation.asking.ray_nodes import RayNodes
from retexo_fl.federation.asking.simulated_grid import with_messages_by_node
from retexo_fl.federation.asking.waiting import (
    THIS_MACHINE,
    Clock,
    Question,
    Silence,
    Wait,
    WaitPolicy,
)
from retexo_fl.federation.records import content_volumes
from retexo_fl.ledger import SERVER, Account, TrafficLedger, Volume
from retexo_fl.units import client_named

logger = logging.getLogger(__name__)

#: Replies that may be held because an earlier one has not come; bounds the server's memory.
REPLIES_AHEAD: Final = 32
#: Accounts of a round are those of the round before: made once for a thousand clients.
_account: Final = lru_cache(maxsize=2**12)(Account)


class Messenger:
    """Addresses clients by index, counts what passes, and waits no longer than its policy allows.

    Args:
        grid: The way to the clients' Flower nodes.
        ledger: Counts every message.
        policy: How long answers are waited for, and of how many clients.
        on_answer: Called with stage and purpose at every reply, for those who show progress.
        on_silence: Called every 30 s while a question waits for clients on other machines.
        on_superlink: As in :class:`.BoundedGrid`.
        clock: The time by which it waits.
    """

    def __init__(
        self,
        grid: Grid,
        *,
        ledger: TrafficLedger,
        policy: WaitPolicy,
        on_answer: Callable[[int, str], None] = lambda stage, purpose: None,
        on_silence: Callable[[Silence], None] = lambda silence: None,
        on_superlink: Callable[[bool], None] = lambda answers: None,
        clock: Clock = THIS_MACHINE,
    ) -> None:
        self._clock = clock
        self._post: Post = with_messages_by_node(grid)
        if policy.clients_return:
            self._post = BoundedGrid(grid, on_superlink=on_superlink)
        self._nodes = RayNodes(grid, clock)
        self._ledger = ledger
        self._policy = policy
        self._on_answer = on_answer
        self._on_silence = on_silence
        self._attempt = 1
        self._settled: Mapping[str, Scalar] = {}
        self._node_of: Mapping[int, int] = {}
        self._client_at: Mapping[int, int] = {}
        self._overdue: dict[int, str] = {}
        #: By node, after how long a silence it is nudged.
        self._nudge_s: dict[int, float] = {}
        #: The content that was counted last, and its bytes.
        self._counted: tuple[ref[RecordDict], tuple[Volume, Volume, Volume]] | None = None
        #: Seconds spent waiting for answers, which is where clients compute.
        self.waited_s = 0.0

    @property
    def clients(self) -> Sequence[int]:
        """Indices of all clients of this attempt, ascending."""
        return sorted(self._node_of)

    def wait_at_most(self, timeout_s: float) -> None:
        """Wait so long for the answers to a question."""
        self._policy = replace(self._policy, timeout_s=timeout_s)

    @property
    def ledger(self) -> TrafficLedger:
        """The account of what passes."""
        return self._ledger

    @property
    def policy(self) -> WaitPolicy:
        """How long answers are waited for."""
        return self._policy

    def introduce(self, node_of: Mapping[int, int], attempt: int) -> None:
        """Take over which Flower node each client is, and the attempt that bytes count for."""
        self._node_of, self._attempt = dict(node_of), attempt
        self._client_at = {node: client for client, node in node_of.items()}

    def settle(self, keys: Mapping[str, Scalar]) -> None:
        """Say in every message from now on which keys the run has beside those clients know."""
        self._settled = keys

    def client_at(self, node: int) -> int:
        """Return which client a Flower node is, -1 for a node that is none."""
        return self._client_at.get(node, -1)

    def connected(self) -> Set[int]:
        """Return the clients whose Flower node is connected."""
        nodes = set(self._post.get_node_ids())
        return {client for client, node in self._node_of.items() if node in nodes}

    # ---- rounds ---------------------------------------------------------------------------------

    def run(self, asking: Round[T]) -> T:
        """Carry a round out; return its result.

        Raises:
            RetexoError: As :meth:`answers`, or the round's own.
        """
        return self.go_on(asking, None)

    def go_on(self, asking: Round[T], answers: Answers | None) -> T:
        """Carry a round out from where it has got these answers, or from its beginning if None."""
        while True:
            try:
                ask = next(asking) if answers is None else asking.send(answers)
            except StopIteration as end:
                result: T = end.value
                return result
            answers = self.answers(ask)

    def answers(self, ask: Ask) -> Iterator[tuple[int, Any]]:
        """Ask, then yield (client, answer) by ascending client, as soon as the turn of each comes.

        Raises:
            RoundIncomplete: Answers were missing when the time was over; names the clients.
            RemoteProtocolError: An answer is none; names the client.
            RetexoError: A client's own named failure.
        """
        for client, reply in self.replies(ask, self.questions(ask)):
            yield client, answer_of(ask, client, reply)

    def replies_after(
        self, first: Sequence[Request[Any]], ask: Ask
    ) -> Iterator[tuple[int, list[Any], Message | None]]:
        """Ask, with other requests first in the same messages.

        Yields:
            Client, its answers to those, and its reply: None where the last of its answers leaves
            something open.

        Raises:
            RetexoError: As :meth:`answers`.
        """
        for client, reply in self.replies(ask, self.questions(ask, first), first):
            with named(client):
                before = records.read_answers_first(first, reply)
            yield client, before, None if records.leaves_open(before[-1]) else reply

    def questions(self, ask: Ask, first: Sequence[Request[Any]] = ()) -> list[Message]:
        """Return the messages that ask, in client order, with other requests ``first``."""
        asked = {id(item): item for item in ask.requests.values()}
        contents = {
            name: records.request_content(item, first, settled=self._settled)
            for name, item in asked.items()
        }
        return [
            self._message(self._node_of[client], request, contents[id(request)])
            for client, request in ask.requests.items()
        ]

    # ---- messages -------------------------------------------------------------------------------

    def addressed(self, nodes: Iterable[int], request: Request[Any]) -> list[Message]:
        """Address one request to many Flower nodes; its content is built once and shared."""
        content = records.request_content(request, settled=self._settled)
        return [self._message(node, request, content) for node in nodes]

    def _message(self, node: int, request: Request[Any], content: RecordDict) -> Message:
        ticket = request.ticket
        return Message(
            content,
            dst_node_id=node,
            message_type=question_of(request).message_type,
            ttl=self._policy.timeout_s,
            # Flower copies it to the reply, which is compared with it.
            group_id=f"{ticket.attempt}.{ticket.stage}.{ticket.round}",
        )

    def ask_whoever_comes(
        self,
        request: Request[Any],
        *,
        count: int,
        purpose: str,
        missing: Callable[[], str] = lambda: "",
        useful: Callable[[], int] | None = None,
    ) -> Iterator[tuple[int, Message]]:
        """Ask every node that is connected or becomes so; yield (node, reply) as they come.

        It ends with ``count`` answers, or with enough of them when the deadline is over.

        Args:
            request: What all are asked.
            count: How many clients there must be.
            purpose: For the ledger.
            missing: Names the clients that have not answered, where answers say whose they are.
            useful: Returns how many of the answers count, if not all of them do.

        Raises:
            RoundIncomplete: There were fewer when the time was over.
            RetexoError: A client's own named failure.
        """
        asked = Question(stage=-1, purpose=purpose)
        known: set[int] = set()
        questions: list[Deliveries] = []
        answers, is_quiet = 0, True
        wait = Wait.for_answers(self._clock, self._policy)

        def is_enough(so_far: int) -> bool:
            return self._policy.is_enough(so_far, asked=count, after_s=wait.elapsed_s)

        while answers < count and not (
            is_enough(answers) and (useful is None or is_enough(useful()))
        ):
            looked_s = self._clock.now_s()
            fresh = sorted({*self._post.get_node_ids()} - known) if is_quiet else ()
            if fresh:
                known.update(fresh)
                questions.append(self._deliveries(self.addressed(fresh, request), asked))
            came = [pair for item in questions for pair in item.look(self._ahead(item))]
            is_quiet = not came
            if is_quiet:
                so_far = _so_far(purpose, len(known), answers, count)
                self._check_time(wait, purpose, so_far, missing)
                if not self._policy.clients_return:
                    self._nodes.look(wait.silent_s, partial(str, so_far))
                wait.pause()
            self.waited_s += self._clock.now_s() - looked_s
            for delivery, reply in came:
                answers += 1
                self.count(reply, delivery.client, asked, "out")
                self._on_answer(asked.stage, asked.purpose)
                yield delivery.node, reply

    def _ahead(self, question: Deliveries) -> int | None:
        """Return which deliveries to look at: all, or on this machine, where all are there, few."""
        return None if self._policy.clients_return else question.first + REPLIES_AHEAD

    def replies(
        self, ask: Ask, messages: Sequence[Message], first: Sequence[Request[Any]] = ()
    ) -> Iterator[tuple[int, Message]]:
        """Send messages, then yield (client, reply) in the order in which they were given.

        Replies are yielded as soon as their turn comes, so that their consumer need not hold
        them all. Where the policy has a quorum, they come when all have answered or
        the deadline is over.

        Args:
            ask: What is asked.
            messages: One for each client; made with :meth:`questions`.
            first: What precedes the request in each message.

        Raises:
            RoundIncomplete: Replies were missing when the time was over; names the clients.
            RetexoError: A client's own named failure.
        """
        asked = Question(
            stage=ask.stage,
            purpose=ask.purpose,
            round=max((request.ticket.round for request in ask.requests.values()), default=0),
            first=tuple(question_of(request).name for request in first),
        )
        begun_s = self._clock.now_s()
        question = self._deliveries(messages, asked)
        self.waited_s += self._clock.now_s() - begun_s
        policy = self._policy
        if ask.within_s is not None:
            policy = policy.with_answers_optional(ask.within_s)
        replies = (
            self._until_closed(question, asked, ask, policy)
            if policy.may_close_early
            else self._one_by_one(question, asked)
        )
        for delivery, reply in replies:
            self.count(reply, delivery.client, asked, "out")
            self._on_answer(asked.stage, asked.purpose)
            yield delivery.client, reply

    def _deliveries(self, messages: Sequence[Message], asked: Question) -> Deliveries:
        deliveries = [
            Delivery(message=item, client=self.client_at(item.metadata.dst_node_id), place=place)
            for place, item in enumerate(messages)
        ]
        nodes = [delivery.node for delivery in deliveries]
        return Deliveries(
            self._post,
            deliveries,
            policy=self._policy,
            overdue={n: self._overdue.pop(n) for n in nodes if n in self._overdue},
            nudge_s=self._nudge_s,
            on_send=lambda delivery: self.count(delivery.message, delivery.client, asked, "in"),
            clock=self._clock,
        )

    def _one_by_one(
        self, question: Deliveries, asked: Question
    ) -> Iterator[tuple[Delivery, Message]]:
        """Yield all answers in order, as soon as their turn comes."""
        arrived: dict[int, tuple[Delivery, Message]] = {}
        wait = Wait.for_answers(self._clock, self._policy)
        for place in range(len(question.open)):
            while place not in arrived:
                came = self._look(question, asked, wait, before=place + REPLIES_AHEAD)
                arrived |= {delivery.place: (delivery, reply) for delivery, reply in came}
            yield arrived.pop(place)

    def _until_closed(
        self, question: Deliveries, asked: Question, ask: Ask, policy: WaitPolicy
    ) -> Iterator[tuple[Delivery, Message]]:
        """Yield the answers in order that came before the question was closed."""
        arrived: list[tuple[Delivery, Message]] = []
        wanted = {delivery.client for delivery in question.open}
        wanted = wanted if ask.counted is None else wanted & ask.counted
        wait = Wait.for_answers(self._clock, policy)
        answered: set[int] = set()
        for_all = len(question.open)
        while len(arrived) < for_all:
            useful = {*chain(*_whole(ask.cohorts, answered))} if ask.cohorts else answered
            count = len(wanted & useful)
            if policy.is_enough(count, asked=len(wanted), after_s=wait.elapsed_s):
                break
            came = self._look(question, asked, wait, before=None)
            answered.update(delivery.client for delivery, _ in came)
            arrived += came
        self._overdue |= question.overdue
        yield from sorted(arrived, key=lambda pair: pair[0].place)

    def _look(
        self, question: Deliveries, asked: Question, wait: Wait, *, before: int | None
    ) -> list[tuple[Delivery, Message]]:
        """Look for answers once, and rest where there were none."""
        looked_s = self._clock.now_s()
        came = question.look(before)
        if came:
            wait.note_news()
        elif wait.is_over:
            came = self._last_look(question)
        else:
            if not self._policy.clients_return:
                self._nodes.look(wait.silent_s, lambda: client_named(question.open[0].client))
            if wait.is_report_due():
                clients = tuple(sorted(delivery.client for delivery in question.open))
                self._on_silence(Silence(question=asked, clients=clients))
            wait.pause()
        self.waited_s += self._clock.now_s() - looked_s
        return came

    def _last_look(self, question: Deliveries) -> list[tuple[Delivery, Message]]:
        """Return what has come by the end of the time.

        Raises:
            RoundIncomplete: Answers are missing.
        """
        within = f"within {self._policy.timeout_s:g} s (message-timeout-s)"
        if not (self._policy.clients_return or self._policy.may_close_early):
            # Others are not looked at: in one process, clients run when they are.
            raise RoundIncomplete(
                f"no answer from client {question.open[0].client} {within}, and "
                f"the {len(question.open) - 1} queued after it were not checked"
            )
        came = question.look()
        if question.open:
            raise RoundIncomplete(f"no answer from {question.silent()} {within}")
        return came

    def _check_time(
        self, wait: Wait, purpose: str, so_far: str, missing: Callable[[], str]
    ) -> None:
        is_over = wait.is_over
        if not (is_over or wait.is_report_due()):
            return
        who = f"; missing: {missing()}" if missing() else ""
        if is_over:
            raise RoundIncomplete(
                f"{so_far} after {self._policy.timeout_s:g} s (message-timeout-s); start the "
                f"others, or lower clients{who}"
            )
        logger.warning("waiting for %s: %s so far%s", purpose, so_far, who)

    def count(self, message: Message, client: int, asked: Question, direction: str) -> None:
        """Enter a message to (``in``) or from (``out``) a client in the ledger."""
        content = message.content
        if asked.first:
            own, *first = map(content_volumes, records.split_content(content, len(asked.first)))
            # What goes first has no message of its own.
            parts = [(asked.purpose, own, True)]
            parts += [(name, part, False) for name, part in zip(asked.first, first, strict=True)]
        else:
            # Clients are asked with one content.
            if self._counted is None or self._counted[0]() is not content:
                self._counted = ref(content), content_volumes(content)
            parts = [(asked.purpose, self._counted[1], True)]
        kinds = ("weights_down" if direction == "in" else "updates_up", "masks", "control")
        for purpose, volumes, is_message in parts:
            for kind, volume in zip(kinds, volumes, strict=True):
                if volume.payload:
                    account = _account(
                        attempt=self._attempt,
                        kind=kind,
                        layer=asked.stage,
                        purpose=purpose,
                        client=client,
                        peer=SERVER,
                        direction=direction,
                    )
                    self._ledger.add(account, volume if is_message else replace(volume, messages=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """Carries out rounds, which know nothing of their wrappers.

    Attributes:
        messenger: The way to the clients.
        wrappers: Of each round, the innermost first.
    """

    messenger: Messenger
    wrappers: tuple[Wrapper, ...]

    def carry_out(self, asking: Round[T]) -> T:
        """Return the result of a round.

        Raises:
            RetexoError: As :meth:`.Messenger.run`.
        """
        return self.messenger.run(self.wrapped(asking))

    def wrapped(self, asking: Round[T]) -> Round[T]:
        """Return a round with what it needs around it."""
        for wrapper in self.wrappers:
            asking = wrapper(asking)
        return asking


def _whole(cohorts: Sequence[Sequence[int]], there: Set[int]) -> list[Sequence[int]]:
    """Return the cohorts of which nobody is missing."""
    return [cohort for cohort in cohorts if there >= {*cohort}]


def _so_far(purpose: str, connected: int, answers: int, count: int) -> str:
    """Say how many of those that are asked first of all are there."""
    said = f"clients connected: {connected} of {count}"
    return said if connected < count else f"{said}, answers to {purpose}: {answers}"


def answer_of(ask: Ask, client: int, reply: Message) -> Any:
    """Read what a client replied to the request that it got.

    Raises:
        RemoteProtocolError: It is no such answer; names the client.
    """
    with named(client):
        kind = answer_class(ask.requests[client], masked=bool(ask.cohorts))
        return records.read_answer(kind, reply)
