"""One destination of what is sent: its window, how it is asked for answers, why it has stalled."""

from __future__ import annotations

from typing import Final

from retexo_fl.additions.kernel_path.endpoint.acks import Heard, ack_terms
from retexo_fl.additions.kernel_path.endpoint.records import (
    Destination,
    DestinationState,
    socket_address,
)
from retexo_fl.additions.kernel_path.packets.layout import BLOCK_PACKETS
from retexo_fl.additions.kernel_path.packets.packets import PacketHead
from retexo_fl.additions.kernel_path.packets.window import ACK_EVERY, MAX_WINDOW, SendWindow

#: Unanswered pings after which a receiver's user space is asked; one that never answered may have
#: a device that sends nothing from XDP, and has been given two packets before.
_PINGS, _FIRST_PINGS = 3, 1
#: Packets of one stream that may be on their way beside those of others.
_OWN_PACKETS: Final = 16
#: A destination without room holds up others no longer.
_PATIENCE_S: Final = 0.1


class Peer:
    """What all streams to one address share: how it is asked, and how much is on its way.

    Attributes:
        user_space: Each batch is followed by a question to user space.
        routes: Those on which something is on its way.
    """

    def __init__(self) -> None:
        self.user_space = False
        self.routes: set[Route] = set()
        self._unanswered = 0
        self._has_answered = False

    @property
    def room(self) -> int:
        """How many more packets may be on their way to it."""
        return MAX_WINDOW - sum(
            route.window.on_their_way for route in self.routes if not route.window.stalled
        )

    def asked(self) -> None:
        """Note that a ping was sent."""
        self._unanswered += 1
        if self._unanswered >= (_PINGS if self._has_answered else _FIRST_PINGS):
            self.user_space = True

    def heard(self, *, answers_data: bool) -> None:
        """Note an answer; one to a packet of data needed no user space."""
        self._unanswered = 0
        self._has_answered = True
        if answers_data:
            self.user_space = False


class Route:
    """The way to one destination.

    Args:
        destination: Where to.
        head: The fields that its packets share.
        window: Which packets to send.
        packets: Of the stream.
        peer: What is shared with other streams to its address.

    Attributes:
        ack_terms: The fields that its acknowledgements share.
        new_sent: Packets sent for the first time.
        reason: Why the last packets could not be sent; empty where they could.
    """

    def __init__(
        self,
        destination: Destination,
        head: PacketHead,
        window: SendWindow,
        *,
        packets: int,
        peer: Peer,
    ) -> None:
        self.destination = destination
        self.head = head
        self.ack_terms = ack_terms(head)
        self.name = socket_address(destination.address)
        self.window = window
        self.peer = peer
        self.new_sent = 0
        self.reason = ""
        self._packets = packets
        self._full_since_s: float | None = None
        peer.routes.add(self)

    @property
    def room(self) -> int:
        """How many new packets may be sent now; a few also where other streams take all room."""
        window = self.window
        # Each may begin with a few: together they then have more on their way than there is room.
        shared = max(self.peer.room, _OWN_PACKETS - window.on_their_way, 0)
        return min(window.room, shared)

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

    def ping_seq(self, seq: int) -> int:
        """Return a packet of the block to name in a ping, so that its answer is none to data."""
        while self._asks_for_answer(seq) and seq % BLOCK_PACKETS:
            seq -= 1
        return seq

    def hear(self, ack: Heard, now_s: float) -> None:
        """Take an acknowledgement."""
        self.window.acked(ack.base, ack.bits, now_s)
        if self.window.done:
            self.close()
        self.peer.heard(answers_data=self._asks_for_answer(ack.seq))

    def close(self) -> None:
        """Leave the room on the way to others: nothing more is sent."""
        self.peer.routes.discard(self)

    def keeps_up(self, now_s: float) -> bool:
        """Return whether others wait for it to have room."""
        window = self.window
        if window.stalled or window.done:
            return False
        if self.room:
            self._full_since_s = None
            return True
        if self._full_since_s is None:
            self._full_since_s = now_s
        return now_s - self._full_since_s < _PATIENCE_S

    def _asks_for_answer(self, seq: int) -> bool:
        """Return whether a packet of data always asks for an answer."""
        return seq % ACK_EVERY == ACK_EVERY - 1 or seq == self._packets - 1
