"""Which packets of a stream to send next, by what its receiver has acknowledged; sans-IO.

Losses are found by order: a packet is lost when others that were sent a good deal later have
arrived, or a little later and some time has passed. The timer alone never resends more than one
packet: its answer shows what else is missing (selective acknowledgement and loss by later arrivals
as in RFC 8985; the timer as in RFC 6298).
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from retexo_fl.additions.kernel_path.packets.layout import ACK_WANTED, BLOCK_PACKETS
from retexo_fl.additions.kernel_path.packets.pacing import RoundTrip, WindowTimes, WindowWidth

#: One packet in so many asks for an ACK, besides the last of a batch.
ACK_EVERY: Final = 32
#: Packets on their way to one receiver; the ring of a virtual device holds 256.
MAX_WINDOW: Final = 256
#: Packets that may overtake another before it counts as lost at once: those of a batch.
_REORDERED_PACKETS: Final = 128


def ack_flags(seqs: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return the flags of a batch: ``ACK_WANTED`` on one in 32 and on the last of each block."""
    flags: NDArray[np.uint8] = (seqs % ACK_EVERY == ACK_EVERY - 1).view(np.uint8)
    if len(seqs):
        # An ACK covers its own block only.
        blocks = seqs // BLOCK_PACKETS
        flags[:-1] |= blocks[1:] != blocks[:-1]
        flags[-1] = ACK_WANTED
    return flags


class SendWindow:
    """The packets of one stream on their way to one receiver.

    Packets are unsent, on their way, lost or acknowledged. Seconds are of any monotonic
    clock. It keeps ten bytes for each packet of the stream.

    Args:
        num_packets: Packets of the stream.
        now_s: When it begins.
        window: Packets between the first that is not acknowledged and the last sent, at most.
        times: Its time-outs.

    Attributes:
        sent: Packets that were sent, each time counted.
        retransmitted: Those among them that were sent before.
        stalled: Whether nothing was answered for too long. Only pings are due then, until
            :meth:`acked` or :meth:`resume` ends it.
    """

    def __init__(
        self,
        num_packets: int,
        *,
        now_s: float,
        window: int = MAX_WINDOW,
        times: WindowTimes | None = None,
    ) -> None:
        assert num_packets >= 0, "a stream has no fewer than 0 packets"
        assert 1 <= window <= BLOCK_PACKETS, "a window is no longer than one ACK covers"
        self._times = times or WindowTimes()
        self._num_packets = num_packets
        self._width = WindowWidth(window)
        self._round_trip = RoundTrip()
        # Of the last time that a packet was sent: how many had been sent until then.
        self._order = np.zeros(num_packets, dtype=np.int64)
        self._is_acked = np.zeros(num_packets, dtype=np.bool_)
        self._is_lost = np.zeros(num_packets, dtype=np.bool_)
        self._low = self._next = 0
        self._num_acked = self._num_lost = 0
        self.sent = self.retransmitted = 0
        self.stalled = False
        self._timeouts = 0
        self._timer_from_s = self._pinged_s = now_s
        self._ping_due = False
        self._timed_packet = -1
        self._timed_from_s = now_s
        # Overtaken are those sent before _gap_order; one packet asks after them, and when it did.
        self._gap_order = self._asked_order = 0
        self._gap_due_s = math.inf
        self._asking_packet = -1

    @property
    def done(self) -> bool:
        """Whether every packet was acknowledged."""
        return self._num_acked == self._num_packets

    @property
    def acknowledged(self) -> int:
        """Packets that were acknowledged."""
        return self._num_acked

    @property
    def on_their_way(self) -> int:
        """Packets that were sent and are neither acknowledged nor lost."""
        return self._next - self._num_acked - self._num_lost

    @property
    def room(self) -> int:
        """How many new packets may be sent now."""
        if self.stalled:
            return 0
        return max(0, min(self._num_packets, self._low + self._width.packets) - self._next)

    @property
    def ping_seq(self) -> int:
        """The packet that a ping is to name: the first that is not acknowledged."""
        return min(self._low, max(self._num_packets - 1, 0))

    def to_send(self, now_s: float, limit: int) -> NDArray[np.int64]:
        """Return the next packets, lost ones first, and note them as sent; int64 [at most limit].

        :func:`ack_flags` says which of them ask for an ACK.
        """
        lost = self.lost_to_send(now_s, limit)
        new = self.new_to_send(now_s, limit - len(lost))
        return np.concatenate((lost, new)) if len(lost) else new

    def lost_to_send(self, now_s: float, limit: int) -> NDArray[np.int64]:
        """Return lost packets only, and note them as sent."""
        self.check_time(now_s)
        if not self._num_lost or self.stalled:
            return np.empty(0, dtype=np.int64)
        lost = np.flatnonzero(self._is_lost[self._low : self._next])[: max(limit, 0)] + self._low
        self._note_sent(len(lost), now_s)
        self._order[lost] = np.arange(self.sent - len(lost), self.sent) + 1
        self._is_lost[lost] = False
        self._num_lost -= len(lost)
        self.retransmitted += len(lost)
        return lost

    def new_to_send(self, now_s: float, limit: int) -> NDArray[np.int64]:
        """Return new packets only, and note them as sent; at most :attr:`room`."""
        count = max(min(limit, self.room), 0)
        first, end = self._next, self._next + count
        if count:
            self._note_sent(count, now_s)
            self._order[first:end] = np.arange(self.sent - count + 1, self.sent + 1)
            self._next = end
            if self._timed_packet < 0:
                self._timed_packet, self._timed_from_s = end - 1, now_s
        return np.arange(first, end, dtype=np.int64)

    def acked(self, base: int, bits: NDArray[np.uint64], now_s: float) -> int:
        """Take an ACK: uint64 [8] bits of the packets from ``base`` on.

        Returns:
            How many packets it acknowledged that were not before. What it says of packets that were
            not sent is ignored.
        """
        first, end = max(self._low, base), min(self._next, base + BLOCK_PACKETS)
        count = 0
        if first < end:
            seen = np.unpackbits(bits.view(np.uint8), bitorder="little").view(np.bool_)
            count = self._take_bits(first, end, seen[first - base : end - base], now_s)
        if self.stalled:
            self.resume(now_s)
        return count

    def resume(self, now_s: float) -> None:
        """Continue after a stall: all packets not acknowledged are sent again."""
        self.stalled = self._ping_due = False
        self._timeouts = 0
        self._timer_from_s = now_s
        self._lose(self._low, self._next, self.sent + 1)

    def check_time(self, now_s: float) -> None:
        """Do what is due: find losses, stall. ``to_send`` and ``lost_to_send`` begin with it."""
        if now_s >= self._gap_due_s:
            self._ask()
        if self.stalled or not self.on_their_way or now_s < self._timer_s():
            return
        self._timer_from_s = now_s
        self._timeouts += 1
        self._timed_packet = -1
        # A ping may reach a receiver that cannot answer otherwise.
        self._ping_due = self._timeouts > 1
        if self._timeouts > 2:
            self._width.nothing_answers()
        if self._timeouts > self._times.timeouts:
            self.stalled = True
        else:
            self._lose_first()

    def wants_ping(self, now_s: float) -> bool:
        """Return whether a ping is due; :meth:`pinged` notes that it was sent."""
        if self.stalled:
            return now_s >= self._pinged_s + self._times.ping_s
        return self._ping_due

    def pinged(self, now_s: float) -> None:
        """Note that a ping was sent."""
        self._ping_due = False
        self._pinged_s = now_s

    def next_deadline_s(self) -> float:
        """Return when to ask again at the latest; minus infinity: something can be sent now."""
        if self.done:
            return math.inf
        if self.stalled:
            return self._pinged_s + self._times.ping_s
        if self._num_lost or self.room:
            return -math.inf
        return min(self._gap_due_s, self._timer_s())

    def _timer_s(self) -> float:
        return self._timer_from_s + self._round_trip.timeout_s(self._times, self._timeouts)

    def _note_sent(self, count: int, now_s: float) -> None:
        if not self.on_their_way:
            self._timer_from_s = now_s
        self.sent += count

    def _take_bits(self, first: int, end: int, seen: NDArray[np.bool_], now_s: float) -> int:
        is_acked, is_lost = self._is_acked[first:end], self._is_lost[first:end]
        new = seen > is_acked
        count = int(np.count_nonzero(new))
        if not count:
            return 0
        newest = int(self._order[first:end][new].max())
        is_acked |= seen
        if self._num_lost:
            self._num_lost -= int(np.count_nonzero(is_lost & seen))
            is_lost &= ~seen
        self._num_acked += count
        self._timeouts, self._ping_due, self._timer_from_s = 0, False, now_s
        if first <= self._timed_packet < end and seen[self._timed_packet - first]:
            # If its own answer was lost, that of a later packet says so: that took longer.
            if self._order[self._timed_packet] == newest:
                self._round_trip.measured(now_s - self._timed_from_s)
            self._timed_packet = -1
        self._advance()
        self._find_losses(first // BLOCK_PACKETS, newest, now_s)
        self._width.judge(arrived=count)
        return count

    def _advance(self) -> None:
        """Move the window's lower end to the first packet that is not acknowledged."""
        is_acked = self._is_acked[self._low : self._next]
        ahead = int(is_acked.argmin())
        self._low = self._next if is_acked[ahead] else self._low + ahead

    def _find_losses(self, block: int, newest: int, now_s: float) -> None:
        """Judge the packets that were sent before the newest one that has arrived."""
        self._gap_due_s = math.inf
        if self._low == self._next:
            self._asking_packet = -1
            return
        first = max(self._low, block * BLOCK_PACKETS)
        end = min(self._next, (block + 1) * BLOCK_PACKETS)
        self._lose(first, end, newest - _REORDERED_PACKETS)
        if self._asking_packet >= 0:
            if not self._is_acked[self._asking_packet]:
                return
            if newest > self._asked_order:
                self._lose(first, end, self._gap_order)
            self._asking_packet = -1
        is_overtaken = self._order[self._low : self._next] < newest
        if (is_overtaken & self._is_waiting(self._low, self._next)).any():
            self._gap_order = newest
            self._gap_due_s = now_s + self._round_trip.reordered_s(self._times)

    def _ask(self) -> None:
        """Resend the first overtaken packet, whose ACK shows whether the others are lost, too.

        They may have arrived since the last ACK was written, which also covered one block only.
        """
        self._gap_due_s = math.inf
        self._asking_packet, self._asked_order = self._low, self.sent
        self._lose(self._low, self._low + 1, self.sent + 1)

    def _lose_first(self) -> None:
        seq = self._low + int(self._is_waiting(self._low, self._next).argmax())
        self._lose(seq, seq + 1, self.sent + 1)

    def _lose(self, first: int, end: int, before: int) -> None:
        """Mark as lost what is on its way in a range and was sent before some other packet."""
        if first >= end:
            return
        lost = (self._order[first:end] < before) & self._is_waiting(first, end)
        count = int(np.count_nonzero(lost))
        if not count:
            return
        self._is_lost[first:end] |= lost
        self._num_lost += count
        self._width.judge(lost=count)
        if first <= self._timed_packet < end and lost[self._timed_packet - first]:
            self._timed_packet = -1  # Its answer would not show which of the two it answers.

    def _is_waiting(self, first: int, end: int) -> NDArray[np.bool_]:
        """Say which packets that were sent are neither acknowledged nor lost."""
        return ~(self._is_acked[first:end] | self._is_lost[first:end])
