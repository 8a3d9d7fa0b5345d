"""The deadlines of a link; the time is passed in."""

from __future__ import annotations

import math

from retexo_fl.errors import ChannelTimedOut, RemoteProtocolError
from retexo_fl.exchange.link_limits import SessionLimits
from retexo_fl.exchange.link_reasons import Reason, refused


class LinkClock:
    """Knows by when something has to happen; seconds of any clock that never goes back.

    Args:
        limits: How long each may take.
        now_s: When the link began.
    """

    def __init__(self, limits: SessionLimits, now_s: float) -> None:
        self._limits = limits
        self._greet_by_s = now_s + limits.greeting_s
        self._begun_s = now_s
        self._message_by_s = math.inf
        self._heard_s = now_s
        self._pong_by_s = math.inf
        self._ping_waits = False
        self._num_pings = 0

    def heard(self, now_s: float) -> None:
        """Note that bytes came."""
        self._heard_s, self._pong_by_s, self._ping_waits = now_s, math.inf, False

    def greeted(self) -> None:
        """Note that the peer has greeted."""
        self._greet_by_s = math.inf

    def message(self, started_bytes: int, now_s: float, *, is_new: bool) -> None:
        """Note how large the message is that has begun; 0 if none has."""
        if not started_bytes:
            self._message_by_s = math.inf
            return
        if is_new or self._message_by_s == math.inf:
            self._begun_s = now_s
        allowed_s = self._limits.message_s + started_bytes / self._limits.least_bytes_per_s
        self._message_by_s = self._begun_s + allowed_s

    def sent(self, now_s: float) -> None:
        """Note that bytes went to the transport; an answer to PING cannot come before."""
        if self._ping_waits:
            self._pong_by_s = now_s + self._limits.pong_within_s

    def answered(self) -> None:
        """Note that PONG came.

        Raises:
            RemoteProtocolError: Nobody asked for it.
        """
        if not self._num_pings:
            raise RemoteProtocolError("PONG without PING")
        self._num_pings -= 1

    def next_deadline_s(self) -> float:
        """Return when :meth:`check` has something to do at the latest."""
        ping_s = math.inf if self._ping_waits else self._heard_s + self._limits.ping_after_s
        return min(self._greet_by_s, self._message_by_s, self._pong_by_s, ping_s)

    def check(self, now_s: float) -> bool:
        """Return whether the peer must be asked for a sign.

        Raises:
            PeerRefused: It was too slow.
            ChannelTimedOut: The peer is silent.
        """
        if now_s >= self._greet_by_s:
            raise refused(Reason.SLOW, f"no greeting within {self._limits.greeting_s:g} s")
        if now_s >= self._message_by_s:
            raise refused(Reason.SLOW, "a message was not complete before its deadline")
        if now_s >= self._pong_by_s:
            raise ChannelTimedOut(f"nothing was received for {now_s - self._heard_s:.0f} s")
        if self._ping_waits or now_s < self._heard_s + self._limits.ping_after_s:
            return False
        self._ping_waits = True
        self._num_pings += 1
        self._pong_by_s = now_s + self._limits.pong_within_s
        return True
