"""The comparison of a trained model with its floor: two questions after the last stage.

Clients add up, of rows that crossed before the last stage, what the regression needs (the question
of :mod:`retexo_fl.methods.ridge.script`), and judge what the server solves for. No checkpoint has
any of it: a resumed run asks again, and gets the same sums.
"""

from __future__ import annotations

from dataclasses import replace

from retexo_fl.federation.rounds.stage_state import StageOutcome, StageState
from retexo_fl.federation.training import Training
from retexo_fl.methods.ridge.script import solve_last
from retexo_fl.run_log.chosen_floor import ChosenFloor


def compare_with_floor(training: Training) -> None:
    """Keep a ridge regression in place of the trained model, where validation nodes prefer it."""
    joined = training.joined
    shape, job = joined.schedule.shape, joined.job
    if not shape.has_floor:
        return
    last = training.stages[-1]
    ticket = replace(job.ticket(last), stage=shape.stages)
    weights = joined.rounds.carry_out(solve_last(joined.clients, ticket, shape.floor))
    as_trained = training.stage
    training.begin(ticket, StageState.first(weights))
    score, trained = training.runner.validate(weights), job.outcomes[last].score
    is_kept = score.is_higher(trained)
    if is_kept:
        job.floor = replace(StageOutcome.untrained(shape.stages, weights), score=score)
    else:
        training.stage = as_trained
    job.chosen_floor = ChosenFloor(
        kept="floor" if is_kept else "trained",
        metric=training.config.metric_name,
        floor=score.value,
        trained=trained.value,
    )
    training.follower.floor_compared(job.chosen_floor, job.floor)
