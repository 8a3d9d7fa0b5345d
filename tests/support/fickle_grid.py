"""A Flower ``Grid`` of real clients in this process whose machines go away, and may come back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Error, Message

from retexo_fl.simulation.inline_grid import InlineGrid


@dataclass(slots=True)
class Weather:
    """What happens to messages.

    Attributes:
        away: Nodes that are not connected; messages to them are answered by an error, and so are
            those that they had when they went.
        mute: Nodes that have their messages and do not answer for now.
        errors: By node, the Flower error codes that its next messages are answered by.
        replace: Changes an answer on its way.
    """

    away: set[int] = field(default_factory=set)
    mute: set[int] = field(default_factory=set)
    errors: dict[int, list[int]] = field(default_factory=dict)
    replace: Callable[[Message, Message], Message] = lambda message, reply: reply


class FickleGrid(InlineGrid):
    """Runs every client as :class:`InlineGrid` does, if its machine is there.

    Errors come as in a deployment: from the SuperLink (node 1), about a message, not from a node.

    Attributes:
        weather: What happens to messages; a test changes it as it likes.
        on_look: Called at every look for replies or nodes, before anything is told.
        sent: Every message that was pushed, by node.
    """

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self.weather = Weather()
        self.on_look: Callable[[], None] = lambda: None
        self.sent: list[tuple[int, Message]] = []

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of the clients whose machines are there."""
        self.on_look()
        return [node for node in super().get_node_ids() if node not in self.weather.away]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Take messages for anybody."""
        sent = list(messages)
        self.sent += [(message.metadata.dst_node_id, message) for message in sent]
        return super().push_messages(sent)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Answer the first message whose client can, or say that it cannot."""
        self.on_look()
        for name in message_ids:
            message = self._waiting.get(name)
            if message is None:
                continue
            node = message.metadata.dst_node_id
            codes = self.weather.errors.get(node)
            if node in self.weather.away or codes:
                del self._waiting[name]
                return [_error(message, codes.pop(0) if codes else 5)]
            if node not in self.weather.mute:
                return [self.weather.replace(message, r) for r in super().pull_messages([name])]
        return []


def _error(message: Message, code: int) -> Message:
    reply = Message(Error(code, f"made by a test: {code}"), reply_to=message)
    reply.metadata.__dict__["_src_node_id"] = 1
    return reply
