"""One question to many clients: sent, looked after, and sent again to those who were away."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from flwr.app import Message

from retexo_fl.errors import RemoteProtocolError
from retexo_fl.federation.absence import absence
from retexo_fl.federation.clock import Clock

logger = logging.getLogger(__name__)

#: Pauses before a client that was away is asked again; they grow while it stays so.
_FIRST_RETRY_S: Final = 1.0
_LONGEST_RETRY_S: Final = 30.0
#: Between looks at which nodes are connected.
_NODES_EVERY_S: Final = 1.0
#: Least life of a message, so that one sent at the last moment is no invalid one.
_LEAST_TTL_S: Final = 1.0


class Post(Protocol):
    """The part of a grid that carries messages."""

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of the nodes that are connected."""
        ...

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages; return a name for each, or None where a node is unknown."""
        ...

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that are there."""
        ...


@dataclass(slots=True, kw_only=True)
class Errand:
    """One message on its way to one client.

    Attributes:
        message: What is asked.
        client: Index of the client, -1 where it is not known yet.
        place: Among the errands of its question, from 0.
        name: Of the message that is on its way; empty while none is.
        held_by: Name of an earlier message that the client is still busy with.
        trouble: Why it was away, in Flower's words; empty while it was not.
    """

    message: Message
    client: int
    place: int
    name: str = ""
    held_by: str = ""
    trouble: str = ""
    retry_s: float = field(default_factory=lambda: _FIRST_RETRY_S)
    again_at_s: float = 0.0

    @property
    def node(self) -> int:
        """The Flower node of the client."""
        return self.message.metadata.dst_node_id


class Errands:
    """The errands of one question, in the order in which they were given.

    Args:
        post: The grid.
        errands: What to ask whom.
        timeout_s: Life of the messages, from now.
        returns: Ask those again whose machine was away.
        overdue: By node, the name of an earlier message that it has not answered; it is asked when
            it has, or that message has died.
        on_send: Told of every message that the grid has taken.
        clock: The time by which messages die and are sent again.
    """

    def __init__(
        self,
        post: Post,
        errands: Sequence[Errand],
        *,
        timeout_s: float,
        returns: bool,
        overdue: Mapping[int, str],
        on_send: Callable[[Errand], None],
        clock: Clock,
    ) -> None:
        self._post = post
        self._clock = clock
        self._begun_s = self._clock.now_s()
        self._timeout_s = timeout_s
        self._returns = returns
        self._on_send = on_send
        self._open = list(errands)
        self._nodes: frozenset[int] = frozenset()
        self._nodes_at_s = float("-inf")
        for errand in errands:
            errand.held_by = overdue.get(errand.node, "")
        self._send([errand for errand in errands if not errand.held_by])

    @property
    def elapsed_s(self) -> float:
        """Seconds since the errands were sent first."""
        return self._clock.now_s() - self._begun_s

    @property
    def open(self) -> Sequence[Errand]:
        """Errands without an answer."""
        return self._open

    @property
    def overdue(self) -> dict[int, str]:
        """By node, the name of the message that it has not answered."""
        return {item.node: item.name or item.held_by for item in self._open if _is_out(item)}

    def silent(self) -> str:
        """Name the clients that have not answered, and why where that is known."""
        return ", ".join(
            who(item.client) + (f" ({item.trouble})" if item.trouble else "") for item in self._open
        )

    def look(self, before: int | None = None) -> list[tuple[Errand, Message]]:
        """Return the answers that have come: to errands ``before`` a place, or to all.

        Errors that mean that a machine was away are no answers where such machines come back.

        Raises:
            RemoteProtocolError: An answer is to another question than the one that was asked.
        """
        near = [item for item in self._open if before is None or item.place < before]
        by_name = {item.name or item.held_by: item for item in near if _is_out(item)}
        answered = []
        for reply in self._post.pull_messages(list(by_name)) if by_name else ():
            errand = by_name[reply.metadata.reply_to_message_id]
            if errand.held_by:
                # Late: the answer to a round that was closed without it is not read.
                errand.held_by = ""
            elif self._returns and (trouble := absence(reply)):
                self._note_away(errand, trouble)
            else:
                _check_same_question(errand, reply)
                self._open.remove(errand)
                answered.append((errand, reply))
        self._send([item for item in self._open if self._is_due(item)])
        return answered

    def _send(self, errands: Sequence[Errand]) -> None:
        if not errands:
            return
        left_s = max(_LEAST_TTL_S, self._timeout_s - self.elapsed_s)
        for errand in errands:
            if errand.trouble:
                errand.message = _again(errand.message, left_s)
        names = list(self._post.push_messages([errand.message for errand in errands]))
        for errand, name in zip(errands, names, strict=True):
            if name:
                errand.name = name
                self._on_send(errand)
            else:
                self._note_away(errand, "its node is not connected")

    def _is_due(self, errand: Errand) -> bool:
        """Say whether an errand is to be sent: its client is free, and back if it was away."""
        if _is_out(errand):
            return False
        if not errand.trouble:
            return True
        return self._clock.now_s() >= errand.again_at_s and errand.node in self._connected()

    def _connected(self) -> frozenset[int]:
        if self._clock.now_s() - self._nodes_at_s >= _NODES_EVERY_S:
            self._nodes = frozenset(self._post.get_node_ids())
            self._nodes_at_s = self._clock.now_s()
        return self._nodes

    def _note_away(self, errand: Errand, trouble: str) -> None:
        if trouble != errand.trouble:
            logger.warning("%s is away (%s)", who(errand.client), trouble)
        errand.name, errand.trouble = "", trouble
        errand.again_at_s = self._clock.now_s() + errand.retry_s
        errand.retry_s = min(2 * errand.retry_s, _LONGEST_RETRY_S)


def who(client: int) -> str:
    """Return what a sentence calls a client, whose index may not be known yet."""
    return f"client {client}" if client >= 0 else "a client"


def _is_out(errand: Errand) -> bool:
    return bool(errand.name or errand.held_by)


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


def _check_same_question(errand: Errand, reply: Message) -> None:
    """Refuse an answer that belongs to another attempt, stage or round than its question."""
    if reply.has_error():
        return
    asked, told = errand.message.metadata, reply.metadata
    if (told.message_type, told.group_id) != (asked.message_type, asked.group_id):
        raise RemoteProtocolError(
            f"{who(errand.client)}: answered {told.message_type} of {told.group_id!r}; expected "
            f"{asked.message_type} of {asked.group_id!r}"
        )
