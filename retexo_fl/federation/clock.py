"""The time by which the server waits: that of this machine, or one that only its pauses move on."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final, Protocol


class Clock(Protocol):
    """A time that only grows, and a way to let it pass."""

    def now_s(self) -> float:
        """Return the time in seconds, counted from anywhere."""
        ...

    def pause(self, seconds: float) -> None:
        """Return when so much time has passed."""
        ...


@dataclass(frozen=True, slots=True)
class MachineClock:
    """The clock of this machine."""

    def now_s(self) -> float:
        """See :class:`Clock`."""
        return time.monotonic()

    def pause(self, seconds: float) -> None:
        """See :class:`Clock`."""
        time.sleep(seconds)


THIS_MACHINE: Final[Clock] = MachineClock()
