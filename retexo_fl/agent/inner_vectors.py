"""What the codec of a run makes of the vectors of an exchange inside a round, at both ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from retexo_fl.exchange import FIXED, FixedVectors, fixed_vectors, sum_shared, to_dense
from retexo_fl.training.rounds import InnerExchange, Received


def fixed_outgoing(exchange: InnerExchange) -> FixedVectors | None:
    """Return what a client sends under ``fixed``; None where every bit counts.

    Raises:
        LocalProtocolError: A value is not finite.
    """
    return None if exchange.is_exact else fixed_vectors(exchange.outgoing)


def vectors_to_send(exchange: InnerExchange, codec: str) -> Mapping[int, npt.NDArray[Any]]:
    """Return, by peer, the (vectors, width) rows that leave a client.

    Raises:
        LocalProtocolError: A value is not finite.
    """
    fixed = fixed_outgoing(exchange) if codec == FIXED else None
    if fixed is None:
        return exchange.outgoing
    return {peer: to_dense(vectors) for peer, vectors in fixed.vectors.items()}


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
