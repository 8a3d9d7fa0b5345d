"""A clock that stands still but for the pauses that are made with it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class HandClock:
    """A clock that pauses move on; it keeps how long they were.

    Attributes:
        time_s: The time now, in seconds.
        pauses_s: Every pause so far, in seconds.
    """

    time_s: float = 1000.0
    pauses_s: list[float] = field(default_factory=list)

    def now_s(self) -> float:
        """See :class:`retexo_fl.federation.asking.Clock`."""
        return self.time_s

    def pause(self, seconds: float) -> None:
        """See :class:`retexo_fl.federation.asking.Clock`."""
        self.pauses_s.append(seconds)
        self.time_s += seconds
