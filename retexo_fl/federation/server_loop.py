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

from retexo_fl.agent.api import Ticket, chain_digest
from retexo_fl.config import RunConfig
from retexo_fl.errors import PartitionError
from retexo_fl.federation.aggregators import make_aggregator
from retexo_fl.federation.clock import THIS_MACHINE, Clock
from retexo_fl.federation.exchanges import Exchanges, StageRows
from retexo_fl.federation.greeting import Federation, greet
from retexo_fl.federation.job_state import JobState
from retexo_fl.federation.layer_files import LayerFacts
from retexo_fl.federation.messenger import Messenger
from retexo_fl.federation.modelled import network_facts
from retexo_fl.federation.outcome import TrainingOutcome, finish_run
from retexo_fl.federation.pace import Silence
from retexo_fl.federation.patience import Patience
from retexo_fl.federation.peering import introduce
from retexo_fl.federation.run_directory import RunDirectory
from retexo_fl.federation.stage_loop import StageLoop, StageOutcome, StageState
from retexo_fl.federation.waiting import OpenExchange, Watch
from retexo_fl.progress_state import clients_named
from retexo_fl.training.effective_plan import note_effective_plan
from retexo_fl.training.schedule import Schedule
from retexo_fl.training.selection import BestWeights, Score
from retexo_fl.training.stage_model import ModelShape

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
    _messenger: Messenger = field(init=False)
    _federation: Federation = field(init=False)
    _shape: ModelShape = field(init=False)
    _schedule: Schedule = field(init=False)
    _exchanges: Exchanges = field(init=False)

    def greet(self) -> None:
        """Wait for the clients and learn the sizes of their parts; writes nothing.

        Raises:
            PartitionError: The clients' parts do not belong together.
            ConfigurationError: The aggregator needs more clients with train nodes.
            RoundIncomplete: Clients are missing.
        """
        note_effective_plan(self.config)
        job = self.job
        self._messenger = Messenger(
            self.grid,
            ledger=job.ledger,
            patience=Patience.of(self.config),
            on_silence=self._record_silence,
        )
        hello = Ticket(job=job.job, attempt=job.attempt)
        self._federation = greet(
            self._messenger,
            hello,
            clients=self.config.clients,
            all_train=self.config.traits.exchanges_in_rounds,
        )
        if self.config.introductions:
            entries = {answer.client: answer.member for answer in self._federation.answers}
            introduce(self._messenger, hello, entries)
        self._check_partitioning(self._federation.answers[0].partitioning)
        training = self._federation.participants.training
        least = min(self.config.min_clients or len(training), len(training))
        make_aggregator(self.config.aggregator).check_clients(least)
        self._shape = ModelShape.of(
            self.config, inputs=self._federation.features, classes=self._federation.classes
        )
        self._schedule = Schedule(shape=self._shape)
        watch = Watch(clock=self.clock, on_wait=self._record_wait)
        self._exchanges = Exchanges(self._messenger, self.config, self._rows_of, watch)

    def _check_partitioning(self, told: str) -> None:
        """Go on only with the parts that the job began with."""
        if self.job.partitioning not in {"", told}:
            raise PartitionError(
                f"the clients' parts are of partitioning {told}; the run in {self.run.path} "
                f"began with {self.job.partitioning}"
            )
        self.job.partitioning = told

    def train(self) -> TrainingOutcome:
        """Run the stages that are left, and the test; write the results.

        A resumed attempt repeats the exchanges of finished stages, since clients may have lost
        what they held in memory; where they have not, nothing is sent again.
        """
        self.job.restore_weights(self._schedule, self.run)
        self.run.record(
            "start",
            attempt=self.job.attempt,
            clients=self.config.clients,
            stages=self._schedule.stages,
            **({"absent": self._never_there} if self._never_there else {}),
        )
        if self.run.lost_rounds:
            self.run.record("history_lost", rounds=self.run.lost_rounds)
        if self._messenger.patience.returns:
            self._keep_attempt()
        for stage in range(self._schedule.stages):
            self._exchange(stage)
            if stage >= len(self.job.outcomes):
                loop = self._train_stage(stage)
        test = self._test(loop)
        outcome = TrainingOutcome(
            config=self.config,
            shape=self._shape,
            answers=self._federation.answers,
            test=test,
            network=network_facts(self.grid),
        )
        return finish_run(self.run, self.job, outcome)

    @property
    def _never_there(self) -> list[int]:
        """Clients that were absent when the attempt began."""
        there = self._federation.participants.everyone
        return sorted({*range(self.config.clients)} - {*there})

    def _keep_attempt(self) -> None:
        """Write where the attempt begins: exchanges may be open for days before a round is done."""
        stage = len(self.job.outcomes)
        state = self.job.stage_state(stage) or self._first_state(stage)
        self.run.checkpoint(self.job.checkpoint(self._ticket(stage), state))

    def _ticket(self, stage: int) -> Ticket:
        """Name a stage; the digest names the weights of all stages before it."""
        digest = chain_digest(b"", None)
        for outcome in self.job.outcomes[:stage]:
            digest = chain_digest(digest, outcome.weights)
        return Ticket(
            job=self.job.job,
            attempt=self.job.attempt,
            stage=stage,
            weights_digest=digest,
        )

    def _rows_of(self, stage: int) -> StageRows:
        return StageRows(
            ticket=self._ticket(stage),
            previous=self._ticket(stage - 1) if stage else None,
            weights=self.job.outcomes[stage - 1].weights if stage else None,
        )

    def _exchange(self, stage: int) -> None:
        begun_s = self.clock.now_s()
        exchanged = self._exchanges.run(stage)
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
        ticket, every = self._ticket(stage), self.config.checkpoint_every
        loop = StageLoop(
            ticket,
            self.job.stage_state(stage) or self._first_state(stage),
            config=self.config,
            participants=self._federation.participants,
            messenger=self._messenger,
            grid=self.grid,
        )
        ended, waited_until_s = time.monotonic(), self._messenger.waited_s
        while not loop.finished:
            behind = self._exchanges.bring_up(stage, self._federation.participants.training)
            known = loop.train_round(behind)
            self.job.note_absent({*loop.absent, *self._never_there})
            waited_s = self._messenger.waited_s - waited_until_s
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
        return StageState(
            round=0,
            loss=None,
            best=BestWeights(),
            weights=self._schedule.initial(stage, seed=self.config.seed),
            optimizer={},
        )

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
        for layer, tensors in self._schedule.named(outcome.stage, outcome.weights).items():
            facts = LayerFacts(
                stage=layer, features=self._shape.inputs, classes=self._shape.classes
            )
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
