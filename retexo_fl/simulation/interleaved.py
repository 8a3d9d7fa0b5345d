"""Runs one round of an algorithm that exchanges inside it, all clients interleaved in one process.

Every client's steps run until they ask for an exchange; the vectors of all clients are then moved
as frames of the exchange protocol, and the steps go on. No step ever waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from retexo_fl.agent.api import PeerTraffic, Traffic
from retexo_fl.agent.blocks import counted_traffic, decode_block
from retexo_fl.agent.headers import InnerBlock, RoundName
from retexo_fl.agent.inner_vectors import vectors_received, vectors_to_send
from retexo_fl.errors import LocalProtocolError
from retexo_fl.exchange import encode_block, to_dense, wire_codec
from retexo_fl.training.rounds import InnerExchange, Received, Steps

Result = TypeVar("Result")

#: Told, of every exchange, the bytes that crossed from a sender to a receiver, and its purpose.
Watcher = Callable[[Mapping[tuple[int, int], int], str], None]


def no_watch(blocks: Mapping[tuple[int, int], int], purpose: str) -> None:
    """Take no notice of an exchange."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOutcome(Generic[Result]):
    """What a round came to.

    Attributes:
        results: What each client's steps returned.
        moved: Bytes that left and reached each client, by purpose (``train``, ``evaluate``).
    """

    results: Mapping[int, Result]
    moved: Mapping[int, Mapping[str, PeerTraffic]]


def run_round(
    steps: Mapping[int, Steps[Result]], name: RoundName, watch: Watcher = no_watch
) -> RoundOutcome[Result]:
    """Run all clients' steps of one round to their end.

    Args:
        steps: One fresh generator for each client.
        name: Of the round.
        watch: Told of every exchange.

    Raises:
        LocalProtocolError: Clients disagree on which exchange comes next, or on its vectors.
    """
    results: dict[int, Result] = {}
    moved: dict[int, dict[str, PeerTraffic]] = {client: {} for client in steps}
    asked = {client: _resume(steps[client], None, client, results) for client in sorted(steps)}
    number = 0
    while len(results) < len(steps):
        exchanges = {client: item for client, item in asked.items() if item is not None}
        _check_same(exchanges, set(steps) - set(results))
        carrier = _Carrier(exchanges, name, number)
        received = carrier.carry()
        purpose = carrier.purpose
        for client, traffic in carrier.traffic().items():
            moved[client][purpose] = moved[client].get(purpose, PeerTraffic()) + traffic
        watch(carrier.blocks, purpose)
        number += 1
        asked = {
            client: _resume(steps[client], received[client], client, results)
            for client in exchanges
        }
        if results and len(results) < len(steps):
            raise LocalProtocolError(
                f"clients {sorted(results)} ended their round while others exchange"
            )
    return RoundOutcome(results=results, moved=moved)


def _resume(
    step: Steps[Result], received: Received | None, client: int, results: dict[int, Result]
) -> InnerExchange | None:
    try:
        return next(step) if received is None else step.send(received)
    except StopIteration as stop:
        results[client] = stop.value
        return None


def _check_same(exchanges: Mapping[int, InnerExchange], running: set[int]) -> None:
    labels = {(item.label, item.purpose): client for client, item in exchanges.items()}
    if len(labels) != 1 or set(exchanges) != running:
        raise LocalProtocolError(
            f"clients disagree on the next exchange: {sorted(labels)} from {sorted(exchanges)}"
        )


class _Carrier:
    """Carries every block of one exchange from its sender to its receiver as frames."""

    def __init__(
        self, exchanges: Mapping[int, InnerExchange], name: RoundName, number: int
    ) -> None:
        self._exchanges = exchanges
        self._name = name
        self._number = number
        self._sent = {client: Traffic() for client in exchanges}
        self._received = {client: Traffic() for client in exchanges}
        self.blocks: dict[tuple[int, int], int] = {}

    def carry(self) -> dict[int, Received]:
        """Return what each client receives, by sender."""
        received: dict[int, dict[int, np.ndarray]] = {client: {} for client in self._exchanges}
        for sender, exchange in self._exchanges.items():
            leaving = vectors_to_send(exchange, self._name.codec)
            for receiver, vectors in sorted(leaving.items()):
                received[receiver][sender] = self._block(sender, receiver, vectors)
        for client, exchange in self._exchanges.items():
            lacking = sorted(exchange.expected.keys() - received[client].keys())
            if lacking:
                raise LocalProtocolError(
                    f"{exchange.label}: client {client} expects vectors of clients {lacking}, "
                    "which send none"
                )
        return {
            client: vectors_received(exchange, received[client], self._name.codec)
            for client, exchange in self._exchanges.items()
        }

    @property
    def purpose(self) -> str:
        """What the exchange is for; the same to all clients."""
        return next(iter(self._exchanges.values())).purpose

    def traffic(self) -> dict[int, PeerTraffic]:
        """Return the bytes of the exchange at each client."""
        return {
            client: PeerTraffic(sent=self._sent[client], received=self._received[client])
            for client in self._exchanges
        }

    def _block(self, sender: int, receiver: int, vectors: np.ndarray) -> np.ndarray:
        exchange = self._exchanges[receiver]
        wanted = exchange.expected.get(sender)
        if wanted != len(vectors) or vectors.shape[1] != exchange.width:
            raise LocalProtocolError(
                f"{exchange.label}: client {sender} sends {vectors.shape} to client "
                f"{receiver}, which expects {wanted} of width {exchange.width}"
            )
        header = InnerBlock(
            label=exchange.label,
            number=self._number,
            sender=sender,
            receiver=receiver,
            vectors=len(vectors),
            width=vectors.shape[1],
            dtype=str(vectors.dtype),
        ).header(self._name)
        block = encode_block(header, vectors, codec=wire_codec(self._name.codec))
        stream = b"".join(block.frames)
        decoded, counted = decode_block(header, stream)
        assert decoded is not None, "whole frames make a whole block"
        self._sent[sender] += counted_traffic(block.traffic, len(stream))
        self._received[receiver] += counted_traffic(counted, counted.wire_bytes)
        self.blocks[sender, receiver] = len(stream)
        return to_dense(decoded)
