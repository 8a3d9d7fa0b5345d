"""A training as ``retexo run`` has it: what :class:`.LazyMessagePassing` does, in a run directory.

Greets the clients, has the strategy train stage by stage, writes checkpoints, layers and events as
it goes on, and the results of the test.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime

import numpy as np
from flwr.serverapp import Grid

from retexo_fl.client.api import Ticket
from retexo_fl.client.moved import STRUCTURE
from retexo_fl.config import RunConfig
from retexo_fl.config.profiles import Fitting
from retexo_fl.errors import CheckpointError
from retexo_fl.federation.asking import (
    THIS_MACHINE,
    Clock,
    OpenExchange,
    Silence,
    Watch,
)
from retexo_fl.federation.graph_counts import total_vectors
from retexo_fl.federation.job_state import JobState
from retexo_fl.federation.layer_files import LayerFacts
from retexo_fl.federation.modelled import network_facts
from retexo_fl.federation.opening import Joined
from retexo_fl.federation.outcome import TrainingOutcome, end_warnings, finish_run
from retexo_fl.federation.profile_cost import with_costs
from retexo_fl.federation.rounds.clients import Untold
from retexo_fl.federation.rounds.exchange import Exchanged
from retexo_fl.federation.rounds.stage import StageTraining
from retexo_fl.federation.rounds.stage_state import StageOutcome, StageState
from retexo_fl.federation.run_directory import RunDirectory
from retexo_fl.federation.strategy import LazyMessagePassing
from retexo_fl.federation.training import Follower
from retexo_fl.relations import text_of
from retexo_fl.run_log.chosen_floor import ChosenFloor
from retexo_fl.run_log.chosen_rows import ChosenRows
from retexo_fl.run_log.events import (
    BasisChosen,
    ColumnsMade,
    ExchangeClosed,
    Finished,
    FloorCompared,
    RoundClosed,
    RoundsLost,
    RowsCounted,
    StageClosed,
    Started,
    Waiting,
)
from retexo_fl.run_log.made_columns import MadeColumns
from retexo_fl.training.recipe import objective_of
from retexo_fl.training.selection import Score
from retexo_fl.training.stage_model import named_weights
from retexo_fl.units import clients_named

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class ServerLoop(Follower):
    """One attempt of one job.

    Attributes:
        grid: The way to the clients.
        config: The configuration of the job.
        run: Where its results go.
        job: What earlier attempts achieved, added to by this one.
        clock: By which clients are waited for.
        fitting: What of the configuration is left to be fitted to the clients' graph.
    """

    grid: Grid
    config: RunConfig
    run: RunDirectory
    job: JobState
    clock: Clock = THIS_MACHINE
    fitting: Fitting | None = None
    _strategy: LazyMessagePassing = field(init=False)
    _joined: Joined = field(init=False)
    #: Clients that were absent when the attempt began, ascending.
    _never_there: tuple[int, ...] = field(init=False)
    #: When the last round ended, and how long was waited for answers until then.
    _ended_s: float = field(init=False, default=0.0)
    _waited_until_s: float = field(init=False, default=0.0)
    _trains: bool = field(init=False, default=False)

    def greet(self) -> None:
        """Wait for the clients and learn the sizes of their parts; writes nothing.

        Raises:
            PartitionError: The clients' parts do not belong together.
            ConfigurationError: The aggregator needs more clients with train nodes.
            RoundIncomplete: Clients are missing.
        """
        self._strategy = LazyMessagePassing(self.config, fitting=self.fitting, follower=self)
        watch = Watch(
            clock=self.clock, on_wait=self._record_wait, on_superlink=self._note_superlink
        )
        self._joined = self._strategy.join(
            self.grid, self.job, on_silence=self._record_silence, watch=watch
        )
        self.config = self._strategy.config
        if self._joined.fit and self.job.profile is not None:
            self.job.profile = replace(self.job.profile, fit=self._joined.fit)
        there = self._joined.federation.participants.everyone
        self._never_there = tuple(sorted({*range(self.config.clients)} - {*there}))

    def train(self) -> TrainingOutcome:
        """Run the stages that are left, and the test; write the results.

        A resumed attempt repeats the exchanges of finished stages, since clients may have lost
        what they held in memory; where they have not, nothing is sent again.
        """
        self._trains = True
        self.job.restore_weights(self._joined.schedule, self.run)
        if self.job.profile is not None:
            vectors = total_vectors(self._joined.clients.counted.values())
            self.job.profile = with_costs(
                self.job.profile, self.config, self._joined.federation.answers, vectors
            )
        self.run.log.record(
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
            self.run.log.record(RoundsLost(rounds=tuple(self.run.lost_rounds)))
        if self._joined.messenger.policy.clients_return or not self.config.has_rounds:
            self._keep_attempt()
        self._begin_rounds()
        for _ in range(self._strategy.stages):
            self._strategy.start(self.grid)
        self._strategy.test(self.grid)
        test, stage = self._strategy.score, self._strategy.training.stage
        cached = stage.cached if stage.cached.batches else None
        if cached is not None:
            self.run.log.record(
                RowsCounted(
                    stage=stage.ticket.stage, cached=cached, bytes_payload=self._payload_bytes()
                )
            )
        self._finish(test, stage.report_sums)
        outcome = TrainingOutcome(
            config=self.config,
            shape=self._joined.schedule.shape,
            answers=self._joined.federation.answers,
            counted=self._joined.clients.counted,
            warnings=self._warnings(),
            test=test,
            report_sums=stage.report_sums,
            by_type=stage.by_type,
            own_figures=stage.own_figures,
            cached=cached,
            network=network_facts(self.grid),
        )
        return finish_run(self.run, self.job, outcome)

    def _warnings(self) -> tuple[str, ...]:
        """Return what the user should know before the training."""
        left_out = self._joined.federation.left_out
        return (
            *self._joined.warnings,
            *(
                f"{use} nodes of {clients_named(clients)} do not count: under masks, a sum is over "
                "3 clients at least"
                for use, clients in left_out.items()
                if clients
            ),
        )

    def _keep_attempt(self) -> None:
        """Write where the attempt begins: exchanges may be open for days before a round is done.

        A run without rounds writes no other checkpoint.
        """
        stage = len(self.job.outcomes)
        state = self.job.stage_state(stage) or StageState.first(
            self._strategy.training.initial(stage)
        )
        self.run.checkpoints.write(
            self.job.checkpoint(self.job.ticket(stage), state), self.job.ledger
        )

    def _checkpoint(self, ticket: Ticket, state: StageState) -> None:
        self.run.checkpoints.write(self.job.checkpoint(ticket, state), self.job.ledger)
        if self.run.replacement is not None:
            # Whether all parts go together has been seen.
            self.run.take_place()

    # ---- what the strategy reports ------------------------------------------------------------

    def columns_made(self, columns: np.ndarray) -> None:
        """Write what makes features of columns of the edges; record what they took."""
        known = self._joined.federation
        self.run.write_columns(columns, features=known.features, classes=known.classes)
        shape, config = self._joined.schedule.shape, self.config
        moved = self.job.ledger.sum(kind="boundary", purpose=STRUCTURE)
        made = MadeColumns(
            columns=shape.made_columns,
            degrees=shape.made_degrees,
            steps=len(shape.column_stages) + bool(shape.mixed_columns),
            bits=32 if shape.sums_labels else config.structure_bits,
            structure=config.structure,
            bytes_between_clients=moved.payload,
        )
        self.job.made_columns = made
        self.run.log.record(ColumnsMade(made=made, bytes_payload=self._payload_bytes()))
        self._begin_rounds()

    def basis_found(self, basis: np.ndarray, chosen: ChosenRows | None) -> None:
        """Write the basis, as a layer before the first; record how its rows were chosen."""
        known = self._joined.federation
        self.run.write_basis(basis, features=known.features, classes=known.classes)
        if chosen is not None:
            self.run.log.record(BasisChosen(chosen=chosen, bytes_payload=self._payload_bytes()))
        self._begin_rounds()

    def exchanged(self, stage: int, exchanged: Exchanged, *, along: bool = False) -> None:
        """Record how an exchange ended."""
        beside = self._rounds_bytes(stage) if along else 0
        if not along:
            self._begin_rounds()
        self.job.missing[stage] = exchanged.missing
        if not self.job.is_restored(stage):
            self.run.log.record(
                ExchangeClosed(
                    stage=stage,
                    vectors=exchanged.vectors,
                    missing=exchanged.missing,
                    error_bound=exchanged.error_bound,
                    bytes_payload=self._payload_bytes() - beside,
                )
            )

    def _rounds_bytes(self, stage: int) -> int:
        ledger = self.job.ledger
        purposes = ("train", "evaluate")
        return sum(ledger.sum(layer=stage, purpose=purpose).payload for purpose in purposes)

    def _begin_rounds(self) -> None:
        self._ended_s, self._waited_until_s = time.monotonic(), self._joined.messenger.waited_s

    def round_done(self, known: RoundClosed | None, stage: StageTraining, *, last: bool) -> None:
        """Record a round, and write a checkpoint if it is time."""
        self.job.note_absent({*stage.absent, *self._never_there})
        waited_s = self._joined.messenger.waited_s - self._waited_until_s
        self._waited_until_s += waited_s
        self.job.train_s += waited_s
        # With what the checkpoint of the round before made it wait.
        begun_s, self._ended_s = self._ended_s, time.monotonic()
        if known is not None:
            seconds = round(self._ended_s - begun_s, 6)
            self.run.log.record(replace(known, seconds=seconds, waited_s=round(waited_s, 6)))
        is_due = stage.round % self.config.checkpoint_every == 0
        if last or (is_due and self.run.checkpoints.writer.is_due()):
            self._checkpoint(stage.ticket, stage.state())

    def validated(self, known: RoundClosed) -> None:
        """Record what is known of the last round of a stage."""
        self.run.log.record(known)

    def tested(self, config: RunConfig, untold: Untold) -> None:
        """Leave what is not known to the warnings at the end."""

    def _record_silence(self, silence: Silence) -> None:
        """Report whom the clients that have answered wait for."""
        asked = silence.question
        if asked.stage < 0:
            # Before the first stage nothing is written.
            logger.warning("%s waits for %s", asked.purpose, clients_named(silence.clients))
            return
        self.run.log.record(
            Waiting(
                stage=asked.stage,
                round=asked.round,
                purpose=asked.purpose,
                clients=silence.clients,
            )
        )

    def _record_wait(self, exchange: OpenExchange) -> None:
        """Report whom an open exchange waits for."""
        self.run.log.record(
            Waiting(
                stage=exchange.stage,
                purpose="exchange",
                clients=tuple(exchange.lacks),
                lacks=tuple(exchange.lacks.values()),
                open_s=round(exchange.open_s, 3),
            )
        )

    def _note_superlink(self, answers: bool) -> None:
        """Say in the run's status since when the SuperLink is silent, or that it answers again."""
        if not self._trains:
            return
        # A full disk must not end what only waits.
        with suppress(CheckpointError):
            if answers:
                self.run.write_status("running")
            else:
                since = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
                self.run.write_status("waiting", f"waiting for the SuperLink since {since}")

    def stage_done(self, outcome: StageOutcome) -> None:
        """Write a finished stage's layers, and say how it ended."""
        schedule = self._joined.schedule
        is_refined = outcome.stage == schedule.shape.refinement
        for layer, tensors in schedule.named(outcome.stage, outcome.weights).items():
            self.run.write_layer(self._layer_facts(layer), tensors, refined=is_refined)
        self.run.log.record(
            StageClosed(
                stage=outcome.stage,
                best_round=outcome.best_round,
                val_accuracy=outcome.score.accuracy,
                val_metric=outcome.score.metric,
                train_accuracy=outcome.score.train_accuracy,
                candidate=outcome.candidate,
                tried=outcome.choice,
                rounds=outcome.rounds,
                bytes_payload=self._payload_bytes(),
            )
        )
        self._begin_rounds()

    def floor_compared(self, chosen: ChosenFloor, kept: StageOutcome | None) -> None:
        """Write what takes the place of the trained model, and say how that was chosen."""
        shape = self._joined.schedule.shape
        if kept is not None:
            last = shape.layers - 1
            facts = self._layer_facts(last)
            self.run.write_floor(facts, named_weights(shape.floor, last, kept.weights))
        self.run.log.record(FloorCompared(chosen=chosen, bytes_payload=self._payload_bytes()))

    def _layer_facts(self, layer: int) -> LayerFacts:
        shape = self._joined.schedule.shape
        return LayerFacts(
            stage=layer,
            features=shape.features,
            classes=shape.classes,
            recipe=self._joined.federation.recipe,
            label_facts=objective_of(self.config).label_facts.units(self.job.label_facts),
            edge_features=shape.edge_features,
            is_structural=self._joined.federation.is_structural,
            relations=text_of(shape.relations),
        )

    def _finish(self, test: Score, report_sums: np.ndarray) -> None:
        self.run.log.record(
            Finished(
                test_accuracy=test.accuracy,
                test_metric=test.metric,
                warnings=end_warnings(self.config, self.job, report_sums),
                bytes_payload=self._payload_bytes(),
            )
        )

    def _payload_bytes(self) -> int:
        return self.job.ledger.sum().payload
