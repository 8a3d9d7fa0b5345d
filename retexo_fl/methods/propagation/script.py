"""Label propagation, from the moment when all clients are known to the test.

    for each step t:
        publish   every client sends the scores F(t) of boundary nodes
        collect   until every row has arrived, or the deadline decides
    evaluate      the scores after the last step on the validation nodes, then on the test nodes

A step is a stage of a training without rounds, without weights; what it computes is in
:mod:`.answers`.
"""

from __future__ import annotations

from retexo_fl.federation.rounds.stage_state import StageOutcome
from retexo_fl.federation.training import Script, Training


def propagate(training: Training) -> Script:
    """Have scores cross before each step; judge them after the last."""
    *before, last = training.stages
    for stage in before:
        training.exchange(stage)
        training.keep(StageOutcome.untrained(stage, training.initial(stage)))
        yield
    training.exchange(last)
    scored = training.open(last).stage
    training.runner.validate_last(scored)
    training.keep(scored.outcome())
    yield
    training.finish()
