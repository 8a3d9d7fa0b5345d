"""One question to many clients: sent, and sent again to those whose machine was away."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from types import MappingProxyType
from typing import Final, Protocol

from flwr.app import Message, RecordDict

from retexo_fl.errors import AgentUnreachable, RemoteProtocolError
from retexo_fl.federation import records
from retexo_fl.federation.asking.waiting import Clock, WaitPolicy
from retexo_fl.units import client_named

logger = logging.getLogger(__name__)

#: Pauses before a client that was away is asked again; they grow while it stays so.
_FIRST_RETRY_S: Final = 1.0
_LONGEST_RETRY_S: Final = 30.0
#: Flower's error codes that do not depend on the question: the same one may be asked again.
_AWAY: Final[Mapping[int, str]] = MappingProxyType(
    {
        3: "the message was not fetched in time",
        4: "it disconnected after fetching the message",
        5: "its SuperNode is not connected",
        8: "its ClientApp was killed",
    }
)
_NOT_TAKEN: Final = (
    "Flower did not accept the message: the node is gone, or the message is too large"
)
#: Between looks at which nodes are connected.
_NODES_EVERY_S: Final = 1.0
#: A client that is connected and silent for so long is nudged: sooner, where that helped before.
_NUDGE_AFTER_S: Final = 15.0
_SOONEST_NUDGE_S: Final = 4.0
#: A SuperNode that waits for messages looks for them every 3 s; one that computes, not until then.
_NUDGE_LIFE_S: Final = 4.0
#: From a nudge that is fetched to an answer that it set free.
_NUDGED_WITHIN_S: Final = _NUDGE_LIFE_S + 2.0
#: Least life of a message, so that one sent at the last moment is no invalid one.
_LEAST_TTL_S: Final = 1.0


class Post(Protocol):
    """The part of a grid that carries messages."""

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of the nodes that are connected."""
        ...

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages, each with an id from now on; return the ids of those that were taken.

        Flower's grids disagree about one that was not taken: a simulation's leaves it out, a
        deployment's has a gap in its place, or returns nothing where all are too large.
        """
        ...

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that are there."""
        ...


@dataclass(slots=True, kw_only=True)
class Delivery:
    """One message on its way to one client.

    Attributes:
        message: What is asked.
        client: Index of the client, -1 where it is not known yet.
        place: Among the deliveries of its question, from 0.
        message_id: Of the message that is on its way; empty while none is.
        busy_with: Id of an earlier message that the client still works on.
        absence: Why its machine was away; empty while it was not.
        retry_s: Seconds until it is asked again then, which is at ``again_at_s``.
        nudge_s: Seconds of silence after which it is nudged, which is at ``nudge_at_s``; 0 before
            it was first looked at.
        nudged_at_s: When it was.
    """

    message: Message
    client: int
    place: int
    message_id: str = ""
    busy_with: str = ""
    absence: str = ""
    retry_s: float = field(default_factory=lambda: _FIRST_RETRY_S)
    again_at_s: float = 0.0
    nudge_s: float = _NUDGE_AFTER_S
    nudge_at_s: float = 0.0
    nudged_at_s: float = float("-inf")

    @property
    def node(self) -> int:
        """The Flower node of the client."""
        return self.message.metadata.dst_node_id


class Deliveries:
    """The deliveries of one question, in the order in which they were given.

    Args:
        post: The grid.
        deliveries: What to ask whom.
        policy: Life of the messages, from now, and whether those are asked again whose machine was
            away.
        overdue: By node, the id of an earlier message that it has not answered; it is asked when
            it has, or that message has died.
        nudge_s: By node, after how long a silence it is nudged; changes with what comes of that.
        on_send: Called for every message that the grid has taken.
        clock: The time by which messages die and are sent again.
    """

    def __init__(
        self,
        post: Post,
        deliveries: Sequence[Delivery],
        *,
        policy: WaitPolicy,
        overdue: Mapping[int, str],
        nudge_s: MutableMapping[int, float],
        on_send: Callable[[Delivery], None],
        clock: Clock,
    ) -> None:
        self._post = post
        self._clock = clock
        self._begun_s = self._clock.now_s()
        self._timeout_s = policy.timeout_s
        self._clients_return = policy.clients_return
        self._nudge_s = nudge_s
        self._on_send = on_send
        #: By place, ascending: those without an answer, and of these the ones to be sent.
        self._open = {delivery.place: delivery for delivery in deliveries}
        self._unsent: dict[int, Delivery] = {}
        #: By the id that an answer will name: those that are on their way, in the order of sending.
        self._out: dict[str, Delivery] = {}
        self._nodes: frozenset[int] = frozenset()
        self._nodes_at_s = float("-inf")
        for delivery in deliveries:
            if busy_with := overdue.get(delivery.node, ""):
                delivery.busy_with = busy_with
                self._out[busy_with] = delivery
        self._send([delivery for delivery in deliveries if not delivery.busy_with])

    @property
    def _left_s(self) -> float:
        """Life of a message that is sent again now, in seconds."""
        elapsed_s = self._clock.now_s() - self._begun_s
        return max(_LEAST_TTL_S, self._timeout_s - elapsed_s)

    @property
    def open(self) -> Sequence[Delivery]:
        """Deliveries without an answer, in their order."""
        return list(self._open.values())

    @property
    def first(self) -> int:
        """Place of the first delivery without an answer; 0 where all have one."""
        return next(iter(self._open), 0)

    @property
    def overdue(self) -> dict[int, str]:
        """By node, the id of the message that it has not answered."""
        return {item.node: name for name, item in self._out.items()}

    def silent(self) -> str:
        """Name the clients that have not answered, and why where that is known."""
        return ", ".join(
            client_named(item.client) + (f" ({item.absence})" if item.absence else "")
            for item in self.open
        )

    def look(self, before: int | None = None) -> list[tuple[Delivery, Message]]:
        """Return the answers that have come: to deliveries ``before`` a place, or to all.

        Errors that mean that a machine was away are no answers where such machines come back. Any
        other is raised at once: clients before this one may wait for it.

        Raises:
            RemoteProtocolError: An answer is to another question than the one that was asked.
            RetexoError: A client's own named failure.
        """
        # Of thousands of clients all would be too many to go through for each that answers.
        names = list(self._out) if before is None else self._names_before(before)
        answered = []
        for reply in self._post.pull_messages(names) if names else ():
            delivery = self._out.pop(reply.metadata.reply_to_message_id)
            if delivery.busy_with:
                # Late: the answer to a round that was closed without it is not read.
                delivery.busy_with = ""
                self._unsent[delivery.place] = delivery
            elif self._clients_return and (absence := _absence_of(reply)):
                self._note_absence(delivery, absence)
            else:
                _check_same_question(delivery, reply)
                records.raise_failure(reply, delivery.client)
                del self._open[delivery.place]
                answered.append((delivery, reply))
                if self._clients_return:
                    self._note_nudge(delivery)
        self._send([item for _, item in sorted(self._unsent.items()) if self._is_due(item)])
        if self._clients_return:
            self._nudge()
        return answered

    def _names_before(self, place: int) -> list[str]:
        near = takewhile(lambda item: item.place < place, self._open.values())
        return [name for item in near if (name := item.message_id or item.busy_with)]

    def _send(self, deliveries: Sequence[Delivery]) -> None:
        if not deliveries:
            return
        for delivery in deliveries:
            if delivery.absence:
                delivery.message = _again(delivery.message, self._left_s)
        # Without the gaps.
        taken = set(filter(None, self._post.push_messages([item.message for item in deliveries])))
        for delivery in deliveries:
            if (message_id := delivery.message.metadata.message_id) in taken:
                delivery.message_id = message_id
                self._out[message_id] = delivery
                delivery.nudge_at_s = 0.0
                self._unsent.pop(delivery.place, None)
                self._on_send(delivery)
            else:
                self._note_absence(delivery, _NOT_TAKEN)

    def _nudge(self) -> None:
        """Have SuperNodes that hold answers back send them.

        One that fetched a message while its run ended, as where the SuperLink is killed, sends each
        answer with the next message that it gets, until it is started anew (flwr 1.41). A nudge is
        such a message, without content.
        """
        now_s = self._clock.now_s()
        for item in self._out.values():
            if not item.nudge_at_s:
                item.nudge_s = self._nudge_s.get(item.node, _NUDGE_AFTER_S)
                item.nudge_at_s = now_s + item.nudge_s
        silent = [item for item in self._out.values() if item.nudge_at_s <= now_s]
        silent = [item for item in silent if item.node in self._connected()] if silent else []
        for item in silent:
            item.nudged_at_s, item.nudge_s = now_s, 2 * item.nudge_s
            item.nudge_at_s = now_s + item.nudge_s
        if silent:
            self._post.push_messages(
                Message(
                    RecordDict(),
                    dst_node_id=item.node,
                    message_type=records.NUDGE,
                    ttl=_NUDGE_LIFE_S,
                )
                for item in silent
            )

    def _note_nudge(self, delivery: Delivery) -> None:
        """Nudge a client sooner the next time if that has helped, else later."""
        before_s = self._nudge_s.get(delivery.node, _NUDGE_AFTER_S)
        helped = self._clock.now_s() - delivery.nudged_at_s <= _NUDGED_WITHIN_S
        wanted_s = before_s / 2 if helped else 2 * before_s
        self._nudge_s[delivery.node] = min(max(wanted_s, _SOONEST_NUDGE_S), _NUDGE_AFTER_S)

    def _is_due(self, delivery: Delivery) -> bool:
        """Return whether a delivery is to be sent: its client is free, and back if it was away."""
        if not delivery.absence:
            return True
        return self._clock.now_s() >= delivery.again_at_s and delivery.node in self._connected()

    def _connected(self) -> frozenset[int]:
        if self._clock.now_s() - self._nodes_at_s >= _NODES_EVERY_S:
            self._nodes = frozenset(self._post.get_node_ids())
            self._nodes_at_s = self._clock.now_s()
        return self._nodes

    def _note_absence(self, delivery: Delivery, absence: str) -> None:
        if absence != delivery.absence:
            logger.warning("%s is not available (%s)", client_named(delivery.client), absence)
        delivery.message_id, delivery.absence = "", absence
        self._unsent[delivery.place] = delivery
        delivery.again_at_s = self._clock.now_s() + delivery.retry_s
        delivery.retry_s = min(2 * delivery.retry_s, _LONGEST_RETRY_S)


def _absence_of(reply: Message) -> str:
    """Return why a client was away; empty for any other reply, errors among them."""
    if reply.has_error():
        return _AWAY.get(reply.error.code, "")
    failure = reply.content.config_records.get(records.FAILURE)
    if failure is not None and failure.get("name") == AgentUnreachable.__name__:
        return "its agent does not answer"
    return ""


def _again(message: Message, ttl_s: float) -> Message:
    """Return a message that asks the same; Flower takes no message twice."""
    metadata = message.metadata
    return Message(
        message.content,
        dst_node_id=metadata.dst_node_id,
        message_type=metadata.message_type,
        group_id=metadata.group_id,
        ttl=ttl_s,
    )


def _check_same_question(delivery: Delivery, reply: Message) -> None:
    """Refuse an answer that belongs to another attempt, stage or round than its question."""
    if reply.has_error():
        return
    asked, told = delivery.message.metadata, reply.metadata
    if (told.message_type, told.group_id) != (asked.message_type, asked.group_id):
        raise RemoteProtocolError(
            f"{client_named(delivery.client)}: answered {told.message_type} of {told.group_id!r}; "
            f"expected {asked.message_type} of {asked.group_id!r}"
        )
