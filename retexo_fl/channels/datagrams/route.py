"""One destination of what is sent: its window, how it is asked for answers, why it has stalled."""

from __future__ import annotations

from enum import Enum
from typing import Final

from retexo_fl.channels.datagrams.records import Destination, DestinationState, socket_address
from retexo_fl.exchange.datagrams.packets import Ack, PacketHead
from retexo_fl.exchange.datagrams.window import SendWindow

#: Unanswered pings after which the receiver's user space is asked.
_PINGS: Final = 3
#: A destination without room holds up others no longer.
_PATIENCE_S: Final = 0.1


class _Asking(Enum):
    """Who is asked for acknowledgements: user space costs its receiver a wake-up each time."""

    RECEIVER = "receiver"
    #: Pings were not answered: perhaps its device cannot send from XDP, perhaps it is dead.
    BOTH = "both"
    #: Somebody answered: once more without user space.
    TRIAL = "trial"
    USER_SPACE = "user space"


class Route:
    """The way to one destination.

    Args:
        destination: Where to.
        head: What its packets say alike.
        window: Which packets to send.

    Attributes:
        new_sent: Packets sent for the first time.
        reason: Why the last packets could not be sent; empty where they could.
    """

    def __init__(self, destination: Destination, head: PacketHead, window: SendWindow) -> None:
        self.destination = destination
        self.head = head
        self.name = socket_address(destination.address)
        self.window = window
        self.new_sent = 0
        self.reason = ""
        self._asking = _Asking.RECEIVER
        self._pings = 0
        self._full_since_s: float | None = None

    @property
    def asks_user_space(self) -> bool:
        """Whether each batch is followed by a question to the receiver's user space."""
        return self._asking is _Asking.USER_SPACE

    @property
    def pings_user_space(self) -> bool:
        """Whether a ping is meant for the receiver's user space."""
        return self._asking in (_Asking.BOTH, _Asking.USER_SPACE)

    @property
    def state(self) -> DestinationState:
        """What became of its packets."""
        window = self.window
        is_stalled = window.stalled and not window.done
        return DestinationState(
            done=window.done,
            stalled=is_stalled,
            reason=(self.reason or "no answer") if is_stalled else "",
            sent=window.sent,
            retransmitted=window.retransmitted,
        )

    def pinged(self, now_s: float) -> None:
        """Note that a ping was sent."""
        self.window.pinged(now_s)
        self._pings += 1
        if self._asking is _Asking.TRIAL:
            self._asking = _Asking.USER_SPACE
        elif self._asking is _Asking.RECEIVER and self._pings >= _PINGS:
            self._asking = _Asking.BOTH

    def hear(self, ack: Ack, now_s: float) -> None:
        """Take an acknowledgement."""
        count = self.window.acked(ack.base, ack.bits, now_s)
        self._pings = 0
        if self._asking is _Asking.BOTH:
            self._asking = _Asking.TRIAL
        elif self._asking is _Asking.TRIAL and count:
            self._asking = _Asking.RECEIVER

    def keeps_up(self, now_s: float) -> bool:
        """Say whether others wait for it to have room."""
        window = self.window
        if window.stalled or window.done:
            return False
        if window.room:
            self._full_since_s = None
            return True
        if self._full_since_s is None:
            self._full_since_s = now_s
        return now_s - self._full_since_s < _PATIENCE_S
