"""One end's own offers on a link: which are waiting, open, and being sent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from retexo_fl.errors import RemoteProtocolError
from retexo_fl.exchange.link_key import BlockKey
from retexo_fl.exchange.link_limits import SessionLimits
from retexo_fl.exchange.link_messages import (
    MessageKind,
    Offer,
    encode_offer,
    encode_ref,
    frame_prefix,
)


@dataclass(slots=True, kw_only=True)
class _Open:
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
        self._open: dict[int, _Open] = {}
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

    def _sending(self) -> _Open | None:
        eager_bytes = self._limits.eager_bytes
        return next((one for one in self._open.values() if one.wants_frame(eager_bytes)), None)

    def _find(self, ref: int) -> _Open | None:
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
            self._open[self._last_ref] = _Open(
                offer=offer, next_sequence=0 if offer.is_eager else None
            )
            self._tell(encode_offer(self._last_ref, offer))
