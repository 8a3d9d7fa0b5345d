"""What the server asks of an agent so that it finds its peers; without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from retexo_fl.agent.api import ClientApi, Ticket
from retexo_fl.errors import RemoteProtocolError
from retexo_fl.units import counted

#: A parcel and the client at its other end.
Addressed = tuple[int, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class IntroduceRequest:
    """Learn who the clients are; one that was given a roster believes that.

    Attributes:
        ticket: Names job and attempt.
        roster: Certificates and addresses of all clients, TOML.
    """

    ticket: Ticket
    roster: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IntroduceAnswer:
    """How many clients the roster has that is believed."""

    members: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayRequest:
    """Take parcels from peers, and hand out those for them.

    Attributes:
        ticket: Names job and attempt.
        trip: Number of the question in its attempt: one that is asked again has the same.
        peers: By parcel, the client that it comes from.
        sizes: By parcel, its bytes.
        parcels: (sum of sizes,) uint8, one after the other.
    """

    ticket: Ticket
    trip: int
    peers: tuple[int, ...]
    sizes: tuple[int, ...]
    parcels: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayAnswer:
    """Parcels as in :class:`RelayRequest`, by the client that they go to."""

    peers: tuple[int, ...]
    sizes: tuple[int, ...]
    parcels: np.ndarray


def relay_request(ticket: Ticket, trip: int, parcels: Sequence[Addressed]) -> RelayRequest:
    """Return the question that hands parcels to a client."""
    return RelayRequest(
        ticket=ticket,
        trip=trip,
        peers=tuple(peer for peer, _ in parcels),
        sizes=tuple(len(content) for _, content in parcels),
        parcels=_joined(parcels),
    )


def relay_answer(parcels: Sequence[Addressed]) -> RelayAnswer:
    """Return the answer that hands parcels out."""
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


@runtime_checkable
class AgentApi(ClientApi, Protocol):
    """A client on a machine of its own: what it needs beside to find its peers."""

    def introduce(self, request: IntroduceRequest) -> IntroduceAnswer:
        """See :class:`IntroduceRequest`."""
        ...

    def relay(self, request: RelayRequest) -> RelayAnswer:
        """See :class:`RelayRequest`."""
        ...
