"""Whether worker processes pay for a stage, from how long its own rounds took. Uses no clock.

Rounds are computed in the client's process until three of them are known. Workers are started where
what is left of the stage is worth it, meanwhile rounds go on. A few rounds on workers then decide;
now and again a round in the client's process shows whether that still holds.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

import numpy as np

#: Rounds that a comparison is made of; the first of a kind, which prepares, is not among them.
_COMPARED: Final = 3
#: What is left of a stage that workers are started for. Starting them takes some two seconds of
#: other cores, preparing the stage and finding them slow a round or two more.
_LEAST_LEFT_S: Final = 30.0
_LEAST_LEFT_ROUNDS: Final = 50
#: What they must be expected to save of it, at equal speeds. Cores share caches and memory: where
#: that was a seventh, nothing came of it.
_LEAST_GAIN: Final = 0.25
#: What is enough once they run.
_LEAST_GAIN_OF_RUNNING_S: Final = 1.0
#: Below, a round on workers is worth other cores.
_WORTH_IT: Final = 0.9
#: One round of so many is computed in the client's process, to see whether workers are faster yet.
_ROUNDS_PER_LOOK: Final = 40
#: Workers that were no faster are tried again where rounds are so many times as long.
_LONGER: Final = 4.0


@dataclass(slots=True)
class Experience:
    """What a client's stages so far have shown.

    Attributes:
        are_running: Workers were faster, and are there.
        no_faster_s: The longest rounds that workers did not shorten; 0 before.
    """

    are_running: bool = False
    no_faster_s: float = 0.0


class Trial:
    """Decides for one stage where its next round is computed.

    Args:
        rounds: That the stage has at most.
        share: Part of a round's work that the device with most of it would have.
        before: What earlier stages have shown; learns from this one.
    """

    def __init__(self, rounds: int, *, share: float, before: Experience) -> None:
        self._rounds = rounds
        self._share = share
        self._experience = before
        self._own = _Times()
        self._shared = _Times()
        self._is_over = False

    @property
    def own_s(self) -> float:
        """Seconds of a round in the client's process; 0 before they are known."""
        return self._own.typical

    @property
    def shared_s(self) -> float:
        """Seconds of a round on workers; 0 before they are known."""
        return self._shared.typical

    @property
    def is_over(self) -> bool:
        """Whether workers are no use to this stage any more."""
        return self._is_over

    def wants_workers(self, number: int) -> bool:
        """Return whether workers are to be there for the rounds after ``number``."""
        if self._is_over or not self._own.are_enough:
            return False
        left = self._rounds - number
        left_s, gain = self.own_s * left, 1 - self._share
        if self._experience.are_running:
            return left_s * gain >= _LEAST_GAIN_OF_RUNNING_S
        is_worse = self.own_s < _LONGER * self._experience.no_faster_s
        is_long = left >= _LEAST_LEFT_ROUNDS and left_s >= _LEAST_LEFT_S
        return is_long and gain >= _LEAST_GAIN and not is_worse

    def goes_to_workers(self, number: int) -> bool:
        """Return whether round ``number`` does, where there are workers."""
        return not (self._is_over or (self._shared.are_enough and number % _ROUNDS_PER_LOOK == 0))

    def own_round(self, seconds: float) -> None:
        """Learn how long a round took in the client's process."""
        self._own.add(seconds)
        if self._shared.are_enough and seconds <= self.shared_s:
            self._lose()

    def shared_round(self, seconds: float) -> bool:
        """Learn how long a round took on workers; return whether that has decided."""
        had_enough = self._shared.are_enough
        self._shared.add(seconds)
        most_s = self.own_s * (_WORTH_IT if self._shared.are_enough else 1.0)
        if self.shared_s > most_s:
            self._lose()
        if not self._shared.are_enough and not self._is_over:
            return False
        self._experience.are_running = not self._is_over
        return self._is_over or not had_enough

    def fail(self) -> None:
        """Use no workers any more: one has failed."""
        self._lose()

    def _lose(self) -> None:
        self._is_over = True
        self._experience.are_running = False
        self._experience.no_faster_s = max(self._experience.no_faster_s, self.own_s)


class _Times:
    """The latest rounds of one kind."""

    def __init__(self) -> None:
        self._latest: deque[float] = deque(maxlen=2 * _COMPARED + 1)
        self._count = 0

    @property
    def are_enough(self) -> bool:
        return len(self._latest) >= _COMPARED

    @property
    def typical(self) -> float:
        return float(np.median(self._latest)) if self._latest else 0.0

    def add(self, seconds: float) -> None:
        self._count += 1
        if self._count > 1:
            self._latest.append(seconds)
