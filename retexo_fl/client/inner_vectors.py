"""What the codec of a run makes of the vectors of an exchange inside a round, at both ends."""

from __future__ import annotations

import numpy as np

from retexo_fl.exchange import FIXED, FixedVectors, fixed_vectors, sum_shared, to_dense
from retexo_fl.training.rounds import InnerExchange, Received


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
