"""The peer's offers on a link: each answered once, its frames counted against what was offered."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from retexo_fl.errors import LocalProtocolError, RemoteProtocolError
from retexo_fl.exchange.link_events import FrameArrived
from retexo_fl.exchange.link_limits import SessionLimits
from retexo_fl.exchange.link_messages import Offer
from retexo_fl.exchange.link_reasons import Reason, refused
from retexo_fl.units import counted


@dataclass(slots=True, kw_only=True)
class _Open:
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
        self._open: dict[int, _Open] = {}
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
        self._open[ref] = _Open(offer=offer)

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
