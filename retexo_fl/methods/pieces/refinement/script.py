"""The rounds that train the last two layers together, after each was trained by itself.

They begin with the selected weights of both, which are kept where no round is clearly better on
validation nodes. Nothing crosses between clients (:mod:`retexo_fl.training.joint`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from retexo_fl.federation.rounds.stage_state import StageOutcome
from retexo_fl.federation.training import Training
from retexo_fl.run_log.events import TriedCandidate

#: What it starts from is called so in logs and results.
_BY_THEMSELVES: Final = "layer by layer"


def refine(training: Training) -> None:
    """Train the last two layers together, where peers have what the first of them reads."""
    stage = training.joined.schedule.shape.refinement
    if stage is None:
        return
    loop = training.open_refinement(stage, _start(stage, training.joined.job.outcomes))
    while loop.wants_round:
        training.train_round(loop)
    training.select(loop)


def _start(stage: int, outcomes: list[StageOutcome]) -> StageOutcome:
    """Return both layers as they were trained, as the outcome of no round of a stage."""
    before, last = outcomes[stage - 2 : stage]
    score = last.score
    tried = TriedCandidate(
        name=_BY_THEMSELVES,
        rounds=0,
        val_accuracy=score.accuracy,
        val_metric=score.metric,
        train_accuracy=score.train_accuracy,
    )
    return replace(
        last,
        stage=stage,
        rounds=0,
        best_round=0,
        weights=np.concatenate([before.weights, last.weights]),
        candidate=tried.name,
        tried=(tried,),
    )
