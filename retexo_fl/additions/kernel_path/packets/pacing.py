"""How long a sender waits for an answer, and how many packets it lets be on their way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_MIN_WINDOW: Final = 32
#: Share of lost packets that is taken for noise of the path; more is a queue that overflows.
_NOISE: Final = 1 / 8


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowTimes:
    """The times of a window, in seconds.

    Attributes:
        first_s: Time-out until a round trip was measured.
        least_s: Shortest time-out. A receiver's thread may take longer to answer, at the cost of
            one packet that is sent again.
        most_s: Longest time-out; each one without an answer doubles the next.
        reordered_s: Longest wait for a packet that others have overtaken.
        ping_s: Between pings while nothing is answered.
        timeouts: So many in a row without an answer, and the window has stalled.
    """

    first_s: float = 0.2
    least_s: float = 0.005
    most_s: float = 2.0
    reordered_s: float = 0.02
    ping_s: float = 2.0
    timeouts: int = 10


class RoundTrip:
    """What a round trip takes, as RFC 6298 estimates it."""

    def __init__(self) -> None:
        self.mean_s = 0.0
        self._varies_s = 0.0

    def measured(self, round_trip_s: float) -> None:
        """Take the time between a packet that was sent once and its answer."""
        if not self.mean_s:
            self.mean_s, self._varies_s = round_trip_s, round_trip_s / 2
            return
        difference_s = abs(self.mean_s - round_trip_s)
        self._varies_s += (difference_s - self._varies_s) / 4
        self.mean_s += (round_trip_s - self.mean_s) / 8

    def reordered_s(self, times: WindowTimes) -> float:
        """Return how long to wait for a packet that others have overtaken.

        It may have arrived just after the answer was written; the next one takes a round trip.
        """
        if not self.mean_s:
            return times.reordered_s
        return min(1.5 * self.mean_s + 4 * self._varies_s, times.reordered_s)

    def timeout_s(self, times: WindowTimes, timeouts: int) -> float:
        """Return how long to wait for an answer after so many time-outs in a row."""
        wait_s = self.mean_s + 4 * self._varies_s if self.mean_s else times.first_s
        return min(max(wait_s, times.least_s) * 2.0**timeouts, times.most_s)


class WindowWidth:
    """Narrows a window where far more is lost than noise explains, and widens it otherwise.

    Args:
        most: Widest window, in packets, and the first one.
    """

    def __init__(self, most: int) -> None:
        self._most = self.packets = most
        self._arrived = self._lost = 0

    def judge(self, *, arrived: int = 0, lost: int = 0) -> None:
        """Count packets, and change the width once per window of them."""
        self._arrived += arrived
        self._lost += lost
        judged = self._arrived + self._lost
        if judged < self.packets:
            return
        if self._lost > _NOISE * judged:
            self.packets = max(min(_MIN_WINDOW, self._most), self.packets // 2)
        else:
            self.packets = min(self._most, self.packets + max(self.packets // 4, 1))
        self._arrived = self._lost = 0

    def nothing_answers(self) -> None:
        """Begin anew with the least width."""
        self.packets = min(_MIN_WINDOW, self._most)
