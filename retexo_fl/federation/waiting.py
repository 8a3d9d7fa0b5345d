"""How the server waits for an open exchange: how often it looks, and when it says for whom."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from retexo_fl.federation.clock import THIS_MACHINE, Clock

#: Pause after the first look.
_FIRST_S: Final = 0.2
#: After so long it is told whom an exchange waits for; then after twice as long, and so on,
_FIRST_TELL_S: Final = 30.0
#: but at least so often.
_TELL_EVERY_S: Final = 3600.0
#: A pause is this part of the time that the exchange has taken: its end is noticed as late at most.
_PART: Final = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenExchange:
    """An exchange that has not ended.

    Attributes:
        stage: Stage index.
        open_s: Seconds since it began.
        lacks: By client, how many vectors have not arrived; None where it has not answered.
    """

    stage: int
    open_s: float
    lacks: Mapping[int, int | None]


def _tell_nobody(exchange: OpenExchange) -> None:
    """Say nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What goes with an exchange while it is open.

    Attributes:
        clock: Its time.
        on_wait: Told from time to time of whom it waits for.
    """

    clock: Clock = THIS_MACHINE
    on_wait: Callable[[OpenExchange], None] = _tell_nobody


UNWATCHED: Final = Watch()


class LookPace:
    """The time of one exchange, and the pauses between looks at it.

    Args:
        clock: Its time.
        within_s: How long it stays open.
        longest_s: Longest pause.
    """

    def __init__(self, clock: Clock, *, within_s: float, longest_s: float) -> None:
        self._clock = clock
        self._begun_s = clock.now_s()
        self._within_s = within_s
        self._longest_s = longest_s
        self._tell_at_s = _FIRST_TELL_S

    @property
    def open_s(self) -> float:
        """Seconds since it began."""
        return self._clock.now_s() - self._begun_s

    @property
    def left_s(self) -> float:
        """Seconds until its deadline; 0 after it."""
        return max(0.0, self._within_s - self.open_s)

    def shall_tell(self) -> bool:
        """Say that it is time to say whom it waits for."""
        open_s = self.open_s
        if open_s < self._tell_at_s:
            return False
        self._tell_at_s = open_s + min(open_s, _TELL_EVERY_S)
        return True

    def rest(self) -> None:
        """Pause: longer, the longer it has been open, but not beyond its deadline."""
        pause_s = min(max(_FIRST_S, _PART * self.open_s), self._longest_s)
        self._clock.pause(min(pause_s, self.left_s))
