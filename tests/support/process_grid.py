"""A Flower ``Grid`` whose clients are processes: messages go through sockets, as Flower's bytes."""

from __future__ import annotations

import itertools
import selectors
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common import serde
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

_LENGTH: Final = struct.Struct("<Q")
#: Flower's code for a ClientApp that raised.
_CLIENT_APP_RAISED: Final = 2
#: Flower node of client 0; 1 is the server.
FIRST_NODE: Final = 2
#: Time for which a look for replies may wait for one.
_POLL_S: Final = 0.02
#: Where Flower's caller sets no time.
_TIMEOUT_S: Final = 400.0


class Link:
    """Whole messages over a stream socket."""

    def __init__(self, stream: socket.socket) -> None:
        self.stream = stream

    def send(self, message: Message) -> None:
        """Send a message; blocks while the other end reads nothing."""
        content = serde.message_to_proto(message).SerializeToString()
        self.stream.sendall(_LENGTH.pack(len(content)) + content)

    def receive(self) -> Message | None:
        """Return the next message, or None when the other end has closed."""
        head = self._read(_LENGTH.size)
        if head is None:
            return None
        content = self._read(_LENGTH.unpack(head)[0])
        assert content is not None, "the stream ends inside a message"
        return serde.message_from_proto(ProtoMessage.FromString(content))

    def _read(self, size: int) -> bytes | None:
        parts: list[bytes] = []
        while size:
            part = self.stream.recv(min(size, 2**20))
            if not part:
                assert not parts, "the stream ends inside a message"
                return None
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


class ProcessGrid(Grid):
    """Gives each client one message at a time and collects what has come back."""

    def __init__(self, links: Sequence[Link]) -> None:
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        self._links = dict(enumerate(links, start=FIRST_NODE))
        self._queues: dict[int, deque[Message]] = {node: deque() for node in self._links}
        self._asked: dict[int, Message] = {}
        self._replies: dict[str, Message] = {}
        self._names = itertools.count(1)
        self._selector = selectors.DefaultSelector()
        for node, link in self._links.items():
            self._selector.register(link.stream, selectors.EVENT_READ, node)

    def set_run(self, run: Any) -> None:
        """Do nothing: this grid serves one run."""

    @property
    def run(self) -> Any:
        """Refuse: there is no Flower run behind this grid."""
        raise NotImplementedError("processes on sockets have no Flower run")

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Return a message; part of Flower's interface."""
        return Message(
            content, dst_node_id=dst_node_id, message_type=message_type, group_id=group_id, ttl=ttl
        )

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of all clients."""
        return list(self._links)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Queue messages; return a name for each."""
        names = []
        for message in messages:
            names.append(str(next(self._names)))
            # The other process is told this name, and its reply refers to it.
            message.metadata.__dict__["_message_id"] = names[-1]
            self._queues[message.metadata.dst_node_id].append(message)
        self._hand_out()
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies among ``message_ids`` that are there."""
        for key, _ in self._selector.select(timeout=_POLL_S):
            self._take_in(key.data)
        self._hand_out()
        return [self._replies.pop(name) for name in message_ids if name in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send all messages and wait for their replies."""
        deadline = time.monotonic() + (_TIMEOUT_S if timeout is None else timeout)
        waiting = list(self.push_messages(messages))
        replies: list[Message] = []
        while waiting and time.monotonic() < deadline:
            for reply in self.pull_messages(waiting):
                waiting.remove(reply.metadata.reply_to_message_id)
                replies.append(reply)
        return replies

    def _hand_out(self) -> None:
        for node, queue in self._queues.items():
            if queue and node not in self._asked:
                self._asked[node] = queue.popleft()
                try:
                    self._links[node].send(self._asked[node])
                except BrokenPipeError:
                    self._answer_for(node)

    def _take_in(self, node: int) -> None:
        reply = self._links[node].receive()
        if reply is None:
            self._selector.unregister(self._links[node].stream)
            if node in self._asked:
                self._answer_for(node)
            return
        del self._asked[node]
        self._replies[reply.metadata.reply_to_message_id] = reply

    def _answer_for(self, node: int) -> None:
        """Say instead of a process that it has ended, as Flower does."""
        asked = self._asked.pop(node)
        error = Error(_CLIENT_APP_RAISED, f"the process of node {node} has ended")
        self._replies[asked.metadata.message_id] = Message(error, reply_to=asked)


def serve(app: ClientApp, link: Link, context: Context) -> None:
    """Answer messages until the server closes."""
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    handler: Callable[[Message, Context], Message] = app
    while (message := link.receive()) is not None:
        link.send(handler(message, context))
