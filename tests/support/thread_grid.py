"""A Flower ``Grid`` whose nodes answer at the same time, each message in a thread of its own."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from retexo_fl.config import Scalar

#: Flower node of client 0; 1 is the server.
FIRST_NODE: Final = 2
_TIMEOUT_S: Final = 400.0
_PAUSE_S: Final = 0.001


class ThreadGrid(Grid):
    """Gives every message to the ClientApp at once, as resident agents need it."""

    def __init__(
        self,
        client_app: ClientApp,
        node_configs: Sequence[Mapping[str, Any]],
        run_config: Mapping[str, Scalar],
    ) -> None:
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        self._app: Callable[[Message, Context], Message] = client_app
        self._contexts = {
            node: Context(
                run_id=1,
                node_id=node,
                node_config=dict(node_config),
                state=RecordDict(),
                run_config=dict(run_config),
            )
            for node, node_config in enumerate(node_configs, start=FIRST_NODE)
        }
        self._threads = ThreadPoolExecutor(max_workers=4 * len(node_configs))
        self._replies: dict[str, Future[Message]] = {}
        self._names = itertools.count(1)

    def set_run(self, run: Any) -> None:
        """Do nothing: this grid serves one run."""

    @property
    def run(self) -> Any:
        """Refuse: there is no Flower run behind this grid."""
        raise NotImplementedError("a grid of threads has no Flower run")

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
        """Start answering; return a name for each message."""
        names = []
        for message in messages:
            names.append(str(next(self._names)))
            message.metadata.__dict__["_message_id"] = names[-1]
            context = self._contexts[message.metadata.dst_node_id]
            self._replies[names[-1]] = self._threads.submit(self._app, message, context)
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies among ``message_ids`` that are there."""
        names = [name for name in message_ids if name in self._replies]
        done = [name for name in names if self._replies[name].done()]
        if not done:
            time.sleep(_PAUSE_S)
        return [self._replies.pop(name).result() for name in done]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send all messages and wait for their replies."""
        names = list(self.push_messages(messages))
        return [self._replies.pop(name).result(timeout or _TIMEOUT_S) for name in names]
