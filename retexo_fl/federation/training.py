"""What the script of a method (``methods/*/script.py``) asks of a training: few verbs.

An exchange, a round with its wrappers, the rounds of a stage, its end, and the test. How
a stage's rounds are carried out is the strategy's, by Flower's hooks.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeAlias

import numpy as np

from retexo_fl.client.api import Ticket
from retexo_fl.config import RunConfig
from retexo_fl.federation.asking import Round
from retexo_fl.federation.asking.ask import T
from retexo_fl.federation.opening import Joined
from retexo_fl.federation.rounds.clients import Untold, untold_bytes
from retexo_fl.federation.rounds.exchange import Exchanged
from retexo_fl.federation.rounds.stage import StageTraining
from retexo_fl.federation.rounds.stage_state import StageOutcome, StageState
from retexo_fl.ledger import TrafficLedger
from retexo_fl.methods.pieces.candidates.script import CandidateStage
from retexo_fl.methods.pieces.local_steps.script import CorrectedStage
from retexo_fl.run_log.chosen_floor import ChosenFloor
from retexo_fl.run_log.chosen_rows import ChosenRows
from retexo_fl.run_log.events import RoundClosed
from retexo_fl.training.candidates import CANDIDATES, candidates_of
from retexo_fl.training.joint import REFINED
from retexo_fl.training.selection import Score
from retexo_fl.updates import UpdateCodec

logger = logging.getLogger(__name__)

#: A method as a generator: yields after each stage; its last step is the test.
Script: TypeAlias = Iterator[None]


class Follower:
    """Callbacks of a training; this base class ignores all events, but logs bytes that are missing.

    ``retexo run`` writes its run directory in a subclass.
    """

    def columns_made(self, columns: np.ndarray) -> None:
        """See what makes features of columns of the edges, as it travels."""

    def basis_found(self, basis: np.ndarray, chosen: ChosenRows | None) -> None:
        """See the basis of the features, as it travels, and how its rows were chosen."""

    def exchanged(self, stage: int, exchanged: Exchanged, *, along: bool = False) -> None:
        """See an exchange that has ended; it went ``along`` with the first round if so."""

    def round_done(self, known: RoundClosed | None, stage: StageTraining, *, last: bool) -> None:
        """See a round that has ended, and the figures of the one before that came with it."""

    def validated(self, known: RoundClosed) -> None:
        """See what is known of the last round of a stage."""

    def stage_done(self, outcome: StageOutcome) -> None:
        """See what a stage leaves."""

    def floor_compared(self, chosen: ChosenFloor, kept: StageOutcome | None) -> None:
        """See what a trained model was compared with, and what takes its place, if that is kept."""

    def tested(self, config: RunConfig, untold: Untold) -> None:
        """See that the test is over."""
        for line in untold_bytes(config, untold):
            logger.warning(line)


class StageRunner(Protocol):
    """Carries out the rounds of a stage."""

    @property
    def first(self) -> np.ndarray | None:
        """(P,) weights that the stage starts from; those of the seed if None."""

    @property
    def rounds(self) -> int | None:
        """How many rounds it has at most; as configured if None."""

    def begin(self, weights: np.ndarray) -> None:
        """See the (P,) weights before the first round."""

    def train(self, stage: StageTraining, *, after: int | None) -> Score:
        """Train a round, ``after`` the exchange of that stage, or in the same messages."""

    def validate_last(self, stage: StageTraining) -> Score:
        """Validate the weights after the last round."""

    def validate(self, weights: np.ndarray) -> Score:
        """Evaluate (P,) weights that no round has made on the validation nodes."""

    def test(self, weights: np.ndarray) -> None:
        """Evaluate (P,) weights on the test nodes, once."""


class Training:
    """One attempt at a training.

    Args:
        config: What to train.
        joined: The clients.
        codec: Of updates and weights on their way.
        follower: Its methods are called as it goes on.

    Attributes:
        config: What to train.
        joined: The clients.
        follower: Its methods are called as it goes on.
        runner: Carries out the rounds of a stage; set before the script goes on.
        stage: The stage that was opened last.
    """

    runner: StageRunner
    stage: StageTraining

    def __init__(
        self, config: RunConfig, joined: Joined, *, codec: UpdateCodec, follower: Follower
    ) -> None:
        self.config = config
        self.joined = joined
        self.follower = follower
        self._codec = codec
        #: A stage whose exchange goes along with what is asked next.
        self._due: int | None = None

    # ---- exchanges and rounds -------------------------------------------------------------------

    def exchange(self, stage: int, *, along: bool = False) -> None:
        """Have the rows of a stage cross.

        Args:
            stage: Which.
            along: A round of the stage follows, in whose messages they may cross.
        """
        if along and self.joined.exchanges.go_along:
            self._due = stage
        else:
            self.follower.exchanged(stage, self.joined.exchanges.run(stage))

    def teaches(self, stage: int) -> bool:
        """Return whether a stage trains weights of types without labels, too."""
        return self.joined.schedule.shape.teaches(stage)

    def exchange_early(self, stage: int) -> None:
        """Have what crosses before a stage do so before the stage before it is trained.

        That is what the layer of that stage reads; when weights have come, nothing crosses again.
        """
        self.joined.exchanges.run_early(stage)

    def carry_out(self, asking: Round[T], *, after: int) -> T:
        """Return the result of a round that follows the exchange of a stage.

        They may go in the same messages.
        """
        exchanged, result = self.joined.exchanges.run_with(
            after, self.joined.rounds.wrapped(asking)
        )
        self.follower.exchanged(after, exchanged)
        return result

    # ---- stages ---------------------------------------------------------------------------------

    @property
    def stages(self) -> range:
        """All of them."""
        return range(self.config.stages)

    def is_done(self, stage: int) -> bool:
        """Return whether a stage has its weights, of an earlier attempt or of this one."""
        return stage < len(self.joined.job.outcomes)

    def initial(self, stage: int) -> np.ndarray:
        """Return the (P,) weights that a stage starts from, after those before it."""
        before = None
        if stage and self.config.warm_start:
            before = self.joined.job.outcomes[stage - 1].weights
        return self.joined.schedule.initial(stage, seed=self.config.seed, before=before)

    def open(self, stage: int, state: StageState | None = None) -> StageLoop:
        """Return a stage as an earlier attempt left it, or before its first round.

        Args:
            stage: Which.
            state: Of the stage, where that is known.
        """
        job = self.joined.job
        state = state or job.stage_state(stage)
        if state is None:
            first = self.runner.first
            state = StageState.first(self.initial(stage) if first is None else first)
        kind = self._kind
        if candidate := CANDIDATES.get(state.candidate):
            kind = partial(
                CandidateStage,
                fixed=candidate.fixed(self.joined.schedule.shape, stage),
                weight_decay=candidate.weight_decay,
            )
        self.begin(job.ticket(stage), state, kind)
        return self._opened(self.runner.rounds)

    def open_refinement(self, stage: int, start: StageOutcome) -> StageLoop:
        """Return a stage after the last one, as an earlier attempt left it, or before it begins.

        Args:
            stage: Its number.
            start: Where it starts from, which is kept if nothing is clearly better.
        """
        job, last = self.joined.job, self.stages[-1]
        state = job.stage_state(stage)
        if state is None or state.candidate != REFINED:
            state = StageState.next_candidate(REFINED, start.weights, start)
        # Rows that it reads have the name of the last stage's.
        ticket = replace(job.ticket(last), stage=stage)
        self.begin(ticket, state, self._kind)
        self.stage.begin_whole()
        most = self.joined.schedule.shape.refined_rounds(self.config)
        return self._opened(most if self.runner.rounds is None else self.runner.rounds)

    @property
    def _kind(self) -> Callable[..., StageTraining]:
        corrects = self.config.local_correction == "scaffold"
        return CorrectedStage if corrects else StageTraining

    def _opened(self, rounds: int | None) -> StageLoop:
        self.runner.begin(self.stage.weights)
        return StageLoop(self.config, self.joined.job.ledger, self.stage, rounds=rounds)

    def begin(
        self,
        ticket: Ticket,
        state: StageState,
        kind: Callable[..., StageTraining] = StageTraining,
    ) -> None:
        """Have what is asked from now on be of a stage."""
        job = self.joined.job
        self.stage = kind(
            self.config,
            ticket,
            state,
            clients=self.joined.clients,
            participants=self.joined.federation.participants,
            label_facts=job.label_facts,
            codec=self._codec,
        )

    def train_round(self, loop: StageLoop) -> None:
        """Train a round of an open stage."""
        stage = loop.stage
        if self.joined.exchanges.behind:
            self.joined.exchanges.bring_up(stage.ticket.stage, stage.training_clients)
        due, self._due = self._due, None
        # Of the round before, which this round's answers validate.
        before = loop.known()
        score = self.runner.train(stage, after=due)
        known = loop.closed(before, score) if before["round"] > stage.begun else None
        self.follower.round_done(known, stage, last=not loop.wants_round)

    def select(self, loop: StageLoop) -> StageLoop | None:
        """Close a stage: validate its last weights, unless patience was lost; keep the best.

        Returns:
            The same stage as something else, where that may pay, instead of keeping any yet.
        """
        stage = loop.stage
        if not loop.has_lost_patience:
            score = self.runner.validate_last(stage)
            self.follower.validated(loop.closed(loop.known(), score))
        outcome = stage.outcome()
        following = self._next_candidate(outcome)
        if following is None:
            self.keep(outcome)
            return None
        return self.open(outcome.stage, following)

    def _next_candidate(self, outcome: StageOutcome) -> StageState | None:
        """Return the state before the next thing that a stage is trained as; None if there is none.

        Args:
            outcome: Of the stage so far.
        """
        number, shape = outcome.stage, self.joined.schedule.shape
        if number == shape.refinement:
            return None
        tried = {one.name for one in outcome.tried}
        before = self.joined.job.outcomes[number - 1].score.gap if number else -math.inf
        for candidate in candidates_of(self.config, shape, number):
            if candidate.name not in tried and candidate.may_pay(outcome.score.gap, before):
                first = candidate.fixed(shape, number).set_in(self.initial(number))
                return StageState.next_candidate(candidate.name, first, outcome)
        return None

    def keep(self, outcome: StageOutcome) -> None:
        """Keep what a stage leaves."""
        self.follower.stage_done(outcome)
        self.joined.job.outcomes[outcome.stage :] = [outcome]

    def finish(self) -> None:
        """Evaluate the model on all test nodes; the clients then forget the job."""
        self.runner.test(self.joined.job.kept.weights)
        self.follower.tested(self.config, self.joined.job.untold)


class StageLoop:
    """Says how long one stage is trained, and what became known of it.

    Args:
        config: Of the run.
        ledger: Of the job.
        stage: What is trained.
        rounds: How many at most; as configured if None.

    Attributes:
        stage: What is trained.
    """

    def __init__(
        self,
        config: RunConfig,
        ledger: TrafficLedger,
        stage: StageTraining,
        *,
        rounds: int | None = None,
    ) -> None:
        self._ledger = ledger
        self.stage = stage
        number = stage.ticket.stage
        #: The last round that it may take.
        self._last = stage.begun + (config.stage_rounds[number] if rounds is None else rounds)
        self._patience = config.patience
        if config.last_rounds and number >= config.stages - 1:
            self._patience = 0

    @property
    def wants_round(self) -> bool:
        """Whether a round is left, and the last ``patience`` rounds were not all in vain."""
        return self.stage.round < self._last and not self.has_lost_patience

    @property
    def has_lost_patience(self) -> bool:
        """Whether none of the last ``patience`` weights was better than those before.

        So it is, too, where a stage as something else is not better than before after as many
        rounds as that took, and ``patience`` more. Those of the last round are not looked at then.
        """
        stage, patience = self.stage, self._patience
        judged = stage.round - 1
        if not patience or judged <= stage.begun:
            return False
        rival, best = stage.rival, stage.best
        if judged - best.round_number >= patience:
            return True
        if rival is None or judged - stage.begun < rival.best_round + patience:
            return False
        return best.score is None or not best.score.beats(rival.score)

    def known(self) -> dict[str, Any]:
        """Return what is known of the last round, by fields of its event."""
        names = ("round", "loss", "absent", "summed", "cut")
        return {name: getattr(self.stage, name) for name in names}

    def closed(self, known: Mapping[str, Any], score: Score) -> RoundClosed:
        """Return what is known of a round, and of the weights that it made."""
        best = self.stage.best
        assert best.score is not None
        return RoundClosed(
            stage=self.stage.ticket.stage,
            rounds=self._last,
            **known,
            val_loss=score.loss,
            val_accuracy=score.accuracy,
            val_metric=score.metric,
            train_accuracy=score.train_accuracy,
            candidate=self.stage.candidate,
            best_round=best.round_number,
            best_val_accuracy=best.score.accuracy,
            best_val_metric=best.score.metric,
            bytes_payload=self._ledger.sum().payload,
        )
