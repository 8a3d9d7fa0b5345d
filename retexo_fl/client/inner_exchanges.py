"""One client's part of a round that exchanges inside it, its blocks carried by the depot.

What is sent and what is decoded are the blocks that the in-process engine makes. A client that
dies in the middle computes the round again from its start: every block has the name that it had.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from retexo_fl.channels.base import BlockKey, Channel
from retexo_fl.client.api import EvaluateRequest, Ticket, TrainRequest
from retexo_fl.client.peer_exchange import InnerBlock, PeerExchange, RoundName
from retexo_fl.client.vector_carrier import ExchangeId, VectorCarrier
from retexo_fl.errors import ExchangeIncomplete
from retexo_fl.exchange import (
    FIXED,
    BlockHeader,
    FixedVectors,
    fixed_vectors,
    sum_shared,
    to_dense,
    wire_codec,
)
from retexo_fl.ledger import PeerTraffic, Traffic
from retexo_fl.training.rounds import InnerExchange, Received, Steps

Answer = TypeVar("Answer")

#: Called for what went to (``out``) or came from (``in``) a peer: purpose, peer, bytes, direction.
Watcher = Callable[[str, int, Traffic, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundMessage:
    """The message that a round's blocks belong to; equal on all clients.

    Attributes:
        name: Its name in the frames.
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
        made_of = (ticket.weights_digest.hex(), self.weights_hash.hex())
        text = json.dumps([*place, self.message, *made_of, label, number])
        return hashlib.sha256(b"retexo inner exchange " + text.encode()).digest()


class RoundRunner(Generic[Answer]):
    """Runs a client's steps up to each exchange; who calls it waits for the peers' blocks.

    Args:
        steps: Fresh steps of the client.
        message: That started them.
        client: Its index.
        channel: How blocks travel.
        watch: Called for every block.
        datagrams: Carry vectors to and from peers that they reach, where a codec rounds them.

    Attributes:
        keys: Every block of the round so far, both ways.
        exchanges: Those of the round in which datagrams took part.
        exchange: The one that is under way; None before the first and after the last.
        number: Its place in the round, from 0.
    """

    def __init__(
        self,
        steps: Steps[Answer],
        message: RoundMessage,
        client: int,
        channel: Channel,
        *,
        watch: Watcher,
        datagrams: VectorCarrier | None = None,
    ) -> None:
        self._steps = steps
        self._message = message
        self._codec = message.name.codec
        self._client = client
        self._channel = channel
        self._watch = watch
        self._datagrams = datagrams
        self._peers: PeerExchange | None = None
        self._dtype = "float32"
        self._answer: list[Answer] = []
        self._moved: dict[str, PeerTraffic] = {}
        self.keys: set[BlockKey] = set()
        self.exchanges: set[ExchangeId] = set()
        self.exchange: InnerExchange | None = None
        self.number = -1

    def advance(self) -> frozenset[BlockKey]:
        """Take what has arrived, compute, send; return the blocks that the next call needs.

        Returns:
            Nothing when the steps have ended.

        Raises:
            ExchangeIncomplete: A block that the last call asked for is not whole.
            RemoteProtocolError: A peer's block is not what the exchange expects.
            RetexoError: Whatever the steps raise.
        """
        awaited: frozenset[BlockKey] = frozenset()
        while not awaited and self.begin_next():
            awaited = self.send()
        return awaited

    def begin_next(self) -> bool:
        """Take what has arrived and compute up to the next exchange; False if there is none.

        Raises:
            RetexoError: As :meth:`advance`.
        """
        received = None if self.exchange is None else self._receive(self.exchange)
        try:
            step = next(self._steps) if received is None else self._steps.send(received)
        except StopIteration as stop:
            self.exchange = None
            self._answer = [stop.value]
            return False
        self.exchange = step
        self.number += 1
        return True

    def send(self) -> frozenset[BlockKey]:
        """Send the blocks of the exchange; return those that it needs.

        Raises:
            RetexoError: As :meth:`advance`.
        """
        exchange = self.exchange
        assert exchange is not None, "begun by begin_next"
        peers = self._peers = self._peers_of(exchange)
        self.keys |= peers.outgoing_keys
        fixed = fixed_outgoing(exchange, self._codec)
        leaving = exchange.outgoing if fixed is None else fixed.vectors
        peers.send([(peer, rows) for peer, rows in sorted(leaving.items()) if rows.shape[0]], fixed)
        peers.expect()
        if peers.reached:
            self.exchanges.add(peers.id)
        awaited = peers.incoming_keys
        self.keys |= awaited
        return awaited

    @property
    def place(self) -> str:
        """The exchange that is under way, for messages."""
        label = self.exchange.label if self.exchange else "its end"
        return f"round {self._message.ticket.round}, {label}"

    @property
    def answer(self) -> Answer:
        """What the steps returned, after :meth:`advance` returned nothing."""
        return self._answer[0]

    @property
    def moved(self) -> Mapping[str, PeerTraffic]:
        """What crossed, by purpose: ``train``, ``evaluate``."""
        return self._moved

    def _peers_of(self, exchange: InnerExchange) -> PeerExchange:
        digest = self._message.digest(exchange.label, self.number)
        ticket = self._message.ticket
        some = next(iter(exchange.outgoing.values()), None)
        dtype = self._dtype = self._dtype if some is None else str(some.dtype)

        def header(sender: int, receiver: int, vectors: int, width: int) -> BlockHeader:
            block = InnerBlock(
                label=exchange.label,
                number=self.number,
                sender=sender,
                receiver=receiver,
                vectors=vectors,
                width=width,
                dtype=dtype,
            )
            return block.header(self._message.name, digest)

        def watch(peer: int, traffic: Traffic, way: str) -> None:
            moved = PeerTraffic(**{"sent" if way == "out" else "received": traffic})
            purpose = exchange.purpose
            self._moved[purpose] = self._moved.get(purpose, PeerTraffic()) + moved
            self._watch(purpose, peer, traffic, way)

        made = PeerExchange(
            (ticket.job, ticket.stage, digest),
            self._channel,
            codec=wire_codec(self._codec),
            outgoing={
                peer: header(self._client, peer, len(vectors), vectors.shape[1])
                for peer, vectors in exchange.outgoing.items()
                if len(vectors)
            },
            incoming={
                peer: header(peer, self._client, vectors, exchange.width)
                for peer, vectors in sorted(exchange.expected.items())
                if vectors
            },
            watch=watch,
        )
        if not exchange.is_exact:
            made.use_datagrams(self._datagrams, exchange.targets, all_needed=True, kept=False)
        return made

    def _receive(self, exchange: InnerExchange) -> Received:
        peers = self._peers
        assert peers is not None, "sent before it is received"
        peers.receive()
        for peer in peers.missing:
            raise peers.refused.get(peer) or ExchangeIncomplete(
                f"client {self._client}: {self.place}: the vectors of client {peer} were lost"
            )
        nothing = np.zeros((0, exchange.width), dtype=self._dtype)
        blocks = {
            peer: to_dense(peers.received.get(peer, nothing)) for peer in sorted(exchange.expected)
        }
        received = vectors_received(exchange, blocks, self._codec)
        return {p: vectors.astype(self._dtype, copy=False) for p, vectors in received.items()}


# ---- what the codec makes of the vectors ---------------------------------------------------------


def fixed_outgoing(exchange: InnerExchange, codec: str) -> FixedVectors | None:
    """Return what ``fixed`` makes of what leaves a client; None where every bit counts.

    Raises:
        LocalProtocolError: A value is not finite.
    """
    is_rounded = codec == FIXED and not exchange.is_exact
    return fixed_vectors(exchange.outgoing) if is_rounded else None


def vectors_received(exchange: InnerExchange, blocks: Received, codec: str) -> Received:
    """Return what the steps of a client are resumed with.

    Args:
        exchange: That it asked for.
        blocks: By peer, what came.
        codec: Of the run.
    """
    if codec != FIXED or exchange.targets is None:
        return blocks
    peers = sorted(blocks)
    summed = sum_shared([blocks[p] for p in peers], [exchange.targets[p] for p in peers])
    received: dict[int, np.ndarray] = {
        peer: to_dense(vectors) for peer, vectors in zip(peers, summed, strict=True)
    }
    return received
