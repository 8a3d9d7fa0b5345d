"""Parcels of peers as the server passes them on; without torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from retexo_fl.client.api import RelayAnswer, RelayRequest, Ticket
from retexo_fl.errors import RemoteProtocolError
from retexo_fl.units import counted

#: A parcel and the client at its other end.
Addressed = tuple[int, bytes]


def relay_request(ticket: Ticket, trip: int, parcels: Sequence[Addressed]) -> RelayRequest:
    """Return the question that brings a client parcels."""
    return RelayRequest(
        ticket=ticket,
        trip=trip,
        peers=tuple(peer for peer, _ in parcels),
        sizes=tuple(len(content) for _, content in parcels),
        parcels=_joined(parcels),
    )


def relay_answer(parcels: Sequence[Addressed]) -> RelayAnswer:
    """Return the answer that brings the server parcels."""
    return RelayAnswer(
        peers=tuple(peer for peer, _ in parcels),
        sizes=tuple(len(content) for _, content in parcels),
        parcels=_joined(parcels),
    )


def parcels_of(message: RelayRequest | RelayAnswer) -> list[Addressed]:
    """Return the parcels of a message with their clients, in order.

    Raises:
        RemoteProtocolError: The sizes are not those of the parcels.
    """
    peers, sizes, content = message.peers, message.sizes, message.parcels
    if len(peers) != len(sizes) or sum(sizes) != len(content) or content.dtype != np.uint8:
        raise RemoteProtocolError(
            f"parcels: {counted(len(peers), 'client')}, "
            f"{counted(len(sizes), 'size')}, {counted(len(content), 'byte')} of "
            f"{content.dtype}; expected one size for each client, "
            f"{counted(sum(sizes), 'byte')} together"
        )
    ends = np.cumsum(sizes, dtype=np.int64).tolist()
    data = content.tobytes()
    return [
        (peer, data[end - size : end]) for peer, size, end in zip(peers, sizes, ends, strict=True)
    ]


def _joined(parcels: Sequence[Addressed]) -> np.ndarray:
    return np.frombuffer(b"".join(content for _, content in parcels), np.uint8)
