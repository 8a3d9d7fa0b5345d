"""One client's part of a round that exchanges inside it, its blocks carried by the depot.

What is sent and what is decoded are the blocks that the in-process engine makes. A client that
dies in the middle computes the round again from its start: every block has the name that it had.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from retexo_fl.agent.api import EvaluateRequest, PeerTraffic, Ticket, Traffic, TrainRequest
from retexo_fl.agent.blocks import counted_traffic, decode_block
from retexo_fl.agent.headers import InnerBlock, RoundName
from retexo_fl.agent.inner_vectors import fixed_outgoing, vectors_received, vectors_to_send
from retexo_fl.agent.vectors.control import ExchangeId
from retexo_fl.agent.vectors.port import JobVectors
from retexo_fl.channels import BlockKey, Channel
from retexo_fl.errors import ExchangeIncomplete
from retexo_fl.exchange import BlockHeader, encode_block, to_dense, wire_codec
from retexo_fl.training.rounds import InnerExchange, Received, Steps

Answer = TypeVar("Answer")

#: Told of what went to (``out``) or came from (``in``) a peer: purpose, peer, bytes, direction.
Watcher = Callable[[str, int, Traffic, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundMessage:
    """The message that a round's blocks belong to; equal on all clients.

    Attributes:
        name: What the frames say.
        ticket: Of the message.
        message: ``train``, or what is evaluated.
        weights_hash: 32 bytes over the weights that it carries.
    """

    name: RoundName
    ticket: Ticket
    message: str
    weights_hash: bytes

    @classmethod
    def of(cls, request: TrainRequest | EvaluateRequest, *, codec: str) -> RoundMessage:
        """Name the message that carries a request."""
        ticket = request.ticket
        content = np.ascontiguousarray(request.weights).tobytes()
        return cls(
            name=RoundName(job=ticket.job, layer=ticket.stage, codec=codec),
            ticket=ticket,
            message=request.nodes if isinstance(request, EvaluateRequest) else "train",
            weights_hash=hashlib.sha256(content).digest(),
        )

    def digest(self, label: str, number: int) -> bytes:
        """Return the 32 bytes that name one exchange of the round."""
        ticket = self.ticket
        place = (ticket.job, ticket.attempt, ticket.stage, ticket.round)
        text = json.dumps([*place, self.message, self.weights_hash.hex(), label, number])
        return hashlib.sha256(b"retexo inner exchange " + text.encode()).digest()


class RoundRunner(Generic[Answer]):
    """Runs a client's steps up to each exchange; who calls it waits for the peers' blocks.

    Args:
        steps: Fresh steps of the client.
        message: That started them.
        client: Its index.
        channel: How blocks travel.
        watch: Told of every block.
        datagrams: Carry vectors to and from peers that they reach, where a codec rounds them.

    Attributes:
        keys: Every block of the round so far, both ways.
        exchanges: Those of the round in which datagrams took part.
        place: The exchange that is under way, for messages.
    """

    def __init__(
        self,
        steps: Steps[Answer],
        message: RoundMessage,
        client: int,
        channel: Channel,
        *,
        watch: Watcher,
        datagrams: JobVectors | None = None,
    ) -> None:
        self._steps = steps
        self._message = message
        self._client = client
        self._channel = channel
        self._watch = watch
        self._datagrams = datagrams
        self._exchange: InnerExchange | None = None
        self._number = -1
        self._answer: list[Answer] = []
        self._moved: dict[str, PeerTraffic] = {}
        self.keys: set[BlockKey] = set()
        self.exchanges: set[ExchangeId] = set()
        self.place = ""

    def advance(self) -> frozenset[BlockKey]:
        """Take what has arrived, compute, send; return the blocks that the next call needs.

        Returns:
            Nothing when the steps have ended.

        Raises:
            ExchangeIncomplete: A block that the last call asked for is not whole.
            RemoteProtocolError: A peer's block is not what the exchange expects.
            RetexoError: Whatever the steps raise.
        """
        while True:
            received = None if self._exchange is None else self._receive(self._exchange)
            self._exchange = self._resume(received)
            if self._exchange is None:
                return frozenset()
            self._number += 1
            self.place = f"round {self._message.ticket.round}, {self._exchange.label}"
            self._send(self._exchange)
            awaited = frozenset(self._incoming(self._exchange, p) for p in self._exchange.expected)
            self.keys |= awaited
            if awaited:
                return awaited

    @property
    def answer(self) -> Answer:
        """What the steps returned, after :meth:`advance` returned nothing."""
        return self._answer[0]

    def moved(self, purpose: str) -> PeerTraffic:
        """Return what crossed for a purpose, ``train`` or ``evaluate``."""
        return self._moved.get(purpose, PeerTraffic())

    def _resume(self, received: Received | None) -> InnerExchange | None:
        try:
            return next(self._steps) if received is None else self._steps.send(received)
        except StopIteration as stop:
            self._answer = [stop.value]
            return None

    def _send(self, exchange: InnerExchange) -> None:
        name = self._message.name
        reached = self._reached(exchange)
        if self._datagrams is not None and reached:
            self._send_datagrams(exchange, self._datagrams, reached)
        for peer, vectors in sorted(vectors_to_send(exchange, name.codec).items()):
            if peer in reached:
                continue
            key = self._key(exchange, sender=self._client, receiver=peer)
            header = self._outgoing_header(exchange, peer)
            block = encode_block(header, vectors, codec=wire_codec(name.codec))
            self.keys.add(key)
            # Also where a process that was killed has sent it: its answer was never read.
            self._channel.send_block(key, block.frames)
            traffic = counted_traffic(block.traffic, sum(map(len, block.frames)))
            self._count(exchange.purpose, peer, sent=traffic)

    def _reached(self, exchange: InnerExchange) -> list[int]:
        """Return the peers to and from which datagrams go in an exchange."""
        if self._datagrams is None or exchange.is_exact:
            return []
        return [peer for peer in sorted(exchange.outgoing) if self._datagrams.reaches(peer)]

    def _send_datagrams(
        self, exchange: InnerExchange, datagrams: JobVectors, reached: list[int]
    ) -> None:
        fixed = fixed_outgoing(exchange)
        assert fixed is not None, "datagrams carry rounded vectors only"
        headers = {peer: self._outgoing_header(exchange, peer) for peer in reached}
        for peer, moved in datagrams.send(headers, fixed).items():
            self._count(exchange.purpose, peer, sent=moved)
        expected = {peer: self._incoming_header(exchange, peer) for peer in reached}
        datagrams.expect(expected, exchange.targets, all_needed=True)
        self.exchanges.add(self._exchange_id(exchange))

    def _receive(self, exchange: InnerExchange) -> Received:
        blocks: dict[int, np.ndarray] = {}
        if self._exchange_id(exchange) in self.exchanges and self._datagrams is not None:
            for unit in self._datagrams.arrived(self._exchange_id(exchange)):
                for peer, (vectors, moved) in unit.items():
                    blocks[peer] = vectors
                    self._count(exchange.purpose, peer, received=moved)
        for peer in sorted(exchange.expected.keys() - blocks.keys()):
            blocks[peer] = self._block(exchange, peer)
        received = vectors_received(exchange, blocks, self._message.name.codec)
        dtype = self._dtype(exchange)
        return {peer: vectors.astype(dtype, copy=False) for peer, vectors in received.items()}

    def _outgoing_header(self, exchange: InnerExchange, peer: int) -> BlockHeader:
        vectors = exchange.outgoing[peer]
        described = InnerBlock(
            label=exchange.label,
            number=self._number,
            sender=self._client,
            receiver=peer,
            vectors=len(vectors),
            width=vectors.shape[1],
            dtype=str(vectors.dtype),
        )
        return described.header(self._message.name, self._exchange_id(exchange)[2])

    def _incoming_header(self, exchange: InnerExchange, peer: int) -> BlockHeader:
        described = InnerBlock(
            label=exchange.label,
            number=self._number,
            sender=peer,
            receiver=self._client,
            vectors=exchange.expected[peer],
            width=exchange.width,
            dtype=self._dtype(exchange),
        )
        return described.header(self._message.name, self._exchange_id(exchange)[2])

    def _dtype(self, exchange: InnerExchange) -> str:
        return str(next(iter(exchange.outgoing.values())).dtype)

    def _exchange_id(self, exchange: InnerExchange) -> ExchangeId:
        ticket = self._message.ticket
        return ticket.job, ticket.stage, self._message.digest(exchange.label, self._number)

    def _block(self, exchange: InnerExchange, peer: int) -> np.ndarray:
        key = self._incoming(exchange, peer)
        expected = self._incoming_header(exchange, peer)
        stream = self._channel.receive_block(key)
        vectors, counted = decode_block(expected, stream or b"")
        if vectors is None:
            raise ExchangeIncomplete(
                f"client {self._client}: {self.place}: the vectors of client {peer} are gone"
            )
        traffic = counted_traffic(counted, counted.wire_bytes)
        self._count(exchange.purpose, peer, received=traffic)
        return to_dense(vectors)

    def _count(
        self,
        purpose: str,
        peer: int,
        *,
        sent: Traffic | None = None,
        received: Traffic | None = None,
    ) -> None:
        moved = PeerTraffic(sent=sent or Traffic(), received=received or Traffic())
        self._moved[purpose] = self.moved(purpose) + moved
        for traffic, way in ((sent, "out"), (received, "in")):
            if traffic is not None:
                self._watch(purpose, peer, traffic, way)

    def _incoming(self, exchange: InnerExchange, peer: int) -> BlockKey:
        return self._key(exchange, sender=peer, receiver=self._client)

    def _key(self, exchange: InnerExchange, *, sender: int, receiver: int) -> BlockKey:
        job, stage, digest = self._exchange_id(exchange)
        return BlockKey(
            job=job,
            layer=stage,
            weights_digest=digest,
            sender=sender,
            receiver=receiver,
        )
