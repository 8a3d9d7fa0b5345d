"""The server's loop over stages: exchange, rounds, selection; then the test.

    hello
    basis         where features become coordinates: their sums, then one block after the other
    for each stage m:
        publish   every client embeds its nodes with the selected layer m - 1 and sends its vectors
        collect   until every vector has arrived, or the deadline decides
        R rounds  weights w(r-1) out, gradient sums back, one step to w(r), checkpoint
        evaluate  w(R) on the validation nodes; the best of w(1)..w(R) is kept
    evaluate      the selected model on the test nodes, once

With ``solver = ridge`` no stage has rounds: after the exchanges of all stages clients add up
products, from which the last layer follows.

A stage that loses patience leaves its last weights unevaluated. Where weights travel as changes,
publish and collect go in the messages of the first round.

Algorithms that train end to end have one stage, which holds all layers.

Source: RETEXO (Kolluri et al.), section 3.1.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from flwr.serverapp import Grid

from retexo_fl.client.api import Ticket
from retexo_fl.config import RunConfig
from retexo_fl.federation.asking import (
    THIS_MACHINE,
    Clock,
    OpenExchange,
    Round,
    Silence,
    Watch,
)
from retexo_fl.federation.job_state import JobState
from retexo_fl.federation.layer_files import LayerFacts
from retexo_fl.federation.modelled import network_facts
from retexo_fl.federation.outcome import TrainingOutcome, end_warnings, finish_run
from retexo_fl.federation.profile_cost import with_costs
from retexo_fl.federation.rounds.exchange import Exchanged
from retexo_fl.federation.rounds.stage import StageTraining
from retexo_fl.federation.rounds.stage_state import StageOutcome, StageState
from retexo_fl.federation.run_directory import RunDirectory
from retexo_fl.federation.stage_loop import StageLoop
from retexo_fl.federation.strategy import Joined, LazyMessagePassing
from retexo_fl.graph.labels import REGRESSION
from retexo_fl.run_log.events import (
    ExchangeClosed,
    Finished,
    RoundsLost,
    StageClosed,
    Started,
    Waiting,
)
from retexo_fl.training.selection import Score
from retexo_fl.units import clients_named

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class ServerLoop:
    """One attempt of one job.

    Attributes:
        grid: The way to the clients.
        config: The configuration of the job.
        run: Where its results go.
        job: What earlier attempts achieved, added to by this one.
        clock: By which clients are waited for.
    """

    grid: Grid
    config: RunConfig
    run: RunDirectory
    job: JobState
    clock: Clock = THIS_MACHINE
    _strategy: LazyMessagePassing = field(init=False)
    _joined: Joined = field(init=False)

    def greet(self) -> None:
        """Wait for the clients and learn the sizes of their parts; writes nothing.

        Raises:
            PartitionError: The clients' parts do not belong together.
            ConfigurationError: The aggregator needs more clients with train nodes.
            RoundIncomplete: Clients are missing.
        """
        self._strategy = LazyMessagePassing(self.config)
        watch = Watch(clock=self.clock, on_wait=self._record_wait)
        self._joined = self._strategy.join(
            self.grid, self.job, on_silence=self._record_silence, watch=watch
        )

    def train(self) -> TrainingOutcome:
        """Run the stages that are left, and the test; write the results.

        A resumed attempt repeats the exchanges of finished stages, since clients may have lost
        what they held in memory; where they have not, nothing is sent again.
        """
        self.job.restore_weights(self._joined.schedule, self.run)
        if self.job.profile is not None:
            vectors = sum(hello.vectors_out for hello in self._joined.clients.counted.values())
            self.job.profile = with_costs(
                self.job.profile, self.config, self._joined.federation.answers, vectors
            )
        self.run.record(
            Started(
                attempt=self.job.attempt,
                clients=self.config.clients,
                stages=self._strategy.stages,
                metric=self.config.metric_name,
                profile=self.job.profile,
                warnings=self._warnings(),
                absent=self._never_there,
            )
        )
        if self.run.lost_rounds:
            self.run.record(RoundsLost(rounds=tuple(self.run.lost_rounds)))
        if self._joined.messenger.policy.clients_return or self.config.solver == "ridge":
            self._keep_attempt()
        if (basis := self._strategy.find_basis()) is not None:
            known = self._joined.federation
            self.run.write_basis(basis, features=known.features, classes=known.classes)
        if self.config.solver == "ridge":
            self._solve()
        else:
            self._train_stages()
        test = self._test()
        outcome = TrainingOutcome(
            config=self.config,
            shape=self._joined.schedule.shape,
            answers=self._joined.federation.answers,
            counted=self._joined.clients.counted,
            warnings=self._warnings(),
            test=test,
            report_sums=self._strategy.training.report_sums,
            own_figures=self._strategy.training.own_figures,
            network=network_facts(self.grid),
        )
        return finish_run(self.run, self.job, outcome)

    def _train_stages(self) -> None:
        for stage in range(self._strategy.stages):
            if stage < len(self.job.outcomes):
                self._exchange(stage)
            elif not self.config.stage_rounds[stage]:
                self._exchange(stage)
                self._close_stage(StageOutcome.untrained(stage, self._strategy.initial(stage)))
            else:
                self._train_stage(stage)

    def _solve(self) -> None:
        """Find the last layer without rounds; those before it have no weights.

        Clients send the vectors of a stage in the messages that end the exchange before it.
        """
        exchanges, last = self._joined.exchanges, self._strategy.stages - 1
        for stage in range(last):
            outcome = StageOutcome.untrained(stage, self._strategy.initial(stage))
            self.job.outcomes[stage:] = [outcome]
            exchanged, _ = exchanges.run_with(stage, exchanges.publishing(stage + 1))
            self._record_exchange(stage, exchanged)
            self._record_stage(outcome)
        exchanged, weights = exchanges.run_with(
            last, self._joined.rounds.wrapped(self._strategy.solving())
        )
        self._record_exchange(last, exchanged)
        state = replace(StageState.first(weights), round=1)
        training = self._strategy.open_stage(last, state)
        known, outcome = self._loop(training).close()
        if known is not None:
            self.run.record(known)
        self._close_stage(outcome)

    def _warnings(self) -> tuple[str, ...]:
        """Return what the user should know before the training."""
        left_out = self._joined.federation.left_out
        return (
            *self._joined.labels.warnings(),
            *(
                f"{use} nodes of {clients_named(clients)} do not count: under masks, a sum is over "
                "3 clients at least"
                for use, clients in left_out.items()
                if clients
            ),
        )

    @property
    def _never_there(self) -> tuple[int, ...]:
        """Clients that were absent when the attempt began."""
        there = self._joined.federation.participants.everyone
        return tuple(sorted({*range(self.config.clients)} - {*there}))

    def _keep_attempt(self) -> None:
        """Write where the attempt begins: exchanges may be open for days before a round is done.

        A run without rounds writes no other checkpoint.
        """
        stage = len(self.job.outcomes)
        state = self.job.stage_state(stage) or self._first_state(stage)
        self.run.checkpoint(self.job.checkpoint(self.job.ticket(stage), state), self.job.ledger)

    def _checkpoint(self, ticket: Ticket, state: StageState) -> None:
        self.run.checkpoint(self.job.checkpoint(ticket, state), self.job.ledger)
        # Whether all parts go together has been seen.
        self.run.take_place()

    def _exchange(self, stage: int) -> None:
        begun_s = self.clock.now_s()
        exchanged = self._joined.exchanges.run(stage)
        self.job.exchange_s += self.clock.now_s() - begun_s
        self._record_exchange(stage, exchanged)

    def _first_round(self, stage: int, asking: Round[Score]) -> Score:
        """Carry out the exchange and a round in the same messages."""
        before = self._rounds_bytes(stage)
        exchanged, score = self._joined.exchanges.run_with(
            stage, self._joined.rounds.wrapped(asking)
        )
        self._record_exchange(stage, exchanged, beside=self._rounds_bytes(stage) - before)
        return score

    def _rounds_bytes(self, stage: int) -> int:
        ledger = self.job.ledger
        purposes = ("train", "evaluate")
        return sum(ledger.sum(layer=stage, purpose=purpose).payload for purpose in purposes)

    def _record_exchange(self, stage: int, exchanged: Exchanged, *, beside: int = 0) -> None:
        """Record how an exchange ended; so many bytes ``beside`` it were not its own."""
        self.job.missing[stage] = exchanged.missing
        if not self.job.is_restored(stage):
            self.run.record(
                ExchangeClosed(
                    stage=stage,
                    vectors=exchanged.vectors,
                    missing=exchanged.missing,
                    error_bound=exchanged.error_bound,
                    bytes_payload=self._payload_bytes() - beside,
                )
            )

    def _train_stage(self, stage: int) -> None:
        ticket, every = self.job.ticket(stage), self.config.checkpoint_every
        state = self.job.stage_state(stage) or self._first_state(stage)
        messenger, training = self._joined.messenger, self._strategy.open_stage(stage, state)
        loop = self._loop(training)
        carry_out: Callable[[Round[Score]], Score] | None = None
        if self._joined.exchanges.go_along and not loop.finished:
            carry_out = partial(self._first_round, stage)
        else:
            self._exchange(stage)
        ended, waited_until_s = time.monotonic(), messenger.waited_s
        while not loop.finished:
            self._joined.exchanges.bring_up(stage, training.training)
            known = loop.train_round(carry_out)
            carry_out = None
            self.job.note_absent({*training.absent, *self._never_there})
            waited_s = messenger.waited_s - waited_until_s
            waited_until_s += waited_s
            self.job.train_s += waited_s
            # With what the checkpoint of the round before made it wait.
            begun, ended = ended, time.monotonic()
            if known is not None:
                seconds = round(ended - begun, 6)
                self.run.record(replace(known, seconds=seconds, waited_s=round(waited_s, 6)))
            if loop.finished or (training.round % every == 0 and self.run.wants_checkpoint()):
                self._checkpoint(ticket, training.state())
        known, outcome = loop.close()
        if known is not None:
            self.run.record(known)
        self._close_stage(outcome)

    def _loop(self, training: StageTraining) -> StageLoop:
        return StageLoop(self.config, self._joined.rounds.carry_out, self.job.ledger, training)

    def _first_state(self, stage: int) -> StageState:
        return StageState.first(self._strategy.initial(stage))

    def _record_silence(self, silence: Silence) -> None:
        """Report whom the clients that have answered wait for."""
        asked = silence.question
        if asked.stage < 0:
            # Before the first stage nothing is written.
            logger.warning("%s waits for %s", asked.purpose, clients_named(silence.clients))
            return
        self.run.record(
            Waiting(
                stage=asked.stage,
                round=asked.round,
                purpose=asked.purpose,
                clients=silence.clients,
            )
        )

    def _record_wait(self, exchange: OpenExchange) -> None:
        """Report whom an open exchange waits for."""
        self.run.record(
            Waiting(
                stage=exchange.stage,
                purpose="exchange",
                clients=tuple(exchange.lacks),
                lacks=tuple(exchange.lacks.values()),
                open_s=round(exchange.open_s, 3),
            )
        )

    def _close_stage(self, outcome: StageOutcome) -> None:
        self._record_stage(outcome)
        self.job.outcomes.append(outcome)

    def _record_stage(self, outcome: StageOutcome) -> None:
        """Write a finished stage's layers, and say how it ended."""
        schedule = self._joined.schedule
        scale = self.job.label_facts if self.config.task == REGRESSION else ()
        for layer, tensors in schedule.named(outcome.stage, outcome.weights).items():
            shape = schedule.shape
            facts = LayerFacts(
                stage=layer,
                features=shape.features,
                classes=shape.classes,
                recipe=self._joined.federation.recipe,
                label_facts=scale,
                edge_features=shape.edge_features,
            )
            self.run.write_layer(facts, tensors)
        self.run.record(
            StageClosed(
                stage=outcome.stage,
                best_round=outcome.best_round,
                val_accuracy=outcome.score.accuracy,
                val_metric=outcome.score.metric,
                rounds=outcome.rounds,
                bytes_payload=self._payload_bytes(),
            )
        )

    def _test(self) -> Score:
        weights: np.ndarray = self.job.outcomes[-1].weights
        asking = self._strategy.training.evaluate(weights, "test")
        test = self._joined.rounds.carry_out(asking)
        self.run.record(
            Finished(
                test_accuracy=test.accuracy,
                test_metric=test.metric,
                warnings=end_warnings(self.config, self.job, self._strategy.training.report_sums),
                bytes_payload=self._payload_bytes(),
            )
        )
        return test

    def _payload_bytes(self) -> int:
        return self.job.ledger.sum().payload
