"""The Flower strategy: a stage's exchange, then rounds of sums in and one optimizer step."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from retexo_fl.agent.api import EvaluateRequest, PeerTraffic, Ticket, TrainAnswer, TrainRequest
from retexo_fl.algorithms import check_algorithm
from retexo_fl.config import RunConfig, config_values
from retexo_fl.errors import ConfigurationError, RoundIncomplete, TrainingDiverged
from retexo_fl.federation import checked_answers, records
from retexo_fl.federation.aggregators import Aggregator, RoundFacts, make_aggregator
from retexo_fl.federation.asking import UNWATCHED, Messenger, Question, Silence, WaitPolicy, Watch
from retexo_fl.federation.exchange_loop import count_exchanged
from retexo_fl.federation.exchanges import Exchanges
from retexo_fl.federation.greeting import Federation, Participants, greet
from retexo_fl.federation.job_state import JobState
from retexo_fl.federation.modelled import check_links
from retexo_fl.federation.optimizers import ServerOptimizer, make_optimizer
from retexo_fl.federation.peering import introduce
from retexo_fl.federation.stage_state import StageOutcome, StageState
from retexo_fl.ledger import TrafficLedger
from retexo_fl.progress_state import clients_named
from retexo_fl.training.effective_plan import note_effective_plan
from retexo_fl.training.metrics import make_metric
from retexo_fl.training.schedule import Schedule
from retexo_fl.training.selection import BestWeights, Score, add_answer
from retexo_fl.training.stage_model import ModelShape
from retexo_fl.training.tally import Tally
from retexo_fl.units import counted

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Joined:
    """The clients of an attempt, and what follows from what they said of themselves."""

    job: JobState
    messenger: Messenger
    federation: Federation
    exchanges: Exchanges
    schedule: Schedule


class _Stage:
    """One stage while it is trained."""

    def __init__(self, ticket: Ticket, state: StageState, config: RunConfig) -> None:
        self.ticket = ticket
        self.round = state.round
        self.loss = state.loss
        self.best = state.best
        self.optimizer: ServerOptimizer = make_optimizer(config, state.weights)
        self.optimizer.load_state(state.optimizer)
        self.arrays = records.weights_record(self.optimizer.weights)
        self.aggregator: Aggregator = make_aggregator(
            config.aggregator, takes_uncounted=config.traits.exchanges_in_rounds
        )
        #: What the clients of the present round compute with.
        self.sent = state.weights


class LazyMessagePassing(Strategy):
    """Trains stage by stage; a round of a stage passes no messages between clients.

    In a ServerApp of your own, :meth:`start` trains the next stage by Flower's own loop::

        strategy = LazyMessagePassing(make_config(dict(context.run_config)))
        for _ in range(strategy.stages):
            result = strategy.start(grid=grid)
        metrics = strategy.test(grid)

    The hooks take and return what Flower documents. ``retexo run`` calls the same ones, with a
    messenger that asks again, closes rounds early and resumes (:mod:`.stage_loop`).

    Args:
        config: What to train.

    Attributes:
        behind: Clients that are not asked, because they have yet to catch up with the exchange.

    Source: RETEXO (Kolluri et al.), section 3.1.
    """

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.behind: Set[int] = frozenset()
        self._metric = make_metric(config.metric)
        self._joined: _Joined | None = None
        self._open: _Stage | None = None
        #: What the present question evaluates.
        self._nodes = "validation"
        #: Messages are carried by Flower's own loop: counted here, each answered once.
        self._by_flower = False

    # ---- a whole stage by Flower's loop -------------------------------------------------------

    @property
    def stages(self) -> int:
        """How many stages there are: one for each layer, or one that trains all layers."""
        return 1 if self.config.traits.end_to_end else self.config.layers

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
        if self._joined is None:
            self.join(grid)
        stage = len(self.job.outcomes)
        if stage == self.stages:
            raise ConfigurationError(f"layers: all {counted(stage, 'stage')} are trained")
        self.exchanges.run(stage)
        weights = self.schedule.initial(stage, seed=self.config.seed)
        if initial_arrays:
            weights = records.weights_of(initial_arrays)
        self.open_stage(stage, StageState.first(weights))
        self._by_flower = True
        try:
            result = super().start(
                grid=grid,
                initial_arrays=self.arrays,
                num_rounds=self.config.rounds if num_rounds is None else num_rounds,
                timeout=self.config.message_timeout_s if timeout is None else timeout,
                train_config=train_config,
                evaluate_config=evaluate_config,
                evaluate_fn=evaluate_fn,
            )
            score = self._score(grid, records.weights_of(self.arrays), "validation")
        finally:
            self._by_flower = False
        self.best.offer(records.weights_of(self.arrays), self.round, score)
        outcome = self.outcome()
        self.job.outcomes.append(outcome)
        result.arrays = records.weights_record(outcome.weights)
        return result

    def test(self, grid: Grid) -> MetricRecord:
        """Evaluate the trained model on all test nodes; the clients then forget the job.

        Returns:
            ``examples``, ``correct``, ``loss-sum`` and, where it is not accuracy, ``metric``.
        """
        self._by_flower = True
        try:
            score = self._score(grid, self.job.outcomes[-1].weights, "test")
        finally:
            self._by_flower = False
        return _score_record(score, "")

    def _check_loop(self, grid: Grid) -> None:
        """Refuse what Flower's loop cannot do."""
        config = self.config
        check_algorithm(config_values(config))
        check_links(grid, config)
        for key, value in (("patience", config.patience), ("min-clients", config.min_clients)):
            if value:
                raise ConfigurationError(
                    f"{key}: {value}, but Flower's loop trains a fixed number of rounds and waits "
                    "for every client; expected 0"
                )

    def _score(self, grid: Grid, weights: np.ndarray, nodes: str) -> Score:
        asked = ConfigRecord({"nodes": nodes})
        arrays = records.weights_record(weights)
        messages = self.configure_evaluate(self.round, arrays, asked, grid)
        replies = grid.send_and_receive(messages, timeout=self.config.message_timeout_s)
        metrics = self.aggregate_evaluate(self.round, replies)
        assert metrics is not None, "the question names nodes"
        return read_score(metrics, "")

    # ---- what a run does around the hooks -------------------------------------------------------

    def join(
        self,
        grid: Grid,
        job: JobState | None = None,
        *,
        on_silence: Callable[[Silence], None] = lambda silence: None,
        watch: Watch = UNWATCHED,
    ) -> None:
        """Wait for the clients and learn the sizes of their parts.

        Args:
            grid: The way to the clients' Flower nodes.
            job: What earlier attempts achieved; a new job if None.
            on_silence: Called while a question waits for clients on other machines.
            watch: Goes with every exchange.

        Raises:
            PartitionError: The clients' parts do not belong together.
            ConfigurationError: The aggregator needs more clients with train nodes.
            RoundIncomplete: Clients are missing.
        """
        config = self.config
        note_effective_plan(config)
        job = JobState.begin() if job is None else job
        messenger = Messenger(
            grid, ledger=job.ledger, policy=WaitPolicy.of(config), on_silence=on_silence
        )
        hello = Ticket(job=job.job, attempt=job.attempt)
        federation = greet(
            messenger, hello, clients=config.clients, all_train=config.traits.exchanges_in_rounds
        )
        if config.introductions:
            introduce(messenger, hello, {a.client: a.member for a in federation.answers})
        job.check_partitioning(federation.answers[0].partitioning)
        training = federation.participants.training
        least = min(config.min_clients or len(training), len(training))
        make_aggregator(config.aggregator).check_clients(least)
        shape = ModelShape.of(config, inputs=federation.features, classes=federation.classes)
        self._joined = _Joined(
            job=job,
            messenger=messenger,
            federation=federation,
            exchanges=Exchanges(messenger, config, job, watch),
            schedule=Schedule(shape=shape),
        )

    def open_stage(self, stage: int, state: StageState) -> None:
        """Train a stage from here on; its exchange is over."""
        self._open = _Stage(self.job.ticket(stage), state, self.config)

    def state(self, absent: tuple[int, ...] = ()) -> StageState:
        """Return where the open stage stands."""
        stage = self._stage
        return StageState(
            round=stage.round,
            loss=stage.loss,
            best=stage.best,
            weights=stage.optimizer.weights,
            optimizer=stage.optimizer.state(),
            absent=absent,
        )

    def outcome(self) -> StageOutcome:
        """Return what the open stage leaves, after its last weights were validated."""
        best = self.best
        assert best.weights is not None
        assert best.score is not None
        return StageOutcome(
            stage=self._stage.ticket.stage,
            rounds=self.round,
            best_round=best.round_number,
            score=best.score,
            weights=best.weights,
        )

    @property
    def arrays(self) -> ArrayRecord:
        """The weights of the open stage after its last round."""
        return self._stage.arrays

    @property
    def best(self) -> BestWeights:
        """The best weights of the open stage so far."""
        return self._stage.best

    @property
    def round(self) -> int:
        """Rounds of the open stage that are done."""
        return self._stage.round

    @property
    def loss(self) -> float | None:
        """Mean training loss of the last round, None before the first."""
        return self._stage.loss

    @property
    def job(self) -> JobState:
        """The job: its finished stages."""
        return self._clients.job

    @property
    def ledger(self) -> TrafficLedger:
        """Bytes of the job so far."""
        return self._clients.job.ledger

    @property
    def messenger(self) -> Messenger:
        """The way to the clients by their indices."""
        return self._clients.messenger

    @property
    def federation(self) -> Federation:
        """What the clients said of themselves."""
        return self._clients.federation

    @property
    def exchanges(self) -> Exchanges:
        """The exchanges before stages."""
        return self._clients.exchanges

    @property
    def schedule(self) -> Schedule:
        """Which layers each stage trains."""
        return self._clients.schedule

    @property
    def participants(self) -> Participants:
        """Who takes part in what."""
        return self.federation.participants

    @property
    def _clients(self) -> _Joined:
        assert self._joined is not None, "join() or start() comes first"
        return self._joined

    @property
    def _stage(self) -> _Stage:
        assert self._open is not None, "open_stage() or start() comes first"
        return self._open

    # ---- Flower's hooks -------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Address the weights to every client that trains or validates, in client order."""
        del config, grid
        self._nodes = "validation"
        self._stage.sent = weights = records.weights_of(arrays)
        ticket = replace(self._stage.ticket, round=server_round)
        training = self._present(self.participants.training)
        validating = self._present(
            sorted({*self.participants.validation} - {*self.participants.training})
        )
        train = TrainRequest(ticket=ticket, weights=weights)
        evaluate = EvaluateRequest(ticket=ticket, weights=weights, nodes="validation")
        addressed = [
            *zip(training, self.messenger.messages(training, train), strict=True),
            *zip(validating, self.messenger.messages(validating, evaluate), strict=True),
        ]
        messages = [message for _, message in sorted(addressed, key=lambda pair: pair[0])]
        return self._counted(messages, "train", server_round)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord, MetricRecord]:
        """Sum the updates in client order, divide once, take one optimizer step.

        Args:
            server_round: Round of the stage.
            replies: Of fewer clients than were asked where the round was closed without some.

        Returns:
            The next weights, and the round's ``loss`` with the validation of the weights that were
            sent out (``validation-examples``, ``-correct``, ``-loss-sum``).

        Raises:
            TrainingDiverged: The new weights, or a loss, are not finite.
            RoundIncomplete: Flower's loop ended before all clients had answered.
            RemoteProtocolError: A client's counts are not those that its hello promised.
        """
        stage = self._stage
        stage.aggregator.start(self._round_facts(server_round))
        validation, examples, loss_sum = Tally(), 0, 0.0
        training = {*self.participants.training}
        asked = self._present(self.participants.asked)
        for client, reply in self._by_client(replies, asked, "train", server_round):
            if client in training:
                update = checked_answers.read_update(
                    self.messenger.promise_of(client),
                    reply,
                    # A round may then be of some of a client's train nodes.
                    in_batches=self.config.sampler != "none",
                )
                self._enter(client, update.training_traffic, "train")
                self._enter(client, update.validation_traffic, "evaluate")
                stage.aggregator.add(client, update.update_sum, update.examples)
                examples += update.examples
                loss_sum += update.loss_sum
                validation = add_answer(validation, _validated(update))
            else:
                validation = add_answer(validation, self._evaluated(client, reply))
        stage.optimizer.step(stage.aggregator.finish())
        if not _is_finite(stage.optimizer):
            raise TrainingDiverged(
                f"stage {stage.ticket.stage}, round {server_round}: the weights are not finite "
                "after the optimizer's step; lower learning-rate"
            )
        score = Score.of(validation, self._metric)
        if server_round > 1:
            stage.best.offer(stage.sent, server_round - 1, score)
        stage.round, stage.loss = server_round, loss_sum / examples
        stage.arrays = records.weights_record(stage.optimizer.weights)
        metrics = _score_record(score, "validation-")
        metrics["loss"] = stage.loss
        return stage.arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Address the weights to clients with validation nodes, or to all for the test.

        Args:
            server_round: Round for the ticket.
            arrays: The weights.
            config: ``nodes``: ``validation`` or ``test``; nobody is asked without it, since every
                round validates the weights of the one before. The test ends the job, so clients
                without test nodes are told too.
            grid: Not used.
        """
        del grid
        self._nodes = nodes = str(config.get("nodes", ""))
        if not nodes:
            return []
        request = EvaluateRequest(
            ticket=replace(self._stage.ticket, round=server_round),
            weights=records.weights_of(arrays),
            nodes=nodes,
            last=nodes == "test",
        )
        messages = self.messenger.messages(self._evaluating(), request)
        return self._counted(messages, "evaluate", server_round)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Add up ``examples``, ``loss-sum``, ``correct`` and maybe ``metric``.

        Returns:
            None if the question named no nodes.
        """
        if not self._nodes:
            return None
        found = Tally()
        answers = self._by_client(replies, self._evaluating(), "evaluate", server_round)
        for client, reply in answers:
            found = add_answer(found, self._evaluated(client, reply))
        return _score_record(Score.of(found, self._metric), "")

    def summary(self) -> None:
        """Log what is about to be trained."""
        logger.info(
            "stage %d: %s trained by %s",
            self._stage.ticket.stage,
            counted(len(self._stage.optimizer.weights), "weight"),
            counted(len(self.participants.training), "client"),
        )

    # ---- inside -----------------------------------------------------------------------------

    def _round_facts(self, server_round: int) -> RoundFacts:
        weights = self._stage.optimizer.weights
        return RoundFacts(
            seed=self.config.seed,
            stage=self._stage.ticket.stage,
            number=server_round,
            size=len(weights),
            dtype=str(weights.dtype),
        )

    def _present(self, clients: Iterable[int]) -> list[int]:
        return [client for client in clients if client not in self.behind]

    def _evaluating(self) -> list[int]:
        asked = self.participants
        return self._present(asked.everyone if self._nodes == "test" else asked.validation)

    def _by_client(
        self, replies: Iterable[Message], asked: Sequence[int], purpose: str, server_round: int
    ) -> Iterator[tuple[int, Message]]:
        """Yield answers with their clients, in client order."""
        if not self._by_flower:
            # The messenger has checked and counted them, and hands them out in this order.
            for reply in replies:
                yield self.messenger.client_of(reply), reply
            return
        found: dict[int, Message] = {}
        for reply in replies:
            client = self.messenger.client_at(reply.metadata.src_node_id)
            records.raise_failure(reply, "a client" if client is None else f"client {client}")
            if client is not None:
                found[client] = reply
        missing = tuple(client for client in asked if client not in found)
        if missing:
            raise RoundIncomplete(
                f"stage {self._stage.ticket.stage}, round {server_round}: no answer from "
                f"{clients_named(missing)} in time"
            )
        question = Question(stage=self._stage.ticket.stage, purpose=purpose, round=server_round)
        for client in asked:
            self.messenger.count(found[client], client, question, "out")
            yield client, found[client]

    def _counted(self, messages: list[Message], purpose: str, server_round: int) -> list[Message]:
        """Enter messages that Flower's loop is about to send."""
        if self._by_flower:
            question = Question(stage=self._stage.ticket.stage, purpose=purpose, round=server_round)
            for message in messages:
                client = self.messenger.client_at(message.metadata.dst_node_id)
                assert client is not None
                self.messenger.count(message, client, question, "in")
        return messages

    def _evaluated(self, client: int, reply: Message) -> Tally:
        promise = self.messenger.promise_of(client)
        answer = checked_answers.read_evaluated(promise, reply, nodes=self._nodes)
        self._enter(client, answer.traffic, "evaluate")
        return Tally(
            count=answer.examples,
            loss_sum=answer.loss_sum,
            correct=answer.correct,
            metric_sums=answer.metric,
        )

    def _enter(self, client: int, traffic: PeerTraffic, purpose: str) -> None:
        """Enter what a client and its peers exchanged inside a round."""
        if traffic == PeerTraffic():
            return
        for direction, moved in (("out", traffic.sent), ("in", traffic.received)):
            count_exchanged(
                self.messenger.ledger,
                self._stage.ticket,
                client,
                moved,
                direction=direction,
                purpose=purpose,
            )


def _validated(update: TrainAnswer) -> Tally:
    return Tally(
        count=update.validation_examples,
        loss_sum=update.validation_loss_sum,
        correct=update.validation_correct,
        metric_sums=update.validation_metric,
    )


def _score_record(score: Score, prefix: str) -> MetricRecord:
    metrics = MetricRecord()
    metrics[f"{prefix}examples"] = score.count
    metrics[f"{prefix}correct"] = score.correct
    metrics[f"{prefix}loss-sum"] = score.loss_sum
    if score.metric is not None:
        metrics[f"{prefix}metric"] = score.metric
    return metrics


def read_score(metrics: MetricRecord, prefix: str) -> Score:
    """Read what ``aggregate_train`` (prefix ``validation-``) and ``aggregate_evaluate`` return."""
    metric = f"{prefix}metric"
    return Score(
        count=cast(int, metrics[f"{prefix}examples"]),
        correct=cast(int, metrics[f"{prefix}correct"]),
        loss_sum=cast(float, metrics[f"{prefix}loss-sum"]),
        metric=cast(float, metrics[metric]) if metric in metrics else None,
    )


def _is_finite(optimizer: ServerOptimizer) -> bool:
    # The sum is finite only if every term is; it needs no temporary of the weights' size.
    total = float(optimizer.weights.sum(dtype="float64"))
    return total - total == 0.0
