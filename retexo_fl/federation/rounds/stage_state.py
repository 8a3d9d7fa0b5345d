"""The state of a stage's training, and its outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np

from retexo_fl.run_log.events import TriedCandidate
from retexo_fl.training.selection import BestWeights, Score


@dataclass(frozen=True, slots=True, kw_only=True)
class StageOutcome:
    """What a finished stage leaves.

    Attributes:
        stage: Stage index.
        rounds: Rounds trained.
        best_round: r of the selected w(r).
        score: Its validation.
        weights: (P,) the selected weights.
        candidate: As what it was trained (:mod:`~retexo_fl.training.candidates`); empty: as it is.
        tried: All that it was trained as, in order.
    """

    stage: int
    rounds: int
    best_round: int
    score: Score
    weights: np.ndarray
    candidate: str = ""
    tried: tuple[TriedCandidate, ...] = ()

    @property
    def choice(self) -> tuple[TriedCandidate, ...]:
        """What it was chosen among: all that it was trained as, where that is several things."""
        return self.tried if len(self.tried) > 1 else ()

    def best_of(self, before: StageOutcome | None) -> StageOutcome:
        """Return what is kept: this, where it is clearly better than what was trained before."""
        if before is None:
            return self
        best = self if self.score.clearly_beats(before.score) else before
        return replace(best, rounds=self.rounds, tried=(*before.tried, *self.tried))

    @classmethod
    def untrained(cls, stage: int, weights: np.ndarray) -> Self:
        """Return the outcome of a stage without rounds, which passes on what its layer reads."""
        score = Score(count=0, correct=0, loss_sum=0.0)
        return cls(stage=stage, rounds=0, best_round=0, score=score, weights=weights)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageState:
    """The state of a stage after a round: everything that decides how it continues.

    Attributes:
        round: Rounds done.
        loss: Mean training loss of the last round, or None before the first.
        best: The best candidate of w(1)..w(round - 1).
        weights: (P,) w(round).
        optimizer: State of the server's optimizer.
        absent: Clients whose answers the last round was closed without, ascending.
        summed: How many clients' updates its masked sum was of; likewise ``cut``, of how many
            values too large.
        steps: What the next round's updates are encoded by.
        held: (P,) weights that clients hold, where the codec sends changes of them.
        controls: By client, its (P,) control variate of SCAFFOLD.
        train_accuracy: Of the last round, where it is counted.
        candidate: As what the stage is trained (:mod:`~retexo_fl.training.candidates`); empty: as
            it is.
        begun: Rounds of the stage that were trained as something else, before.
        rival: The best of these.
    """

    round: int
    loss: float | None
    best: BestWeights
    weights: np.ndarray
    optimizer: Mapping[str, np.ndarray]
    absent: tuple[int, ...] = ()
    summed: int | None = None
    cut: int | None = None
    steps: bytes = b""
    held: np.ndarray | None = None
    controls: Mapping[int, np.ndarray] = field(default_factory=dict)
    train_accuracy: float | None = None
    candidate: str = ""
    begun: int = 0
    rival: StageOutcome | None = None

    @classmethod
    def first(cls, weights: np.ndarray) -> Self:
        """Return the state before the first round."""
        return cls(round=0, loss=None, best=BestWeights(), weights=weights, optimizer={})

    @classmethod
    def next_candidate(cls, name: str, weights: np.ndarray, rival: StageOutcome) -> Self:
        """Return the state before the first round of a stage as something else.

        Args:
            name: Of the candidate.
            weights: (P,) that it starts from.
            rival: The stage's best outcome before.
        """
        first = cls.first(weights)
        return replace(first, round=rival.rounds, begun=rival.rounds, candidate=name, rival=rival)
