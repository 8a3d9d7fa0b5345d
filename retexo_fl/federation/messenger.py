"""Sends messages to clients and hands out their answers in client order."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from flwr.app import Message
from flwr.serverapp import Grid

from retexo_fl.errors import RoundIncomplete
from retexo_fl.federation import records
from retexo_fl.federation.record_fields import content_volumes
from retexo_fl.ledger import SERVER, Account, TrafficLedger

#: Pauses between looks for replies: short at first for an engine in this process, then longer for
#: one that answers over a network. Flower's own loop waits 0.1 s to 3 s.
_FIRST_PAUSE_S: Final = 0.002
_LONGEST_PAUSE_S: Final = 0.1
#: Replies that may be held because an earlier one has not come; bounds the server's memory.
_REPLIES_AHEAD: Final = 32


class Messenger:
    """Knows the clients by index, counts what passes, and waits no longer than it was told.

    ``on_answer`` is called with stage and purpose at every reply, for those who show progress.
    """

    def __init__(
        self,
        grid: Grid,
        *,
        ledger: TrafficLedger,
        timeout_s: float,
        on_answer: Callable[[int, str], None] = lambda stage, purpose: None,
    ) -> None:
        self._grid = grid
        self._ledger = ledger
        self._timeout_s = timeout_s
        self._on_answer = on_answer
        self._attempt = 1
        self._node_of: Mapping[int, int] = {}
        #: Seconds spent waiting for answers, which is where clients compute.
        self.waited_s = 0.0

    @property
    def clients(self) -> Sequence[int]:
        """All client indices, ascending."""
        return sorted(self._node_of)

    @property
    def ledger(self) -> TrafficLedger:
        """The account of what passes."""
        return self._ledger

    def introduce(self, node_of: Mapping[int, int], attempt: int) -> None:
        """Take over which Flower node each client is, and the attempt that bytes count for."""
        self._node_of, self._attempt = dict(node_of), attempt

    def messages(
        self, clients: Iterable[int], request: records.Request, message_type: str
    ) -> list[Message]:
        """Address one request to many clients."""
        return self.addressed([self._node_of[c] for c in clients], request, message_type)

    def addressed(
        self, nodes: Iterable[int], request: records.Request, message_type: str
    ) -> list[Message]:
        """Address one request to many Flower nodes; its content is built once and shared."""
        content = records.request_content(request)
        return [
            Message(content, dst_node_id=node, message_type=message_type, ttl=self._timeout_s)
            for node in nodes
        ]

    def wait_for_nodes(self, count: int) -> list[int]:
        """Return the ids of ``count`` Flower nodes, ascending, once so many are connected.

        Raises:
            RoundIncomplete: Fewer were connected when the time was over.
        """
        deadline = time.monotonic() + self._timeout_s
        while True:
            nodes = sorted(self._grid.get_node_ids())
            if len(nodes) >= count:
                return nodes
            if time.monotonic() > deadline:
                raise RoundIncomplete(
                    f"{len(nodes)} of {count} clients were connected after {self._timeout_s:g} s "
                    "(message-timeout-s); start the others, or lower clients"
                )
            time.sleep(_LONGEST_PAUSE_S)

    def ask(
        self, messages: Iterable[Message], *, stage: int, purpose: str
    ) -> Iterator[tuple[int, Message]]:
        """Send messages, then yield (client, reply) in the order in which they were given.

        Replies are handed on as soon as their turn comes, so that their consumer need not hold
        them all.

        Args:
            messages: One for each client; made with :meth:`messages`.
            stage: Stage index for the ledger, -1 for none.
            purpose: For the ledger: ``hello``, ``publish``, ``collect``, ``train``, ``evaluate``,
                ``predict``.

        Raises:
            RoundIncomplete: Replies were missing when the time was over; names the clients.
            RetexoError: A client's own named failure.
        """
        sent = list(messages)
        client_of = {node: client for client, node in self._node_of.items()}
        clients = [client_of.get(m.metadata.dst_node_id, -1) for m in sent]
        for client, message in zip(clients, sent, strict=True):
            self._count(message, client, stage, purpose, "in")
        begun = time.monotonic()
        ids = list(self._grid.push_messages(sent))
        self.waited_s += time.monotonic() - begun
        replies = self._in_order(ids, clients)
        for client, reply in zip(clients, replies, strict=True):
            records.raise_failure(reply, f"client {client}" if client >= 0 else "a client")
            self._count(reply, client, stage, purpose, "out")
            self._on_answer(stage, purpose)
            yield client, reply

    def _in_order(self, ids: Sequence[str], clients: Sequence[int]) -> Iterator[Message]:
        arrived: dict[str, Message] = {}
        begun = time.monotonic()
        pause_s = _FIRST_PAUSE_S
        for place, wanted in enumerate(ids):
            while wanted not in arrived:
                looked = time.monotonic()
                near = [name for name in ids[place : place + _REPLIES_AHEAD] if name not in arrived]
                for reply in self._grid.pull_messages(near):
                    arrived[reply.metadata.reply_to_message_id] = reply
                    pause_s = _FIRST_PAUSE_S
                if wanted not in arrived:
                    self._give_up_after(begun, clients[place:])
                    time.sleep(pause_s)
                    pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)
                self.waited_s += time.monotonic() - looked
            yield arrived.pop(wanted)

    def _give_up_after(self, begun: float, silent: Sequence[int]) -> None:
        if time.monotonic() - begun > self._timeout_s:
            raise RoundIncomplete(
                f"no answer from client {silent[0]} within {self._timeout_s:g} s "
                f"(message-timeout-s), and {len(silent) - 1} behind it were not looked at"
            )

    def _count(
        self, message: Message, client: int, stage: int, purpose: str, direction: str
    ) -> None:
        weights, other = content_volumes(message.content)
        kind = "weights_down" if direction == "in" else "updates_up"
        for of_kind, volume in ((kind, weights), ("control", other)):
            if volume.payload:
                account = Account(
                    attempt=self._attempt,
                    kind=of_kind,
                    layer=stage,
                    purpose=purpose,
                    client=client,
                    peer=SERVER,
                    direction=direction,
                )
                self._ledger.add(account, volume)
