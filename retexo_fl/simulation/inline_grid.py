"""A Flower ``Grid`` whose nodes live in this process: the same apps, no Ray, no sockets."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from retexo_fl.config_keys import Scalar


class InlineGrid(Grid):
    """Calls the ClientApp for a message when its reply is pulled.

    A client runs only when the server looks for its answer, in the order in which messages were
    pushed, so at most one reply is in memory at a time.
    """

    def __init__(
        self, client_app: ClientApp, num_clients: int, run_config: Mapping[str, Scalar]
    ) -> None:
        # Flower reads these where a message is made; its own engines set them per process.
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        self._app = client_app
        self._contexts = {
            node: Context(
                run_id=1,
                node_id=node,
                node_config={"partition-id": client, "num-partitions": num_clients},
                state=RecordDict(),
                run_config=dict(run_config),
            )
            for client, node in enumerate(range(2, num_clients + 2))
        }
        self._waiting: dict[str, Message] = {}
        self._names = itertools.count(1)

    def set_run(self, run: Any) -> None:
        """Do nothing: a grid in a process serves one run."""

    @property
    def run(self) -> Any:
        """Refuse: there is no Flower run behind this grid."""
        raise NotImplementedError("an in-process grid has no Flower run")

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
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Queue messages; return a name for each."""
        names = []
        for message in messages:
            name = str(next(self._names))
            self._waiting[name] = message
            names.append(name)
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Run the client of the first queued message among ``message_ids``; return its reply."""
        wanted = next((name for name in message_ids if name in self._waiting), None)
        if wanted is None:
            return []
        message = self._waiting.pop(wanted)
        # Replies refer to their message by this name; Flower's link assigns it elsewhere.
        message.metadata.__dict__["_message_id"] = wanted
        return [self._answer(message)]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Run all messages one after the other; ``timeout`` has nothing to wait for."""
        del timeout
        return [
            reply for name in self.push_messages(messages) for reply in self.pull_messages([name])
        ]

    def _answer(self, message: Message) -> Message:
        context = self._contexts[message.metadata.dst_node_id]
        handler: Callable[[Message, Context], Message] = self._app
        return handler(message, context)
