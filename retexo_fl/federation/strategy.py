"""The Flower strategy: the rounds of a stage, as Flower's own loop carries them out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from retexo_fl.algorithms import check_algorithm
from retexo_fl.client.api import Ticket
from retexo_fl.config import RunConfig, config_values
from retexo_fl.errors import ConfigurationError, RoundIncomplete
from retexo_fl.federation import records
from retexo_fl.federation.aggregators import make_aggregator
from retexo_fl.federation.asking import (
    UNWATCHED,
    Ask,
    Messenger,
    Question,
    Round,
    Silence,
    WaitPolicy,
    Watch,
    answer_of,
)
from retexo_fl.federation.exchanges import Exchanges
from retexo_fl.federation.greeting import Federation
from retexo_fl.federation.job_state import JobState
from retexo_fl.federation.label_facts import LabelTotals, check_goal
from retexo_fl.federation.modelled import check_links
from retexo_fl.federation.opening import open_attempt
from retexo_fl.federation.rounds.basis import find_basis
from retexo_fl.federation.rounds.clients import Clients, untold_bytes
from retexo_fl.federation.rounds.mask_keys import add_up_labels
from retexo_fl.federation.rounds.ridge import solve_last
from retexo_fl.federation.rounds.stage import StageTraining
from retexo_fl.federation.rounds.stage_state import StageOutcome, StageState
from retexo_fl.federation.wrappers import Rounds
from retexo_fl.graph.labels import REGRESSION
from retexo_fl.ledger import TrafficLedger
from retexo_fl.training.effective_plan import note_effective_plan
from retexo_fl.training.schedule import Schedule
from retexo_fl.training.selection import Score
from retexo_fl.training.stage_model import ModelShape
from retexo_fl.units import clients_named, counted
from retexo_fl.updates import UpdateCodec, update_codec

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The clients of an attempt, and what follows from their hellos.

    Attributes:
        job: Its finished stages, and its bytes so far.
        messenger: The way to the clients by their indices.
        clients: What rounds need of them.
        federation: Who takes part in what.
        labels: What is known of all clients' labels together.
        exchanges: Those before stages.
        rounds: Carries out what is asked between them.
        schedule: Which layers each stage trains.
    """

    job: JobState
    messenger: Messenger
    clients: Clients
    federation: Federation
    labels: LabelTotals
    exchanges: Exchanges
    rounds: Rounds
    schedule: Schedule


class LazyMessagePassing(Strategy):
    """Trains stage by stage; a round of a stage passes no messages between clients.

    In a ServerApp of your own, :meth:`start` trains the next stage by Flower's own loop::

        strategy = LazyMessagePassing(make_config(dict(context.run_config)))
        for _ in range(strategy.stages):
            result = strategy.start(grid=grid)
        metrics = strategy.test(grid)

    The hooks take and return what Flower documents; what a round asks and makes of the answers is
    :class:`.StageTraining`'s. ``retexo run`` trains with the same object (:mod:`.stage_loop`), by a
    messenger that asks again, closes rounds early and resumes.

    Args:
        config: What to train.
        codec: Of updates and weights on their way; as configured if None.

    Source: RETEXO (Kolluri et al.), section 3.1.
    """

    def __init__(self, config: RunConfig, *, codec: UpdateCodec | None = None) -> None:
        self.config = config
        self._codec = codec or update_codec(
            update_bits=config.update_bits,
            weight_bits=config.weight_bits,
            keeps_zeros=config.codec == "dense",
            masked=config.secure_aggregation == "masked",
        )
        self._joined: Joined | None = None
        self._training: StageTraining | None = None
        #: The round that Flower's loop carries out, and what it has asked.
        self._round: tuple[Round[Score], Ask] | None = None

    # ---- a whole stage by Flower's loop -------------------------------------------------------

    @property
    def stages(self) -> int:
        """How many :meth:`start` trains, one after the other."""
        return self.config.stages

    def start(  # noqa: PLR0917  (the arguments of Flower's own)
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Have clients exchange the rows of the next stage, then train it.

        Args:
            grid: The way to the clients' Flower nodes.
            initial_arrays: One flat array, ``weights``; those of the seed if None.
            num_rounds: As configured (``rounds``) if None.
            timeout: Seconds for the answers of one round; ``message-timeout-s`` if None.
            train_config: Not used.
            evaluate_config: ``{"nodes": "validation"}`` evaluates after every round; without it
                only the answers of the next round validate, which costs no message.
            evaluate_fn: As Flower's.

        Returns:
            Flower's result; ``arrays`` are the selected weights: the best of all rounds on the
            validation nodes.

        Raises:
            ConfigurationError: ``patience`` or ``min-clients`` is set, or keys are at odds.
            RetexoError: As :meth:`aggregate_train`, or the exchange failed.
        """
        self._check_loop(grid)
        known = self.join(grid) if self._joined is None else self._joined
        stage = len(known.job.outcomes)
        if stage == self.stages:
            raise ConfigurationError(f"layers: all {counted(stage, 'stage')} are trained")
        if not stage:
            self.find_basis()
        known.exchanges.run(stage)
        weights = self.initial(stage)
        if not self.config.stage_rounds[stage]:
            known.job.outcomes.append(StageOutcome.untrained(stage, weights))
            return Result(arrays=records.weights_record(weights))
        if initial_arrays:
            weights = records.weights_of(initial_arrays)
        training = self.open_stage(stage, StageState.first(weights))
        result = super().start(
            grid=grid,
            initial_arrays=records.weights_record(training.weights),
            num_rounds=self.config.stage_rounds[stage] if num_rounds is None else num_rounds,
            timeout=self.config.message_timeout_s if timeout is None else timeout,
            train_config=train_config,
            evaluate_config=evaluate_config,
            evaluate_fn=evaluate_fn,
        )
        known.rounds.carry_out(training.validate_last())
        outcome = training.outcome()
        known.job.outcomes.append(outcome)
        result.arrays = records.weights_record(outcome.weights)
        return result

    def test(self, grid: Grid) -> MetricRecord:
        """Evaluate the trained model on all test nodes; the clients then forget the job.

        Returns:
            ``examples``, ``correct``, ``loss-sum`` and, where it is not accuracy, ``metric``.
        """
        del grid
        job = self.joined.job
        score = self.joined.rounds.carry_out(
            self.training.evaluate(job.outcomes[-1].weights, "test")
        )
        for line in untold_bytes(self.config, job.untold):
            logger.warning(line)
        return _score_record(score, "")

    def _check_loop(self, grid: Grid) -> None:
        """Refuse what Flower's loop cannot do."""
        config = self.config
        if config.solver != "rounds":
            raise ConfigurationError(
                f"solver: {config.solver}, but Flower's loop trains in rounds; expected rounds"
            )
        check_algorithm(config_values(config))
        check_links(grid, config)
        for key, value in (("patience", config.patience), ("min-clients", config.min_clients)):
            if value:
                raise ConfigurationError(
                    f"{key}: {value}, but Flower's loop trains a fixed number of rounds and waits "
                    "for every client; expected 0"
                )

    # ---- what a run does around the hooks -------------------------------------------------------

    def join(
        self,
        grid: Grid,
        job: JobState | None = None,
        *,
        on_silence: Callable[[Silence], None] = lambda silence: None,
        watch: Watch = UNWATCHED,
    ) -> Joined:
        """Wait for the clients and learn the sizes of their parts.

        Args:
            grid: The way to the clients' Flower nodes.
            job: What earlier attempts achieved; a new job if None.
            on_silence: Called while a question waits for clients on other machines.
            watch: Its clock, for all waits; goes with every exchange.

        Raises:
            PartitionError: The clients' parts do not belong together.
            ConfigurationError: The aggregator needs more clients with train nodes, or the metric
                other classes.
            RoundIncomplete: Clients are missing.
        """
        config = self.config
        note_effective_plan(config)
        job = JobState.begin() if job is None else job
        messenger = Messenger(
            grid,
            ledger=job.ledger,
            policy=WaitPolicy.of(config),
            on_silence=on_silence,
            clock=watch.clock,
        )
        hello = Ticket(job=job.job, attempt=job.attempt)
        federation, clients = open_attempt(
            messenger,
            hello,
            config,
            to_train=True,
            hold_weights=self._codec.sends_changes,
            untold=job.untold,
        )
        job.check_partitioning(federation.answers[0].partitioning)
        training = federation.participants.training
        least = min(config.min_clients or len(training), len(training))
        make_aggregator(config.aggregator).check_clients(least)
        check_goal(config, federation.classes)
        shape = ModelShape.of(
            config,
            inputs=federation.features,
            classes=federation.classes,
            edge_features=federation.edge_features,
        )
        job.rows = clients.rows
        exchanges = Exchanges(messenger, clients, config, job, codec=self._codec, watch=watch)
        rounds = Rounds(messenger=messenger, clients=clients, behind=lambda: exchanges.behind)
        labels = (
            LabelTotals.of_hellos(config, federation.answers)
            if clients.masking is None
            else rounds.carry_out(add_up_labels(clients, hello, config))
        )
        if not job.label_facts:
            job.label_facts = labels.facts(config)
        self._joined = Joined(
            job=job,
            messenger=messenger,
            clients=clients,
            federation=federation,
            labels=labels,
            exchanges=exchanges,
            rounds=rounds,
            schedule=Schedule(shape=shape),
        )
        return self._joined

    def find_basis(self) -> np.ndarray | None:
        """Find the subspace that features are mapped to; None where none is wanted, or known."""
        joined = self.joined
        if self.config.basis == "none" or joined.job.basis is not None:
            return None
        units = joined.job.label_facts if self.config.task == REGRESSION else ()
        finding = find_basis(joined.clients, joined.job.ticket(0), self.config, units)
        if self.config.basis_rows == "sums":
            _, joined.job.basis = joined.exchanges.run_with(0, joined.rounds.wrapped(finding))
        else:
            joined.job.basis = joined.rounds.carry_out(finding)
        return joined.job.basis

    def solving(self) -> Round[np.ndarray]:
        """Find the (P,) weights of the last layer without rounds."""
        joined = self.joined
        ticket = joined.job.ticket(self.stages - 1)
        return solve_last(joined.clients, ticket, joined.schedule.shape)

    def initial(self, stage: int) -> np.ndarray:
        """Return the (P,) weights that a stage starts from, after those before it."""
        before = None
        if stage and self.config.warm_start:
            before = self.joined.job.outcomes[stage - 1].weights
        return self.joined.schedule.initial(stage, seed=self.config.seed, before=before)

    def open_stage(self, stage: int, state: StageState) -> StageTraining:
        """Train a stage from here on; its exchange is over."""
        self._training = StageTraining(
            self.config,
            self.joined.job.ticket(stage),
            state,
            clients=self.joined.clients,
            participants=self.joined.federation.participants,
            label_facts=self.joined.job.label_facts,
            codec=self._codec,
        )
        self.summary()
        return self._training

    @property
    def ledger(self) -> TrafficLedger:
        """Bytes of the job so far."""
        return self.joined.job.ledger

    @property
    def joined(self) -> Joined:
        """The clients, after :meth:`join` or :meth:`start`."""
        assert self._joined is not None, "join() or start() comes first"
        return self._joined

    @property
    def training(self) -> StageTraining:
        """The open stage."""
        assert self._training is not None, "open_stage() or start() comes first"
        return self._training

    # ---- Flower's hooks -------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Address the weights to every client that trains or validates, in client order."""
        del server_round, config, grid
        return self._begin(self.training.train(records.weights_of(arrays)))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord, MetricRecord]:
        """Sum the updates in client order, divide once, take one optimizer step.

        Args:
            server_round: Round of the stage.
            replies: Of all clients that were asked.

        Returns:
            The next weights, and the round's ``loss`` with the validation of the weights that were
            sent out (``validation-examples``, ``-correct``, ``-loss-sum``).

        Raises:
            TrainingDiverged: The new weights, or a loss, are not finite.
            RoundIncomplete: Flower's loop ended before all clients had answered.
            RemoteProtocolError: A client's counts are not those that its hello promised.
        """
        metrics = _score_record(self._end(server_round, replies), "validation-")
        assert self.training.loss is not None, "a round has ended"
        metrics["loss"] = self.training.loss
        return records.weights_record(self.training.weights), metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Address the weights to clients with validation nodes, or to all for the test.

        Args:
            server_round: Round of the stage.
            arrays: The weights.
            config: ``nodes``: ``validation`` or ``test``; without it no client is asked, since
                every round validates the weights of the one before.
            grid: Not used.
        """
        del server_round, grid
        nodes = str(config.get("nodes", ""))
        if not nodes:
            return []
        return self._begin(self.training.evaluate(records.weights_of(arrays), nodes))

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Add up ``examples``, ``loss-sum``, ``correct`` and maybe ``metric``.

        Returns:
            None if the question named no nodes.
        """
        if self._round is None:
            return None
        return _score_record(self._end(server_round, replies), "")

    def summary(self) -> None:
        """Log what is about to be trained."""
        logger.info(
            "stage %d: %s trained by %s",
            self.training.ticket.stage,
            counted(len(self.training.weights), "weight"),
            counted(len(self.training.training), "client"),
        )

    # ---- inside -----------------------------------------------------------------------------

    def _begin(self, asking: Round[Score]) -> list[Message]:
        """Begin a round; return its first messages, which Flower's loop is about to send."""
        asking = self.joined.rounds.wrapped(asking)
        ask = next(asking)
        self._round = asking, ask
        messages = self.joined.messenger.questions(ask)
        for client, message in zip(ask.requests, messages, strict=True):
            self._count(client, message, "in")
        return messages

    def _end(self, server_round: int, replies: Iterable[Message]) -> Score:
        """Hand the replies to the round; where it asks again, the messenger does."""
        assert self._round is not None, "its configure hook comes first"
        asking, ask = self._round
        answers = self._answers(server_round, ask, replies)
        score = self.joined.messenger.go_on(asking, answers)
        self._round = None
        return score

    def _answers(
        self, server_round: int, ask: Ask, replies: Iterable[Message]
    ) -> Iterator[tuple[int, Any]]:
        """Yield the answers of all clients that were asked, in client order."""
        messenger = self.joined.messenger
        found: dict[int, Message] = {}
        for reply in replies:
            client = messenger.client_at(reply.metadata.src_node_id)
            records.raise_failure(reply, "a client" if client is None else f"client {client}")
            if client is not None:
                found[client] = reply
        missing = tuple(client for client in ask.requests if client not in found)
        if missing:
            raise RoundIncomplete(
                f"stage {ask.stage}, round {server_round}: no answer from "
                f"{clients_named(missing)} in time"
            )
        for client in ask.requests:
            self._count(client, found[client], "out")
            yield client, answer_of(ask, client, found[client])

    def _count(self, client: int, message: Message, direction: str) -> None:
        """Enter a message that Flower's loop carries."""
        assert self._round is not None
        asked = Question(stage=self._round[1].stage, purpose=self._round[1].purpose)
        self.joined.messenger.count(message, client, asked, direction)


def _score_record(score: Score, prefix: str) -> MetricRecord:
    metrics = MetricRecord()
    metrics[f"{prefix}examples"] = score.count
    metrics[f"{prefix}correct"] = score.correct
    metrics[f"{prefix}loss-sum"] = score.loss_sum
    if score.metric is not None:
        metrics[f"{prefix}metric"] = score.metric
    return metrics
