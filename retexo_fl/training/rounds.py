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
from typing import Protocol, TypeVar

import numpy as np

Result_co = TypeVar("Result_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class InnerExchange:
    """One exchange inside a round, as one client asks for it.

    Attributes:
        label: Names the exchange within the round, such as ``forward-1``; equal on all clients.
        outgoing: By peer, the (vectors, width) rows to send; one entry for each peer.
        expected: By peer, how many vectors of ``width`` will come.
        width: Width of what is received.
    """

    label: str
    outgoing: Mapping[int, np.ndarray]
    expected: Mapping[int, int]
    width: int


#: By peer, the (vectors, width) rows received, as many as were expected.
Received = Mapping[int, np.ndarray]


class ExchangingStep(Protocol[Result_co]):
    """One client's part of a round that exchanges.

    Every client of a job yields the same labels in the same order.
    """

    def __call__(
        self, weights: np.ndarray, round_number: int
    ) -> Generator[InnerExchange, Received, Result_co]:
        """Run one round from incoming ``weights`` ((P,)); yields exchanges, returns the update."""
        ...
