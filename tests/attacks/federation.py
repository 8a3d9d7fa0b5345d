"""A federation of real agents, whose server asks what it likes over their sockets."""

from __future__ import annotations

import json
import shutil
import socket
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, Final, TypeVar

import numpy as np

from retexo_fl.agent import wire
from retexo_fl.agent.remote import ask_agent
from retexo_fl.channels import MemoryChannel
from retexo_fl.channels.federation import Federation
from retexo_fl.channels.identity import Identity
from retexo_fl.client.api import (
    AnswerT,
    CollectRequest,
    PublishRequest,
    Request,
    TrainRequest,
    answer_class,
)
from retexo_fl.client.preparation import make_parts
from retexo_fl.client.store import MemoryStore
from retexo_fl.config import DATA_PATH_KEYS, config_values, make_config
from retexo_fl.errors import RetexoError
from retexo_fl.graph import GraphPartition
from retexo_fl.methods.lazy.answers import LazyClient
from retexo_fl.updates import MaskedUpdates, with_zeros
from tests.support.adversary import KEYS, Adversary
from tests.support.agents import ROSTER, AgentProcess, agents, agree

#: All are one cohort.
CLIENTS: Final = 5
VICTIM: Final = 0
OTHERS: Final = tuple(client for client in range(CLIENTS) if client != VICTIM)
#: A peer of the victim's.
PEER: Final = 3
#: They work with the server where an attack says so.
COLLUDERS: Final = (3, 4)
#: Honest, and without test nodes: beside the victim only colluders have some.
_NOT_TESTED: Final = (1, 2)
_GRAPH: Final = "synthetic:nodes=400,edges=1400,classes=3,features=12,words=4,signal=0.5"
_VALUES: Final[dict[str, Any]] = {**KEYS, "dataset": _GRAPH, "dropout": 0.0, "clients": CLIENTS}
_SETTINGS: Final = {"require-secure-aggregation": True, "least-train-nodes": 1}
#: Of one answer.
_ANSWER_S: Final = 300.0

Answer = TypeVar("Answer")


@dataclass(slots=True)
class SocketClient:
    """A client behind its agent's socket; what it sends is kept as it came.

    Attributes:
        path: Of the socket.
        values: The run configuration.
        forged: Values that the server adds to a question, and ``message``, what it calls it.
        heard: Head and body of the last reply.
    """

    path: Path
    values: Mapping[str, Any]
    forged: Mapping[str, Any] = field(default_factory=dict)
    heard: tuple[bytes, bytes] = (b"", b"")

    def ask(self, request: Request[AnswerT]) -> AnswerT:
        """See :class:`~retexo_fl.client.api.ClientApi`."""
        parts = wire.encode_request(request, self.values)
        sent = self._forged(b"".join(parts))
        with closing(socket.socket(socket.AF_UNIX)) as stream:
            stream.settimeout(_ANSWER_S)
            stream.connect(str(self.path))
            stream.sendall(sent)
            prefix = wire.Prefix.parse(_read(stream, wire.PREFIX_BYTES))
            while prefix.kind is wire.Kind.ALIVE:
                prefix = wire.Prefix.parse(_read(stream, wire.PREFIX_BYTES))
            self.heard = _read(stream, prefix.head_bytes), _read(stream, prefix.body_bytes)
        if prefix.kind is wire.Kind.FAILURE:
            raise wire.failure_of(self.heard[0])
        return wire.decode_answer(answer_class(request, masked=True), *self.heard)

    def told(self) -> dict[str, Any]:
        """Return what stands in the clear in the last reply."""
        values: dict[str, Any] = json.loads(self.heard[0]).get("values", {})
        return values

    def _forged(self, content: bytes) -> bytes:
        if not self.forged:
            return content
        prefix = wire.Prefix.parse(content[: wire.PREFIX_BYTES])
        end = wire.PREFIX_BYTES + prefix.head_bytes
        facts = json.loads(content[wire.PREFIX_BYTES : end])
        forged = dict(self.forged)
        facts["message"] = forged.pop("message", facts["message"])
        facts["values"] |= forged
        head = json.dumps(facts).encode()
        # The length of the head is at bytes 8 to 11.
        length = len(head).to_bytes(4, "little")
        return content[:8] + length + content[12 : wire.PREFIX_BYTES] + head + content[end:]


def _read(stream: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        piece = stream.recv(size - len(found))
        if not piece:
            raise ConnectionError("the agent closed the connection in an answer")
        found += piece
    return bytes(found)


class Attacked:
    """Agents that are attacked in one job after the other.

    Args:
        root: Of all their files.
        agents: One for each client.
        parts: Theirs.
    """

    def __init__(
        self,
        root: Path,
        agents: Sequence[AgentProcess],
        parts: Sequence[GraphPartition],
    ) -> None:
        self.agents, self.parts = agents, parts
        self._root = root
        self._jobs = 0

    def job(
        self,
        keys: Mapping[str, Any] = MappingProxyType({}),
        of_one: Mapping[int, Mapping[str, Any]] = MappingProxyType({}),
    ) -> Adversary:
        """Return a server that asks about a job of its own.

        Args:
            keys: Of the run, beside the usual ones.
            of_one: By client, keys that it alone is told otherwise.
        """
        self._jobs += 1
        return self._server(f"job-{self._jobs:012x}", keys, of_one)

    def same_job(self, server: Adversary, of_one: Mapping[int, Mapping[str, Any]]) -> Adversary:
        """Return a server that asks about the same job, by another configuration of some."""
        return self._server(server.job, {}, of_one)

    def _server(
        self, name: str, keys: Mapping[str, Any], of_one: Mapping[int, Mapping[str, Any]]
    ) -> Adversary:
        clients = [
            SocketClient(agent.socket, _told({**keys, **of_one.get(agent.client, {})}))
            for agent in self.agents
        ]
        federation = Federation.read(self._root / ROSTER)
        assert federation is not None
        config = make_config(_told(keys))
        return Adversary(clients, self.parts, config, federation.agreement, name)

    def agree(self, *, tolerated: int) -> None:
        """Have all owners sign another agreement."""
        identities = [
            Identity.load(agent.folder / "key.pem", agent.folder / "certificate.pem")
            for agent in self.agents
        ]
        agree(self._root, self.parts, identities, tolerated=tolerated)

    def forget(self, server: Adversary, client: int) -> None:
        """Have an agent forget a job, as whoever reaches its socket can."""
        ask_agent(self.agents[client].socket, "forget", job=server.job)

    def layers(self, client: int, server: Adversary, layer: int) -> dict[str, float]:
        """Return what an agent's status tells of bytes that it sent before a layer."""
        found: Counter[str] = Counter()
        for peer in self.agents[client].status()["peers"]:
            for crossed in peer.get("layers", []):
                if (crossed["job"], crossed["layer"], crossed["direction"]) == (
                    server.job,
                    layer,
                    "out",
                ):
                    found["status payload-bytes"] += crossed["payload_bytes"]
        return dict(found)

    @contextmanager
    def put_back(self, client: int) -> Iterator[None]:
        """Copy what an agent keeps; in the end, put that back and start the agent again."""
        agent = self.agents[client]
        copy = self._root / f"snapshot-{client}"
        shutil.copytree(agent.state, copy)
        yield
        agent.kill()
        shutil.rmtree(agent.state)
        copy.rename(agent.state)
        agent.start()


@contextmanager
def attacked() -> Iterator[Attacked]:
    """Start agents whose owners agreed on one cohort of which two may work with the server."""
    parts = [
        replace(part, test_mask=np.zeros_like(part.test_mask))
        if part.client in _NOT_TESTED
        else part
        for part in make_parts(make_config(_VALUES))
    ]
    with (
        TemporaryDirectory(prefix="attacks-") as folder,
        agents(Path(folder), parts, settings=_SETTINGS, tolerated=len(COLLUDERS)) as made,
    ):
        yield Attacked(Path(folder), made, parts)


def _told(keys: Mapping[str, Any]) -> dict[str, Any]:
    values = {**config_values(make_config({**_VALUES, **keys})), "engine": "deployment"}
    return {**values, **dict.fromkeys(DATA_PATH_KEYS, "")}


def _copies(
    server: Adversary,
    of_one: Mapping[int, Mapping[str, Any]] = MappingProxyType({}),
    without: Collection[int] = (),
) -> tuple[list[LazyClient], list[MemoryStore]]:
    """Return clients as those of a server, in this process and not masked, and what they keep.

    All but those ``without`` have sent their rows.
    """
    stores = [MemoryStore() for _ in server.parts]
    values = {**config_values(server.config), "secure-aggregation": "none", "engine": "inline"}
    channel = MemoryChannel()
    copies = [
        LazyClient(
            part,
            make_config({**values, **of_one.get(part.client, {})}),
            job=server.job,
            channel=channel,
            store=store,
        )
        for part, store in zip(server.parts, stores, strict=True)
    ]
    for peer, copy in enumerate(copies):
        if peer not in without:
            copy.publish(PublishRequest(ticket=server.ticket()))
    return copies, stores


def rows_that_are_not_zero(server: Adversary, request: PublishRequest, client: int) -> int:
    """Return how many of the rows that a client sends are not zero."""
    copies, stores = _copies(server)
    for copy in copies:
        copy.collect(CollectRequest(ticket=server.ticket(), close=True))
    copy, ticket = copies[client], request.ticket
    copy.publish(request)
    rows = stores[client].rows(ticket.stage, ticket.weights_digest)
    assert rows is not None
    return sum(int(np.count_nonzero(peer.send.gather(rows))) for peer in copy.crossing.plan.peers)


def update_in_the_clear(
    server: Adversary,
    request: TrainRequest,
    client: int,
    *,
    of_one: Mapping[int, Mapping[str, Any]] = MappingProxyType({}),
    without: Collection[int] = (),
) -> np.ndarray:
    """Return the update of a client by a copy of all clients that are not masked.

    Args:
        server: Of the job.
        request: What is asked.
        client: Whose update.
        of_one: By client, keys that it alone has otherwise.
        without: Peers of whom it has no rows.
    """
    copies, _ = _copies(server, of_one, without)
    copies[client].collect(CollectRequest(ticket=server.ticket(), close=True))
    found: np.ndarray = with_zeros(
        copies[client].train_layer(replace(request, steps=None)).update_sum
    )
    return found


def refusal(ask: Callable[[], Answer]) -> tuple[Answer | None, str]:
    """Ask; return the answer, or None and what was said in its place."""
    try:
        return ask(), ""
    except RetexoError as error:
        return None, str(error)


def values_of(request: TrainRequest, numbers: np.ndarray) -> np.ndarray:
    """Return the update that whole numbers stand for."""
    shared, exponents = MaskedUpdates.shared(request.steps or b"")
    found: np.ndarray = shared.grid.values(numbers, exponents)
    return found
