"""A Flower ``Grid`` whose nodes live in this process: the same apps, no Ray, no sockets."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from retexo_fl.client import api
from retexo_fl.config import Scalar
from retexo_fl.federation.records import content_volumes
from retexo_fl.run_log.result import Network
from retexo_fl.simulation.virtual_network import VirtualNetwork

#: What the server's virtual time counts for while it waits for answers to a type of message.
_PHASES: Final = MappingProxyType(
    {
        api.HELLO.message_type: "hello",
        api.PUBLISH.message_type: "exchange",
        api.COLLECT.message_type: "exchange",
        api.TRAIN.message_type: "train",
        api.EVALUATE.message_type: "evaluate",
    }
)


class InlineGrid(Grid):
    """Calls the ClientApp for a message when its reply is pulled.

    A client runs only when the server looks for its answer, in the order in which messages were
    pushed, so at most one reply is in memory at a time. With a ``network``, every message takes
    virtual time on it.
    """

    def __init__(
        self,
        client_app: ClientApp,
        num_clients: int,
        run_config: Mapping[str, Scalar],
        *,
        network: VirtualNetwork | None = None,
    ) -> None:
        # Flower reads these where a message is made; its own engines set them per process.
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        self._app = client_app
        self._network = network
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
        """Queue messages, each with an id from now on; return the ids."""
        pushed = {str(next(self._names)): message for message in messages}
        for name, message in pushed.items():
            # Flower's grids assign ids in the same way.
            message.metadata.__dict__["_message_id"] = name
        self._waiting |= pushed
        if self._network is not None and pushed:
            sent = list(pushed.values())
            sizes_bytes = {self._client_of(item): _size_bytes(item) for item in sent}
            self._network.send_to_clients(sizes_bytes, phase=_phase_of(sent))
        return list(pushed)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Run the client of the first queued message among ``message_ids``; return its reply."""
        wanted = next((name for name in message_ids if name in self._waiting), None)
        if wanted is None:
            return []
        message = self._waiting.pop(wanted)
        handler: Callable[[Message, Context], Message] = self._app
        reply = handler(message, self._contexts[message.metadata.dst_node_id])
        if self._network is not None:
            self._network.reply_to_server(self._client_of(message), _size_bytes(reply))
        return [reply]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Run all messages one after the other; ``timeout`` has nothing to wait for."""
        del timeout
        return [
            reply for name in self.push_messages(messages) for reply in self.pull_messages([name])
        ]

    def modelled_network(self) -> Network | None:
        """See :class:`~retexo_fl.federation.modelled.ModelsNetwork`."""
        return None if self._network is None else self._network.facts()

    def _client_of(self, message: Message) -> int:
        client = self._contexts[message.metadata.dst_node_id].node_config["partition-id"]
        assert isinstance(client, int)
        return client


def _size_bytes(message: Message) -> int:
    """Return what the ledger counts of a message: its content, since Flower reports no more."""
    return sum(volume.payload for volume in content_volumes(message.content))


def _phase_of(messages: Sequence[Message]) -> str:
    """Return what messages sent together are for; in a round, some clients may only evaluate."""
    types = {message.metadata.message_type for message in messages}
    train = api.TRAIN.message_type
    kind = train if train in types else messages[0].metadata.message_type
    return _PHASES.get(kind, kind)
