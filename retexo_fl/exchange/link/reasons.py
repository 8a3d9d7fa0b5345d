"""Why a peer was refused: one word for counters, one sentence for a person."""

from __future__ import annotations

from enum import StrEnum, unique
from typing import Final

from retexo_fl.errors import (
    ChannelError,
    ChannelTimedOut,
    ChannelUnavailable,
    PartitionError,
    PeerRefused,
    ProtocolError,
    RetexoError,
)


@unique
class Reason(StrEnum):
    """The word that a refusal is counted under; its sentence begins with it."""

    #: The other end of a connection is not the expected client, or not in the roster.
    CERTIFICATE = "certificate"
    #: No handshake, greeting or whole message in time.
    SLOW = "slow"
    #: Nothing arrived for too long.
    SILENT = "silent"
    #: Too many offers that had to be refused, or bytes that were not asked for.
    FLOOD = "flood"
    #: More bytes than a frame, a message or a block may have.
    OVERSIZE = "oversize"
    #: It speaks for another client than the one that its certificate names.
    IMPERSONATION = "impersonation"
    #: It broke the protocol.
    PROTOCOL = "protocol"
    #: What it offers does not follow from the shared plan.
    PLAN = "plan"
    #: A job that is not known here, or not yet.
    JOB = "job"
    #: This machine could not keep it.
    STORAGE = "storage"
    #: It was refused a short time ago.
    PENALTY = "penalty"
    #: It has enough connections.
    CONNECTIONS = "connections"
    #: The peer refused something of ours.
    BY_PEER = "by-peer"
    #: It could not be reached, or the connection broke.
    CONNECTION = "connection"
    #: An error here without a name: a bug of ours, whichever end caused it.
    FAULT = "fault"


#: After one of these a peer has to wait before it may come back.
PUNISHED = frozenset(
    {
        Reason.SLOW,
        Reason.FLOOD,
        Reason.OVERSIZE,
        Reason.IMPERSONATION,
        Reason.PROTOCOL,
        Reason.FAULT,
    }
)


def refused(reason: Reason, sentence: str) -> PeerRefused:
    """Return the error that names its reason."""
    return PeerRefused(f"{reason}: {sentence}")


def reason_of(error: RetexoError) -> Reason:
    """Return the word that an error is counted under."""
    word, colon, _ = str(error).partition(":")
    if isinstance(error, PeerRefused) and colon and word in Reason.__members__.values():
        return Reason(word)
    return next((reason for kind, reason in _BY_KIND if isinstance(error, kind)), Reason.PROTOCOL)


_BY_KIND: Final = (
    ((PeerRefused, PartitionError), Reason.PLAN),
    ((ProtocolError,), Reason.PROTOCOL),
    ((ChannelTimedOut,), Reason.SILENT),
    ((ChannelUnavailable,), Reason.STORAGE),
    ((ChannelError,), Reason.CONNECTION),
)
