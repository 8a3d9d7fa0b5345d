"""The offers of both ends of a link: each is numbered, answered once, and its frames are counted.

This end's wait until the peer has greeted, are made within the limits of both, and are sent one
block after the other. The peer's may be of its own blocks alone; their frames are counted against
what was offered, whether they are wanted or still on their way after an answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from retexo_fl.errors import LocalProtocolError, RemoteProtocolError
from retexo_fl.exchange.block import BlockKey
from retexo_fl.exchange.link.events import FrameArrived
from retexo_fl.exchange.link.limits import SessionLimits
from retexo_fl.exchange.link.messages import (
    MessageKind,
    Offer,
    encode_offer,
    encode_ref,
    frame_prefix,
)
from retexo_fl.exchange.link.reasons import Reason, refused
from retexo_fl.units import counted

# ---- of this end ---------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class _OutgoingOffer:
    """An offer that waits for HAVE or REFUSE; ``next_sequence`` is None before WANT."""

    offer: Offer
    next_sequence: int | None
    sent_bytes: int = 0
    is_answered: bool = False

    def wants_frame(self, eager_bytes: int) -> bool:
        if self.next_sequence is None or self.next_sequence >= self.offer.num_frames:
            return False
        return self.is_answered or self.sent_bytes < eager_bytes


class OutgoingOffers:
    """Numbers the offers and selects the frame to send next.

    Never more offers are open than the limits allow: the peer would close the link.

    Args:
        limits: Those of both ends.
        tell: Queues a message.
    """

    def __init__(self, limits: SessionLimits, tell: Callable[[bytes], None]) -> None:
        self._limits = limits
        self._tell = tell
        self._waiting: dict[BlockKey, Offer] = {}
        self._open: dict[int, _OutgoingOffer] = {}
        self._refs: dict[BlockKey, int] = {}
        self._last_ref = 0
        self._pending_bytes = 0
        self.is_started = False

    def start(self) -> None:
        """Make the waiting offers: the peer has greeted."""
        self.is_started = True
        self._make_offers()

    def add(self, offer: Offer) -> None:
        """Offer a block, unless it is offered already."""
        if offer.key not in self._refs and offer.key not in self._waiting:
            self._waiting[offer.key] = offer
            self._make_offers()

    def holds(self, key: BlockKey) -> bool:
        """Return whether a block is offered or waits to be."""
        return key in self._refs or key in self._waiting

    def withdraw(self, key: BlockKey) -> None:
        """Take an offer back: the block is not there any more."""
        self._waiting.pop(key, None)
        ref = self._refs.get(key)
        if ref is not None:
            self._tell(encode_ref(MessageKind.WITHDRAW, ref))
            self._close(ref)

    def withdraw_waiting(self, job: str) -> None:
        """Forget the offers of a job that were not made yet."""
        self._waiting = {key: one for key, one in self._waiting.items() if key.job != job}

    def wanted(self, ref: int, sequence: int) -> BlockKey | None:
        """Take WANT; return its block, or None if it came too late.

        Raises:
            RemoteProtocolError: It asks for a frame that is not, or asks twice.
        """
        entry = self._find(ref)
        if entry is None:
            return None
        if entry.is_answered or sequence >= entry.offer.num_frames:
            raise RemoteProtocolError(
                f"WANT of frame {sequence} of {entry.offer.num_frames}"
                f"{' for the second time' if entry.is_answered else ''}"
            )
        entry.is_answered = True
        if not entry.offer.is_eager:
            entry.next_sequence = sequence
        return entry.offer.key

    def answered(self, ref: int) -> BlockKey | None:
        """Take HAVE or REFUSE; return its block, or None if it came too late.

        Raises:
            RemoteProtocolError: Nothing was offered under this number.
        """
        entry = self._find(ref)
        if entry is None:
            return None
        self._close(ref)
        return entry.offer.key

    def next_frame(self) -> tuple[BlockKey, int] | None:
        """Return block and sequence of the frame to send next; one block after the other."""
        entry = self._sending()
        if entry is None:
            return None
        assert entry.next_sequence is not None
        return entry.offer.key, entry.next_sequence

    def give_frame(self, frame: bytes) -> None:
        """Queue the frame that :meth:`next_frame` named."""
        entry = self._sending()
        assert entry is not None, "no frame is wanted"
        assert entry.next_sequence is not None
        self._tell(frame_prefix(self._refs[entry.offer.key], len(frame)))
        self._tell(frame)
        entry.next_sequence += 1
        entry.sent_bytes += len(frame)

    def _sending(self) -> _OutgoingOffer | None:
        eager_bytes = self._limits.eager_bytes
        return next((one for one in self._open.values() if one.wants_frame(eager_bytes)), None)

    def _find(self, ref: int) -> _OutgoingOffer | None:
        if not 1 <= ref <= self._last_ref:
            raise RemoteProtocolError(f"an answer to offer {ref}, expected 1 to {self._last_ref}")
        return self._open.get(ref)

    def _close(self, ref: int) -> None:
        entry = self._open.pop(ref)
        del self._refs[entry.offer.key]
        self._pending_bytes -= entry.offer.num_bytes
        self._make_offers()

    def _make_offers(self) -> None:
        while self.is_started and self._waiting:
            key, offer = next(iter(self._waiting.items()))
            pending = self._pending_bytes + offer.num_bytes
            is_full = len(self._open) >= self._limits.max_open_offers
            if is_full or (self._open and pending > self._limits.max_pending_bytes):
                return
            del self._waiting[key]
            self._last_ref += 1
            self._pending_bytes = pending
            self._refs[key] = self._last_ref
            self._open[self._last_ref] = _OutgoingOffer(
                offer=offer, next_sequence=0 if offer.is_eager else None
            )
            self._tell(encode_offer(self._last_ref, offer))


# ---- of the peer ---------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class _IncomingOffer:
    """An offer that was not answered with HAVE or REFUSE; None: not answered at all."""

    offer: Offer
    next_sequence: int | None = None
    first_sequence: int = 0
    num_bytes: int = 0


class IncomingOffers:
    """Keeps the peer within what it offered and what it is granted.

    Args:
        client: This end.
        peer: The other end.
        limits: What the peer is granted.
    """

    def __init__(self, client: int, peer: int, limits: SessionLimits) -> None:
        self._client = client
        self._peer = peer
        self._limits = limits
        self._open: dict[int, _IncomingOffer] = {}
        self._last_ref = 0
        self._pending_bytes = 0
        self._wanted_bytes = 0
        self._unwanted_bytes = 0
        self._refusals: deque[float] = deque()

    def add(self, ref: int, offer: Offer) -> None:
        """Take an offer.

        Raises:
            PeerRefused: The peer offers what is not its own, or too much at once.
            RemoteProtocolError: The offers are not numbered one after the other.
        """
        if ref != self._last_ref + 1:
            raise RemoteProtocolError(f"offer {ref}, expected {self._last_ref + 1}")
        if offer.key.sender != self._peer or offer.key.receiver != self._client:
            raise refused(
                Reason.IMPERSONATION,
                f"a block of client {offer.key.sender} for client {offer.key.receiver}",
            )
        self._last_ref = ref
        pending = self._pending_bytes + offer.num_bytes
        is_full = len(self._open) >= self._limits.max_open_offers
        if is_full or (self._open and pending > self._limits.max_pending_bytes):
            raise refused(
                Reason.FLOOD,
                f"{counted(len(self._open) + 1, 'open offer')} of "
                f"{counted(pending, 'byte')} together",
            )
        self._pending_bytes = pending
        self._open[ref] = _IncomingOffer(offer=offer)

    def want(self, ref: int, sequence: int) -> bool:
        """Expect frames from ``sequence`` on; return False if the offer was withdrawn."""
        entry = self._open.get(ref)
        if entry is None:
            return False
        if entry.next_sequence is not None:
            raise LocalProtocolError(f"offer {ref} was answered before")
        entry.next_sequence = 0 if entry.offer.is_eager else sequence
        entry.first_sequence = sequence
        return True

    def close(self, ref: int) -> bool:
        """Forget an offer; return False if it was withdrawn or answered before."""
        entry = self._open.pop(ref, None)
        if entry is None:
            return False
        self._pending_bytes -= entry.offer.num_bytes
        return True

    def withdraw(self, ref: int) -> None:
        """Take WITHDRAW.

        Raises:
            RemoteProtocolError: Nothing was offered under this number.
        """
        self._check_ref(ref)
        self.close(ref)

    def count_refusal(self, now_s: float) -> None:
        """Count an offer that was refused.

        Raises:
            PeerRefused: There were too many of late.
        """
        self._refusals.append(now_s)
        while self._refusals[0] < now_s - self._limits.refusals_s:
            self._refusals.popleft()
        if len(self._refusals) > self._limits.max_refusals:
            raise refused(
                Reason.FLOOD,
                f"{len(self._refusals)} offers refused within {self._limits.refusals_s:g} s",
            )

    def frame(self, ref: int, frame: memoryview) -> FrameArrived | None:
        """Take a frame; return None if it is not wanted any more.

        Frames are counted here; the code that keeps them checks them.

        Raises:
            RemoteProtocolError: No frame of this offer was asked for.
            PeerRefused: The offer has grown beyond what was offered, or too much was unwanted.
        """
        self._check_ref(ref)
        entry = self._open.get(ref)
        if entry is None:
            self._count_unwanted(len(frame))
            return None
        if entry.next_sequence is None:
            raise RemoteProtocolError(f"a frame of offer {ref}, which was not answered")
        sequence = entry.next_sequence
        entry.next_sequence += 1
        entry.num_bytes += len(frame)
        too_many = entry.next_sequence > entry.offer.num_frames
        if too_many or entry.num_bytes > entry.offer.num_bytes:
            raise refused(
                Reason.OVERSIZE, f"offer {ref} has more frames or bytes than it announced"
            )
        if sequence < entry.first_sequence:
            self._count_unwanted(len(frame))
            return None
        self._wanted_bytes += len(frame)
        is_last = entry.next_sequence == entry.offer.num_frames
        return FrameArrived(ref=ref, key=entry.offer.key, frame=frame, is_last=is_last)

    def _check_ref(self, ref: int) -> None:
        if not 1 <= ref <= self._last_ref:
            raise RemoteProtocolError(f"offer {ref} was never made")

    def _count_unwanted(self, num_bytes: int) -> None:
        self._unwanted_bytes += num_bytes
        # A link may live for weeks: a peer that sends much may have much on its way unwanted.
        if self._unwanted_bytes > self._limits.max_unwanted_bytes + self._wanted_bytes:
            unwanted = counted(self._unwanted_bytes, "byte")
            raise refused(Reason.FLOOD, f"{unwanted} that were not requested")
