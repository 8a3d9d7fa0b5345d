"""Which weights of a stage are kept: the best of w(1)..w(R) on the validation nodes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Validation over all clients; ``count`` 0 means that no client has validation nodes."""

    count: int
    correct: int
    loss_sum: float

    @property
    def accuracy(self) -> float | None:
        """Share classified rightly, or None without nodes."""
        return self.correct / self.count if self.count else None

    @property
    def loss(self) -> float | None:
        """Mean cross entropy, or None without nodes."""
        return self.loss_sum / self.count if self.count else None

    def beats(self, other: Score) -> bool:
        """Say whether these weights are to be preferred to earlier ones.

        Higher accuracy wins, then lower loss; at a full tie the earlier weights stay. Without
        validation nodes later weights win, since nothing speaks against training longer.
        """
        if not self.count:
            return True
        return (self.correct, -self.loss_sum) > (other.correct, -other.loss_sum)


@dataclass(slots=True, kw_only=True)
class BestWeights:
    """The best candidate so far.

    Attributes:
        weights: (P,), or None before the first candidate.
        round_number: r of w(r).
        score: Its validation.
    """

    weights: np.ndarray | None = None
    round_number: int = 0
    score: Score | None = None

    def offer(self, weights: np.ndarray, round_number: int, score: Score) -> bool:
        """Keep ``weights`` if they beat the best so far; say whether they did."""
        if self.score is not None and not score.beats(self.score):
            return False
        self.weights, self.round_number, self.score = weights.copy(), round_number, score
        return True
