"""Lazy message passing, from the moment when all clients are known to the test.

    columns       where nodes have no features: made of the edges, step by step
    basis         where features become coordinates: their sums, then one block after the other
    for each stage m:
        publish   every client embeds its nodes with the selected layer m - 1 and sends its vectors
        collect   until every vector has arrived, or the deadline decides
        publish, collect   where types without labels are taught, before the rounds: what layer m
                  reads, in place of what would cross before the next stage
        R rounds  weights w(r-1) out, gradient sums back, one step to w(r)
        evaluate  w(R) on the validation nodes; the best of w(1)..w(R) is kept
    refinement    further rounds of the last two layers together, where rows of both ends are there
    floor         what else is solved for from the last stage's rows: the better is kept
    evaluate      the selected model on the test nodes, once

A stage may then be trained as something else, by further rounds, of which the best is kept
(:mod:`~retexo_fl.training.candidates`). What ``patience`` has stopped does not validate its last
weights. Algorithms that train end to end have one stage, which holds all layers.

Source: RETEXO (Kolluri et al.), section 3.1.
"""

from __future__ import annotations

from retexo_fl.federation.rounds.stage_state import StageOutcome
from retexo_fl.federation.training import Script, StageLoop, Training
from retexo_fl.methods.pieces.basis.script import find_basis
from retexo_fl.methods.pieces.columns.script import make_columns
from retexo_fl.methods.pieces.floor.script import compare_with_floor
from retexo_fl.methods.pieces.refinement.script import refine


def lazy(training: Training) -> Script:
    """Train one stage after the other; rows cross before the rounds of a stage, not within them."""
    make_columns(training)
    find_basis(training)
    for stage in training.stages:
        if training.is_done(stage):
            # Clients may have lost what they held in memory; where not, nothing is sent again.
            training.exchange(stage)
        elif not training.config.stage_rounds[stage]:
            training.exchange(stage)
            training.keep(StageOutcome.untrained(stage, training.initial(stage)))
        else:
            opened = training.open(stage)
            teaches = training.teaches(stage)
            training.exchange(stage, along=opened.wants_round and not teaches)
            if teaches:
                training.exchange_early(stage + 1)
            loop: StageLoop | None = opened
            while loop is not None:
                while loop.wants_round:
                    training.train_round(loop)
                loop = training.select(loop)
        if stage == training.stages[-1]:
            refine(training)
        yield
    compare_with_floor(training)
    training.finish()
