"""Runs one round of an algorithm that exchanges inside it, all clients interleaved in one process.

Every client's step runs until it asks for an exchange; the vectors of all clients are then moved as
frames of the exchange protocol, and the steps go on. No step ever waits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from retexo_fl.agent.api import Traffic
from retexo_fl.agent.mailbox import counted_traffic, decode_block
from retexo_fl.errors import LocalProtocolError
from retexo_fl.exchange import BlockHeader, encode_block, to_dense
from retexo_fl.training.rounds import InnerExchange, Received

Result = TypeVar("Result")
Step = Generator[InnerExchange, Received, Result]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOutcome(Generic[Result]):
    """What a round came to.

    Attributes:
        results: What each client's step returned.
        sent: Bytes that left each client, over all exchanges of the round.
    """

    results: Mapping[int, Result]
    sent: Mapping[int, Traffic]


def run_round(steps: Mapping[int, Step[Result]], *, job: str, layer: int) -> RoundOutcome[Result]:
    """Run all clients' steps of one round to their end.

    Args:
        steps: One fresh generator for each client.
        job: Name of the training.
        layer: Stage index, 0 for algorithms that train all layers at once.

    Raises:
        LocalProtocolError: Clients disagree on which exchange comes next, or on its vectors.
    """
    results: dict[int, Result] = {}
    sent = {client: Traffic() for client in steps}
    asked = {client: _resume(steps[client], None, client, results) for client in sorted(steps)}
    number = 0
    while len(results) < len(steps):
        exchanges = {client: item for client, item in asked.items() if item is not None}
        _check_same(exchanges, set(steps) - set(results))
        received = _move(exchanges, sent, job=job, layer=layer, number=number)
        number += 1
        asked = {
            client: _resume(steps[client], received[client], client, results)
            for client in exchanges
        }
        if results and len(results) < len(steps):
            raise LocalProtocolError(
                f"clients {sorted(results)} ended their round while others exchange"
            )
    return RoundOutcome(results=results, sent=sent)


def _resume(
    step: Step[Result], received: Received | None, client: int, results: dict[int, Result]
) -> InnerExchange | None:
    try:
        return next(step) if received is None else step.send(received)
    except StopIteration as stop:
        results[client] = stop.value
        return None


def _check_same(exchanges: Mapping[int, InnerExchange], running: set[int]) -> None:
    labels = {item.label: client for client, item in exchanges.items()}
    if len(labels) != 1 or set(exchanges) != running:
        raise LocalProtocolError(
            f"clients disagree on the next exchange: {sorted(labels)} from {sorted(exchanges)}"
        )


def _move(
    exchanges: Mapping[int, InnerExchange],
    sent: dict[int, Traffic],
    *,
    job: str,
    layer: int,
    number: int,
) -> dict[int, dict[int, np.ndarray]]:
    """Carry every block from its sender to its receiver as frames."""
    received: dict[int, dict[int, np.ndarray]] = {client: {} for client in exchanges}
    for sender, exchange in exchanges.items():
        for receiver, vectors in sorted(exchange.outgoing.items()):
            wanted = exchanges[receiver].expected.get(sender)
            if wanted != len(vectors) or vectors.shape[1] != exchanges[receiver].width:
                raise LocalProtocolError(
                    f"{exchange.label}: client {sender} sends {vectors.shape} to client "
                    f"{receiver}, which expects {wanted} of width {exchanges[receiver].width}"
                )
            header = _header(
                exchange, vectors, sender, receiver, job=job, layer=layer, number=number
            )
            block = encode_block(header, vectors)
            stream = b"".join(block.frames)
            decoded, _ = decode_block(header, stream)
            assert decoded is not None, "whole frames make a whole block"
            received[receiver][sender] = to_dense(decoded)
            sent[sender] += counted_traffic(block.traffic, len(stream))
    return received


def _header(
    exchange: InnerExchange,
    vectors: np.ndarray,
    sender: int,
    receiver: int,
    *,
    job: str,
    layer: int,
    number: int,
) -> BlockHeader:
    name = f"{exchange.label}/{number}/{sender}/{receiver}/{len(vectors)}".encode()
    return BlockHeader(
        job=job,
        layer=layer,
        sender=sender,
        receiver=receiver,
        weights_digest=hashlib.sha256(b"round " + name).digest(),
        # Not by a plan: what goes along which edges is agreed on by the exchange's label.
        num_edges=0,
        plan_digest=hashlib.sha256(b"plan " + name).digest(),
        num_vectors=len(vectors),
        width=vectors.shape[1],
        dtype=str(vectors.dtype),
    )
