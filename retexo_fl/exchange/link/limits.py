"""What a link grants its peer, in bytes, numbers and seconds."""

from __future__ import annotations

from dataclasses import dataclass

from retexo_fl.exchange.frames import DEFAULT_MAX_FRAME_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """Limits of one link; chosen, not tuned.

    Attributes:
        max_frame_bytes: Payload of an exchange frame.
        greeting_s: A peer that has not greeted by then is refused.
        message_s: A message that has begun must be whole after this long, and
        least_bytes_per_s: as much longer as its size takes at this rate.
        ping_after_s: Silence after which the peer is sent a PING.
        pong_within_s: It is lost if nothing comes for so long after that.
        max_open_offers: Offers of one end that wait for HAVE or REFUSE.
        max_pending_bytes: Bytes of these together, unless it is one only.
        eager_bytes: Frames that may follow an eager offer before the peer has answered.
        max_unwanted_bytes: Frames of offers that were refused or had already, which were on their
            way when the answer was given; more, beyond as much as was wanted, is a flood.
        max_refusals: Offers that may be refused within
        refusals_s: so many seconds; more is a flood.
    """

    max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES
    greeting_s: float = 10.0
    message_s: float = 30.0
    least_bytes_per_s: float = 4096.0
    ping_after_s: float = 30.0
    pong_within_s: float = 60.0
    max_open_offers: int = 32
    max_pending_bytes: int = 2**33
    eager_bytes: int = 2**22
    max_unwanted_bytes: int = 2**26
    max_refusals: int = 64
    refusals_s: float = 60.0
