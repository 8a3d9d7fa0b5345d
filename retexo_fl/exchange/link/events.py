"""What one end of a link learns from the other, one event at a time."""

from __future__ import annotations

from dataclasses import dataclass

from retexo_fl.exchange.block import BlockKey
from retexo_fl.exchange.frames import Buffer
from retexo_fl.exchange.link.messages import Offer, RefusalCode


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerGreeted:
    """The peer speaks this protocol and is the expected client."""

    client: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockOffered:
    """The peer offers a block: answer with ``want``, ``have`` or ``refuse`` before continuing."""

    ref: int
    offer: Offer


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FrameArrived:
    """The next frame of a block that was wanted: after the last one answer with ``have``."""

    ref: int
    key: BlockKey
    frame: Buffer
    is_last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockWanted:
    """The peer admitted an offered block."""

    key: BlockKey


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockDelivered:
    """The peer acknowledged a block."""

    key: BlockKey


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRefused:
    """The peer does not take a block."""

    key: BlockKey
    code: RefusalCode
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockAsked:
    """The peer lacks a block, whatever it acknowledged earlier."""

    key: BlockKey


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAdmitted:
    """The peer has admitted a job whose blocks it had refused."""

    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLeft:
    """The peer closes the link."""

    reason: str


LinkEvent = (
    PeerGreeted
    | BlockOffered
    | FrameArrived
    | BlockWanted
    | BlockDelivered
    | BlockRefused
    | BlockAsked
    | JobAdmitted
    | PeerLeft
)
