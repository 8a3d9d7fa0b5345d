"""How a wait for answers goes on: what is waited for, how often to look, when to say so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from retexo_fl.federation.clock import THIS_MACHINE, Clock
from retexo_fl.federation.patience import Patience

#: Pauses between looks for replies: short at first for an engine in this process, then longer for
#: one that answers over a network. Flower's own loop waits 0.1 s to 3 s.
_FIRST_S: Final = 0.002
_LONGEST_S: Final = 0.1
#: The same where every look is a request to a SuperLink, and an answer takes seconds.
_LONGEST_DEPLOYED_S: Final = 0.5
#: After so long it is told whom a question waits for; then after twice as long, and so on,
_TELL_EVERY_S: Final = 30.0
#: but at least so often.
_LONGEST_TELL_S: Final = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What clients are asked.

    Attributes:
        stage: Stage index, -1 for none.
        purpose: As in the ledger.
        round: Round of the stage, 0 outside rounds.
    """

    stage: int
    purpose: str
    round: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """Whom a question waits for: indices of clients, ascending."""

    question: Question
    clients: tuple[int, ...]


class Pace:
    """The time of one wait, and the pauses in it."""

    def __init__(self, patience: Patience, clock: Clock = THIS_MACHINE) -> None:
        self._patience = patience
        self._clock = clock
        self._begun_s = self._told_s = clock.now_s()
        self._longest_s = _LONGEST_DEPLOYED_S if patience.returns else _LONGEST_S
        self._pause_s = _FIRST_S
        self._tell_every_s = _TELL_EVERY_S

    @property
    def elapsed_s(self) -> float:
        """Seconds since the wait began."""
        return self._clock.now_s() - self._begun_s

    @property
    def is_over(self) -> bool:
        """Whether no answer is waited for any longer."""
        return self.elapsed_s > self._patience.timeout_s

    def is_enough(self, answers: int, asked: int) -> bool:
        """Say whether a question may be closed with so many answers of so many."""
        patience = self._patience
        if not patience.may_close_early or self.elapsed_s < patience.deadline_s:
            return False
        return answers >= min(patience.least, asked)

    def shall_tell(self) -> bool:
        """Say, from time to time in a wait for other machines, that it is time to say so."""
        if not self._patience.returns or self._clock.now_s() - self._told_s < self._tell_every_s:
            return False
        self._told_s = self._clock.now_s()
        self._tell_every_s = min(2 * self._tell_every_s, _LONGEST_TELL_S)
        return True

    def hurry(self) -> None:
        """Make the next pause short: where one answer has come, more may have."""
        self._pause_s = _FIRST_S

    def rest(self) -> None:
        """Pause, longer from time to time."""
        self._clock.pause(self._pause_s)
        self._pause_s = min(self._pause_s * 1.5, self._longest_s)
