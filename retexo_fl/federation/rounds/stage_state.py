"""Where the training of a stage stands, and what it leaves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

import numpy as np

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
    """

    stage: int
    rounds: int
    best_round: int
    score: Score
    weights: np.ndarray

    @classmethod
    def untrained(cls, stage: int, weights: np.ndarray) -> Self:
        """Return the outcome of a stage without rounds, which passes on what its layer reads."""
        score = Score(count=0, correct=0, loss_sum=0.0)
        return cls(stage=stage, rounds=0, best_round=0, score=score, weights=weights)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageState:
    """Where a stage stands after a round: everything that decides how it continues.

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

    @classmethod
    def first(cls, weights: np.ndarray) -> Self:
        """Return the state before the first round."""
        return cls(round=0, loss=None, best=BestWeights(), weights=weights, optimizer={})
