"""The server's loop over stages: exchange, rounds, selection; then the test.

    hello
    for each stage m:
        publish   every client embeds its nodes with the selected layer m - 1 and sends its vectors
        collect   until every vector has arrived, or the deadline decides
        R rounds  weights w(r-1) out, gradient sums back, one step to w(r), checkpoint
        evaluate  w(R) on the validation nodes; the best of w(1)..w(R) is kept
    evaluate      the selected model on the test nodes, once

Algorithms that train end to end have one stage, which holds all layers.

Source: RETEXO (Kolluri et al.), section 3.1.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field

import numpy as np
from flwr.serverapp import Grid

from retexo_fl.config import RunConfig
from retexo_fl.federation.asking import THIS_MACHINE, Clock, OpenExchange, Silence, Watch
from retexo_fl.federation.job_state import JobState
from retexo_fl.federation.layer_files import LayerFacts
from retexo_fl.federation.modelled import network_facts
from retexo_fl.federation.outcome import TrainingOutcome, finish_run
from retexo_fl.federation.run_directory import RunDirectory
from retexo_fl.federation.stage_loop import StageLoop
from retexo_fl.federation.stage_state import StageOutcome, StageState
from retexo_fl.federation.strategy import LazyMessagePassing
from retexo_fl.progress_state import clients_named
from retexo_fl.training.selection import Score

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class ServerLoop:
    """One attempt of one job.

    Attributes:
        grid: The way to the clients.
        config: The configuration of the job.
        run: Where its results go.
        job: What earlier attempts achieved, added to by this one.
        clock: By which exchanges are waited for.
    """

    grid: Grid
    config: RunConfig
    run: RunDirectory
    job: JobState
    clock: Clock = THIS_MACHINE
    _strategy: LazyMessagePassing = field(init=False)

    def greet(self) -> None:
        """Wait for the clients and learn the sizes of their parts; writes nothing.

        Raises:
            PartitionError: The clients' parts do not belong together.
            ConfigurationError: The aggregator needs more clients with train nodes.
            RoundIncomplete: Clients are missing.
        """
        self._strategy = LazyMessagePassing(self.config)
        watch = Watch(clock=self.clock, on_wait=self._record_wait)
        self._strategy.join(self.grid, self.job, on_silence=self._record_silence, watch=watch)

    def train(self) -> TrainingOutcome:
        """Run the stages that are left, and the test; write the results.

        A resumed attempt repeats the exchanges of finished stages, since clients may have lost
        what they held in memory; where they have not, nothing is sent again.
        """
        self.job.restore_weights(self._strategy.schedule, self.run)
        self.run.record(
            "start",
            attempt=self.job.attempt,
            clients=self.config.clients,
            stages=self._strategy.stages,
            **({"absent": self._never_there} if self._never_there else {}),
        )
        if self.run.lost_rounds:
            self.run.record("history_lost", rounds=self.run.lost_rounds)
        if self._strategy.messenger.policy.clients_return:
            self._keep_attempt()
        for stage in range(self._strategy.stages):
            self._exchange(stage)
            if stage >= len(self.job.outcomes):
                loop = self._train_stage(stage)
        test = self._test(loop)
        outcome = TrainingOutcome(
            config=self.config,
            shape=self._strategy.schedule.shape,
            answers=self._strategy.federation.answers,
            test=test,
            network=network_facts(self.grid),
        )
        return finish_run(self.run, self.job, outcome)

    @property
    def _never_there(self) -> list[int]:
        """Clients that were absent when the attempt began."""
        there = self._strategy.participants.everyone
        return sorted({*range(self.config.clients)} - {*there})

    def _keep_attempt(self) -> None:
        """Write where the attempt begins: exchanges may be open for days before a round is done."""
        stage = len(self.job.outcomes)
        state = self.job.stage_state(stage) or self._first_state(stage)
        self.run.checkpoint(self.job.checkpoint(self.job.ticket(stage), state))

    def _exchange(self, stage: int) -> None:
        begun_s = self.clock.now_s()
        exchanged = self._strategy.exchanges.run(stage)
        self.job.exchange_s += self.clock.now_s() - begun_s
        self.job.missing[stage], bound = exchanged.missing, exchanged.error_bound
        if not self.job.is_restored(stage):
            self.run.record(
                "exchange",
                stage=stage,
                vectors=exchanged.vectors,
                missing=exchanged.missing,
                bytes_payload=self._payload_bytes(),
                **({} if bound is None else {"error_bound": bound}),
            )

    def _train_stage(self, stage: int) -> StageLoop:
        ticket, every = self.job.ticket(stage), self.config.checkpoint_every
        state = self.job.stage_state(stage) or self._first_state(stage)
        loop = StageLoop(self._strategy, stage, state, self.grid)
        messenger, training = self._strategy.messenger, self._strategy.participants.training
        ended, waited_until_s = time.monotonic(), messenger.waited_s
        while not loop.finished:
            behind = self._strategy.exchanges.bring_up(stage, training)
            known = loop.train_round(behind)
            self.job.note_absent({*loop.absent, *self._never_there})
            waited_s = messenger.waited_s - waited_until_s
            waited_until_s += waited_s
            self.job.train_s += waited_s
            # With what the checkpoint of the round before made it wait.
            begun, ended = ended, time.monotonic()
            if known is not None:
                self._record_round(known, ended - begun, waited_s)
            if loop.finished or (loop.round % every == 0 and self.run.wants_checkpoint()):
                self.run.checkpoint(self.job.checkpoint(ticket, loop.state()))
        known, outcome = loop.close()
        self._record_round(known, None, None)
        self._close_stage(outcome)
        return loop

    def _first_state(self, stage: int) -> StageState:
        weights = self._strategy.schedule.initial(stage, seed=self.config.seed)
        return StageState.first(weights)

    def _record_silence(self, silence: Silence) -> None:
        """Tell whom the clients that have answered wait for."""
        asked = silence.question
        if asked.stage < 0:
            # Before the first stage nothing is written.
            logger.warning("%s waits for %s", asked.purpose, clients_named(silence.clients))
            return
        self.run.record(
            "waiting",
            stage=asked.stage,
            round=asked.round,
            purpose=asked.purpose,
            clients=list(silence.clients),
        )

    def _record_wait(self, exchange: OpenExchange) -> None:
        """Tell whom an open exchange waits for."""
        self.run.record(
            "waiting",
            stage=exchange.stage,
            round=0,
            purpose="exchange",
            clients=list(exchange.lacks),
            lacks=list(exchange.lacks.values()),
            open_s=round(exchange.open_s, 3),
        )

    def _record_round(
        self, known: dict[str, object], seconds: float | None, waited_s: float | None
    ) -> None:
        self.run.record(
            "round",
            **known,
            bytes_payload=self._payload_bytes(),
            seconds=None if seconds is None else round(seconds, 6),
            waited_s=None if waited_s is None else round(waited_s, 6),
        )

    def _close_stage(self, outcome: StageOutcome) -> None:
        schedule = self._strategy.schedule
        for layer, tensors in schedule.named(outcome.stage, outcome.weights).items():
            shape = schedule.shape
            facts = LayerFacts(stage=layer, features=shape.inputs, classes=shape.classes)
            self.run.write_layer(facts, tensors)
        self.job.outcomes.append(outcome)
        self.run.record(
            "stage_end",
            stage=outcome.stage,
            best_round=outcome.best_round,
            val_accuracy=outcome.score.accuracy,
            bytes_payload=self._payload_bytes(),
        )

    def _test(self, loop: StageLoop) -> Score:
        weights: np.ndarray = self.job.outcomes[-1].weights
        test = loop.evaluate(weights, "test")
        metric = {} if test.metric is None else {"test_metric": test.metric}
        self.run.record(
            "finish", test_accuracy=test.accuracy, bytes_payload=self._payload_bytes(), **metric
        )
        return test

    def _payload_bytes(self) -> int:
        return self.job.ledger.sum().payload
