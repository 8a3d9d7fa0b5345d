"""Algorithms that exchange vectors inside a round, written as generators of their exchanges.

``standard`` training needs embeddings and gradients of peers in the middle of a step. A client that
waited for them would deadlock wherever fewer workers run than clients exist. So a step *yields*
what it sends and is resumed with what it received; who moves the vectors in between is the
engine's business: the in-process engine interleaves all clients, resident agents talk among
themselves.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class InnerExchange:
    """One exchange inside a round, as one client asks for it.

    Attributes:
        label: Names the exchange within the round, such as ``forward-1``; equal on all clients.
        purpose: For the ledger: ``train`` or ``evaluate``.
        outgoing: By peer, the (vectors, width) rows to send; one entry for each peer.
        expected: By peer, how many vectors of ``width`` will come.
        width: Width of what is received.
        targets: By peer, the (vectors,) numbers of what each vector that will come is only ever
            added to, or -1 where it is read by itself; None where all are. The codec ``fixed`` adds
            vectors of one target exactly.
        is_exact: Every bit of what is sent counts (numbers of vectors, not embeddings): no codec
            rounds it.
    """

    label: str
    purpose: str
    outgoing: Mapping[int, np.ndarray]
    expected: Mapping[int, int]
    width: int
    targets: Mapping[int, np.ndarray] | None = None
    is_exact: bool = False


#: By peer, the (vectors, width) rows received, as many as were expected.
Received: TypeAlias = Mapping[int, np.ndarray]

#: One client's part of a round: yields exchanges, all clients of a job the same labels in the same
#: order, and returns the client's result of the round.
Steps: TypeAlias = Generator[InnerExchange, Received, Result]


def without_exchange(result: Result) -> Steps[Result]:
    """Return steps that end at once with what was computed."""
    yield from ()
    return result


def run_alone(steps: Steps[Result]) -> Result:
    """Run a client's steps to their end where there is no peer to exchange with."""
    try:
        exchange = next(steps)
        while True:
            assert not exchange.outgoing, f"{exchange.label}: there is no channel to peers"
            exchange = steps.send({})
    except StopIteration as stop:
        result: Result = stop.value
        return result
