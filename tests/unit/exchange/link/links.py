"""Two link machines with a network of bytes between them, and blocks in memory at both ends."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np

from retexo_fl.errors import PeerRefused, RemoteProtocolError
from retexo_fl.exchange import BlockHeader, BlockProgress, check_frame, encode_block
from retexo_fl.exchange.block import BlockKey
from retexo_fl.exchange.block_frames import sound_prefix
from retexo_fl.exchange.link.events import (
    BlockAsked,
    BlockDelivered,
    BlockOffered,
    FrameArrived,
    LinkEvent,
)
from retexo_fl.exchange.link.limits import SessionLimits
from retexo_fl.exchange.link.messages import Offer
from retexo_fl.exchange.link.session import LinkSession

HEADER = BlockHeader(
    job="job-1",
    layer=0,
    sender=0,
    receiver=1,
    weights_digest=b"w" * 32,
    num_edges=3,
    plan_digest=b"p" * 32,
    num_vectors=0,
    width=16,
    dtype="float32",
)
#: Small frames, so that few bytes make many of them.
FRAME_BYTES = 256
LIMITS = SessionLimits(max_frame_bytes=FRAME_BYTES)


def block_header(sender: int, receiver: int, *, layer: int = 0, rows: int = 4) -> BlockHeader:
    return replace(HEADER, sender=sender, receiver=receiver, layer=layer, num_vectors=rows)


def frames_of(header: BlockHeader, *, frame_bytes: int = FRAME_BYTES) -> tuple[bytes, ...]:
    seed = np.random.default_rng(header.layer)
    rows = seed.standard_normal((header.num_vectors, header.width)).astype(header.dtype)
    return encode_block(header, rows, codec="dense", max_frame_bytes=frame_bytes).frames


def offer_of(key: BlockKey, frames: tuple[bytes, ...], *, eager: bool = True) -> Offer:
    return Offer(key=key, num_frames=len(frames), num_bytes=sum(map(len, frames)), is_eager=eager)


@dataclass
class End:
    """One client: what it owes, what it has; ``session`` is a new one on each link."""

    client: int
    peer: int
    limits: SessionLimits = LIMITS
    owed: dict[BlockKey, tuple[bytes, ...]] = field(default_factory=dict)
    arrived: dict[BlockKey, list[bytes]] = field(default_factory=dict)
    delivered: set[BlockKey] = field(default_factory=set)
    offered: set[BlockKey] = field(default_factory=set)
    frames_sent: Counter[tuple[BlockKey, int]] = field(default_factory=Counter)
    whole: Counter[BlockKey] = field(default_factory=Counter)

    def connect(self, now_s: float = 0.0) -> None:
        self.session = LinkSession(
            client=self.client, peer=self.peer, now_s=now_s, limits=self.limits
        )
        self.progress: dict[BlockKey, BlockProgress] = {}
        for key, frames in self.owed.items():
            if key not in self.delivered:
                self.session.offer(offer_of(key, frames, eager=key not in self.offered))
                self.offered.add(key)

    def pull(self, max_bytes: int, now_s: float = 0.0) -> bytes:
        data = bytes(self.session.data_to_send(max_bytes, now_s))
        if not data and (wanted := self.session.frame_wanted()):
            key, sequence = wanted
            self.frames_sent[wanted] += 1
            self.session.give_frame(self.owed[key][sequence])
            data = bytes(self.session.data_to_send(max_bytes, now_s))
        return data

    def give(self, data: bytes, now_s: float = 0.0) -> list[LinkEvent]:
        self.session.receive_data(data, now_s)
        events = []
        while (event := self.session.next_event(now_s)) is not None:
            self.take(event)
            events.append(event)
        return events

    def take(self, event: LinkEvent) -> None:
        match event:
            case BlockOffered():
                self._answer(event.ref, event.offer)
            case FrameArrived():
                progress = check_frame(event.frame, self.progress[event.key], event.key)
                self.progress[event.key] = progress
                self.arrived[event.key].append(bytes(event.frame))
                if progress.is_whole:
                    self.whole[event.key] += 1
                    self.session.have(event.ref)
            case BlockDelivered():
                self.delivered.add(event.key)
            case BlockAsked():
                self.delivered.discard(event.key)

    def _answer(self, ref: int, offer: Offer) -> None:
        have = self.arrived.setdefault(offer.key, [])
        if len(have) == offer.num_frames:
            self.session.have(ref)
            return
        self.progress[offer.key] = sound_prefix(offer.key, b"".join(have))
        self.session.want(ref, len(have))


def swap(one: End, two: End, *, piece_bytes: int = 2**16, now_s: float = 0.0) -> None:
    """Carry bytes both ways until neither has any."""
    while True:
        there, back = one.pull(piece_bytes, now_s), two.pull(piece_bytes, now_s)
        if there:
            two.give(there, now_s)
        if back:
            one.give(back, now_s)
        if not there and not back:
            return


def refusal(end: End, data: bytes, now_s: float = 0.0) -> str:
    """Return the sentence with which an end refuses bytes."""
    try:
        end.give(data, now_s)
    except (PeerRefused, RemoteProtocolError) as error:
        return str(error)
    raise AssertionError("nothing was refused")
