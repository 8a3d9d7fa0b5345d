"""An exchange in the messages of what follows it: Flower takes seconds to carry any of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from flwr.app import Message

from retexo_fl.client.api import (
    CollectAnswer,
    CollectRequest,
    PublishAnswer,
    PublishRequest,
    Request,
)
from retexo_fl.federation.asking import Ask, Messenger, Round, answer_of
from retexo_fl.federation.rounds.clients import Clients
from retexo_fl.federation.rounds.exchange import (
    Exchanged,
    note_collected,
    note_published,
    publish,
)

#: How long a client on a machine of its own waits for vectors before it answers without them.
_WAIT_S: Final = 25.0


@dataclass(slots=True, kw_only=True)
class ExchangeWith:
    """Runs one exchange with the question after it.

    Clients on machines of their own send their vectors, wait for those of others and answer the
    question, all in one message. In a process nobody can wait for another: there, all send their
    vectors first.

    Attributes:
        messenger: The way to the clients.
        clients: All of them; each takes part.
        request: Has clients send their vectors.
        name: What they are sent instead of weights that they may hold.
        collect_late: Sees that the vectors of some clients arrive; returns how many did not.
        published: Answers of clients that have sent theirs.
        missing: Vectors that it ended without.
    """

    messenger: Messenger
    clients: Clients
    request: PublishRequest
    name: np.ndarray | None
    collect_late: Callable[[Sequence[int]], Round[int]]
    missing: int = 0
    published: list[PublishAnswer] = field(default_factory=list)

    @property
    def exchanged(self) -> Exchanged:
        """How it ended, once all answers are read."""
        return Exchanged(
            vectors=self.clients.vectors(self.request.ticket, self.published),
            missing=self.missing,
            closed=frozenset(self.clients.hellos),
            error_bound=max((b for a in self.published for b in a.error_bound), default=None),
        )

    def answers(self, ask: Ask) -> Iterator[tuple[int, Any]]:
        """Yield all clients' answers to a question, in client order.

        Raises:
            RetexoError: As :meth:`replies`.
        """
        for client, reply in self.replies(ask):
            yield client, answer_of(ask, client, reply)

    def replies(self, ask: Ask) -> Iterator[tuple[int, Message]]:
        """Yield all clients' replies to a question, in client order.

        Raises:
            RetexoError: As :meth:`.Messenger.answers` and :func:`.exchange_rows`.
        """
        collect = CollectRequest(ticket=self.request.ticket)
        first: list[Request[Any]] = [collect]
        if self.clients.policy.clients_return:
            named = self.request if self.name is None else replace(self.request, weights=self.name)
            first = [named, replace(collect, wait_s=_WAIT_S)]
        else:
            self._publish(list(ask.requests), name=self.name)
        late: list[int] = []
        lacking: list[int] = []
        held: dict[int, Message] = {}
        for client, before, reply in self.messenger.replies_after(first, ask):
            if self._note(client, before):
                lacking.append(client)
            if reply is None:
                late.append(client)
            elif late:
                held[client] = reply
            else:
                yield client, reply
        if late:
            if lacking:
                self._publish(lacking, name=None)
            self.missing = self.messenger.run(self.collect_late(late))
            again = ask.among(late)
            held |= dict(self.messenger.replies(again, self.messenger.questions(again)))
            yield from sorted(held.items())

    def _publish(self, among: Sequence[int], *, name: np.ndarray | None) -> None:
        """Have clients send their vectors, in a message of its own."""
        asking = publish(self.clients, self.request, among, name=name)
        self.published += self.messenger.run(asking).values()

    def _note(self, client: int, before: Sequence[Any]) -> bool:
        """Check and enter the answers about the exchange; return whether weights were lacking."""
        ticket = self.request.ticket
        for answer in before:
            if isinstance(answer, CollectAnswer):
                note_collected(self.clients, ticket, client, answer)
            elif not answer.lacks_weights:
                note_published(self.clients, ticket, client, answer)
                self.published.append(answer)
        return isinstance(before[-1], PublishAnswer)
