"""The Flower strategy: carries out the rounds of a training by Flower's hooks.

What follows what, the method's script says (``methods/*/script.py``). It goes on from stage to
stage; where it asks for a round of a stage, an evaluation or the test, the hooks are called in
Flower's order, and the messenger carries what they return.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from retexo_fl.client.weights import updates_of
from retexo_fl.config import RunConfig, config_values
from retexo_fl.config.profiles import Fitting
from retexo_fl.errors import ConfigurationError, RoundIncomplete
from retexo_fl.federation import records
from retexo_fl.federation.asking import (
    UNWATCHED,
    Ask,
    Round,
    Silence,
    Watch,
    answer_of,
)
from retexo_fl.federation.job_state import JobState
from retexo_fl.federation.modelled import check_links
from retexo_fl.federation.opening import Joined, open_training
from retexo_fl.federation.rounds.stage import StageTraining
from retexo_fl.federation.training import Follower, Script, Training
from retexo_fl.ledger import TrafficLedger
from retexo_fl.methods.keys import check_algorithm
from retexo_fl.methods.scripts import script_of
from retexo_fl.training.selection import Score
from retexo_fl.units import clients_named, counted
from retexo_fl.updates import UpdateCodec

logger = logging.getLogger(__name__)

#: What :meth:`.LazyMessagePassing.configure_evaluate` is asked for at the end of a stage.
_LAST: Final = "validation of the last weights"


class LazyMessagePassing(Strategy):
    """Trains one stage after the other, by the script of the configured method.

    The method that it is named after is the default: clients exchange rows before the rounds of a
    stage, and not within them.

    :meth:`start` trains the next stage, in ``retexo run`` as in a ServerApp of your own::

        strategy = LazyMessagePassing(make_config(dict(context.run_config)))
        for _ in range(strategy.stages):
            result = strategy.start(grid=grid)
        metrics = strategy.test(grid)

    The hooks take and return what Flower documents, in Flower's order; what a round asks and makes
    of the answers is :class:`.StageTraining`'s. The messenger carries them: it asks again, closes
    rounds early, and hands on replies as they come, in client order.

    Args:
        config: What to train.
        codec: Of updates and weights on their way; as configured if None.
        fitting: What of it is fitted to the clients' graph once they are there; None for nothing.
        follower: Its methods are called as the training goes on.

    Attributes:
        joined: The clients; after :meth:`join` or :meth:`start`.
        training: What the script asks; likewise.
        score: Of the last evaluation, or of the weights that the last round was sent.

    Source: RETEXO (Kolluri et al.), section 3.1.
    """

    joined: Joined
    training: Training
    score: Score

    def __init__(
        self,
        config: RunConfig,
        *,
        codec: UpdateCodec | None = None,
        fitting: Fitting | None = None,
        follower: Follower | None = None,
    ) -> None:
        self.config = config
        self._given_codec, self._fitting = codec, fitting
        self._codec = codec or updates_of(config)
        self._follower = Follower() if follower is None else follower
        #: Goes on for a stage with each :meth:`start`; None before the clients are there.
        self._script: Script | None = None
        #: Stages that this attempt has trained, or whose exchange it has repeated.
        self._done = 0
        #: The round that the hooks carry out, and what it has asked.
        self._round: tuple[Round[Score], Ask] | None = None

    # ---- a whole stage ------------------------------------------------------------------------

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
            num_rounds: At most; as configured (``rounds``) if None.
            timeout: Seconds for the answers of one round; ``message-timeout-s`` if None.
            train_config: For :meth:`configure_train`, which does not use it.
            evaluate_config: ``{"nodes": "validation"}`` evaluates after every round; without it
                only the answers of the next round validate, which costs no message.
            evaluate_fn: As Flower's.

        Returns:
            Flower's result; ``arrays`` are the selected weights: the best of all rounds on the
            validation nodes.

        Raises:
            ConfigurationError: All stages are trained, or keys are at odds.
            RetexoError: As :meth:`aggregate_train`, or the exchange failed.
        """
        if self._script is None:
            check_algorithm(config_values(self.config))
            check_links(grid, self.config)
            self.join(grid)
        assert self._script is not None, "join() makes it"
        if timeout is not None:
            self.joined.messenger.wait_at_most(timeout)
        if self._done == self.stages:
            raise ConfigurationError(f"layers: all {counted(self._done, 'stage')} are trained")
        runner = _HookRunner(
            strategy=self,
            grid=grid,
            first=records.weights_of(initial_arrays) if initial_arrays else None,
            rounds=num_rounds,
            train_config=train_config or ConfigRecord(),
            evaluate_config=evaluate_config or ConfigRecord(),
            evaluate_fn=evaluate_fn,
        )
        self.training.runner = runner
        for _ in self._script:
            break
        else:
            raise ConfigurationError("the training has failed; expected a new strategy")
        self._done += 1
        outcome = self.joined.job.outcomes[self._done - 1]
        runner.result.arrays = records.weights_record(outcome.weights)
        return runner.result

    def test(self, grid: Grid) -> MetricRecord:
        """Evaluate the trained model on all test nodes; the clients then forget the job.

        Returns:
            ``examples``, ``correct``, ``loss-sum`` and, where it is not accuracy, ``metric``.

        Raises:
            ConfigurationError: Stages are left to train.
            RetexoError: As :meth:`aggregate_train`.
        """
        if self._done < self.stages:
            left = counted(self.stages - self._done, "stage")
            raise ConfigurationError(f"layers: {left} left to train; expected none before the test")
        assert self._script is not None, "start() comes first"
        runner = self.training.runner = _HookRunner(strategy=self, grid=grid)
        for _ in self._script:
            pass
        assert runner.tested is not None, "the test asks for nodes"
        return runner.tested

    def carried(
        self, messages: Iterable[Message], grid: Grid, *, after: int | None = None
    ) -> Iterable[Message]:
        """Have what a hook returned carried; yield the replies as they come, in client order.

        Args:
            messages: Of all clients that the round asks, or of those that a subclass has left.
            grid: Carries what is no round of ours.
            after: The stage whose exchange goes in the same messages, or before them.

        Raises:
            ConfigurationError: A client was left out, and may not be.
        """
        sent = list(messages)
        if self._round is None:
            return grid.send_and_receive(sent) if sent else []
        joined, (asking, ask) = self.joined, self._round
        by_client = {joined.messenger.client_at(m.metadata.dst_node_id): m for m in sent}
        out = tuple(client for client in ask.requests if client not in by_client)
        if out:
            ask = self._without(out, ask)
            self._round = asking, ask
        if after is not None and joined.exchanges.goes_with(ask):
            return self._with_exchange(after, ask)
        if after is not None:
            self.training.exchange(after)
        carried = joined.messenger.replies(ask, [by_client[client] for client in ask.requests])
        return (reply for _, reply in carried)

    def _with_exchange(self, stage: int, ask: Ask) -> Iterator[Message]:
        both = self.joined.exchanges.with_question(stage)
        for _, reply in both.replies(ask):
            yield reply
        self._follower.exchanged(stage, both.exchanged, along=True)

    def _without(self, out: tuple[int, ...], ask: Ask) -> Ask:
        """Return what is asked of those whom a subclass has not left ``out``."""
        if ask.cohorts:
            raise ConfigurationError(
                f"configure_{ask.purpose}: no message to {clients_named(out)}; expected one to all "
                "clients of a cohort, since masks of the others would not cancel"
            )
        if not self.joined.messenger.policy.may_close_early:
            raise ConfigurationError(
                f"configure_{ask.purpose}: no message to {clients_named(out)}; expected one to all "
                "that are asked, or min-clients, under which clients may be absent"
            )
        return ask.among(ask.requests.keys() - {*out})

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
        job = JobState.begin() if job is None else job
        self.joined = open_training(
            grid,
            self.config,
            job,
            codec=self._given_codec,
            fitting=self._fitting,
            on_silence=on_silence,
            watch=watch,
        )
        self.config = self.joined.config
        self._codec = self._given_codec or updates_of(self.config)
        self.training = Training(
            self.config, self.joined, codec=self._codec, follower=self._follower
        )
        self._script = script_of(self.training)
        return self.joined

    @property
    def ledger(self) -> TrafficLedger:
        """Bytes of the job so far."""
        return self.joined.job.ledger

    # ---- Flower's hooks -------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Address the weights to every client that trains or validates, in client order."""
        del server_round, config, grid
        return self._begin(self.training.stage.train(records.weights_of(arrays)))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord, MetricRecord]:
        """Make one update of the round's, take one optimizer step (:meth:`.StageTraining.train`).

        Args:
            server_round: Round of the stage.
            replies: Of all clients that were asked.

        Returns:
            The next weights, and the round's ``loss`` with the validation of the weights that were
            sent out (``validation-examples``, ``-correct``, ``-loss-sum``).

        Raises:
            TrainingDiverged: The new weights, or a loss, are not finite.
            RoundIncomplete: A client has not answered that has to.
            RemoteProtocolError: A client's counts are not those that its hello promised.
        """
        metrics = _score_record(self._end(server_round, replies), "validation-")
        if self.training.stage.loss is not None:
            metrics["loss"] = self.training.stage.loss
        return records.weights_record(self.training.stage.weights), metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Address the weights to clients with validation nodes, or to all for the test.

        Args:
            server_round: Round of the stage.
            arrays: The weights.
            config: ``nodes``: ``validation``, ``test``, or ``validation of the last weights`` of a
                stage, which may be its best; without it no client is asked, since every round
                validates the weights of the one before.
            grid: Not used.
        """
        del server_round, grid
        nodes = str(config.get("nodes", ""))
        if not nodes:
            return []
        if nodes == _LAST:
            return self._begin(self.training.stage.validate_last())
        return self._begin(self.training.stage.evaluate(records.weights_of(arrays), nodes))

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
        stage = self.training.stage
        logger.info(
            "stage %d: %s trained by %s",
            stage.ticket.stage,
            counted(len(stage.weights), "weight"),
            counted(len(stage.training_clients), "client"),
        )

    # ---- inside -----------------------------------------------------------------------------

    def _begin(self, asking: Round[Score]) -> list[Message]:
        """Begin a round; return its first messages."""
        asking = self.joined.rounds.wrapped(asking)
        ask = next(asking)
        self._round = asking, ask
        return self.joined.messenger.questions(ask)

    def _end(self, server_round: int, replies: Iterable[Message]) -> Score:
        """Hand the replies to the round; where it asks again, the messenger does."""
        assert self._round is not None, "its configure hook comes first"
        asking, ask = self._round
        answers = self._answers(server_round, ask, replies)
        self.score = self.joined.messenger.go_on(asking, answers)
        self._round = None
        return self.score

    def _answers(
        self, server_round: int, ask: Ask, replies: Iterable[Message]
    ) -> Iterator[tuple[int, Any]]:
        """Yield the answers of the clients that were asked, in client order.

        Replies that a subclass hands on in another order are held until their turn comes.
        """
        messenger = self.joined.messenger
        early: dict[int, Message] = {}
        waiting = deque(ask.requests)
        for reply in replies:
            client = messenger.client_at(reply.metadata.src_node_id)
            records.raise_failure(reply, client)
            if client >= 0:
                early[client] = reply
            while waiting and waiting[0] in early:
                client = waiting.popleft()
                yield client, answer_of(ask, client, early.pop(client))
        missing = tuple(client for client in waiting if client not in early)
        if missing and not messenger.policy.may_close_early:
            raise RoundIncomplete(
                f"stage {ask.stage}, round {server_round}: no answer from "
                f"{clients_named(missing)} in time"
            )
        for client in waiting:
            if client in early:
                yield client, answer_of(ask, client, early[client])


@dataclass(slots=True, kw_only=True)
class _HookRunner:
    """Carries out the rounds of a stage, or the test, by a strategy's hooks.

    See :class:`.StageRunner`.

    Attributes:
        strategy: Whose hooks.
        grid: As in :meth:`.LazyMessagePassing.start`; likewise what follows it.
        result: What Flower has of the stage.
        tested: The result of the test.
    """

    strategy: LazyMessagePassing
    grid: Grid
    first: np.ndarray | None = None
    rounds: int | None = None
    train_config: ConfigRecord = field(default_factory=ConfigRecord)
    evaluate_config: ConfigRecord = field(default_factory=ConfigRecord)
    evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None
    result: Result = field(default_factory=Result)
    tested: MetricRecord | None = None
    _arrays: ArrayRecord = field(init=False, default_factory=ArrayRecord)

    def begin(self, weights: np.ndarray) -> None:
        """See the (P,) weights before the first round."""
        self.strategy.summary()
        self._arrays = records.weights_record(weights)
        self._look(self.strategy.training.stage.round)

    def train(self, stage: StageTraining, *, after: int | None) -> Score:
        """Have a round configured, carried and aggregated, and its weights evaluated if asked."""
        strategy, number = self.strategy, stage.round + 1
        messages = strategy.configure_train(number, self._arrays, self.train_config, self.grid)
        replies = strategy.carried(messages, self.grid, after=after)
        trained, metrics = strategy.aggregate_train(number, replies)
        # As in Flower: where `aggregate_train` returns no arrays, the weights stay as they were.
        self._arrays = self._arrays if trained is None else trained
        stage.go_on_from(records.weights_of(self._arrays))
        if metrics is not None:
            self.result.train_metrics_clientapp[number] = metrics
        score = strategy.score
        if (told := self._evaluate(number, self.evaluate_config)) is not None:
            self.result.evaluate_metrics_clientapp[number] = told
        self._look(number)
        return score

    def validate_last(self, stage: StageTraining) -> Score:
        """Have the weights after the last round evaluated."""
        self._evaluate(stage.round, ConfigRecord({"nodes": _LAST}))
        return self.strategy.score

    def validate(self, weights: np.ndarray) -> Score:
        """Have (P,) weights evaluated on the validation nodes."""
        self._arrays = records.weights_record(weights)
        self._evaluate(0, ConfigRecord({"nodes": "validation"}))
        return self.strategy.score

    def test(self, weights: np.ndarray) -> None:
        """Have (P,) weights evaluated on the test nodes."""
        self._arrays = records.weights_record(weights)
        self.tested = self._evaluate(0, ConfigRecord({"nodes": "test"}))

    def _evaluate(self, number: int, config: ConfigRecord) -> MetricRecord | None:
        messages = self.strategy.configure_evaluate(number, self._arrays, config, self.grid)
        return self.strategy.aggregate_evaluate(number, self.strategy.carried(messages, self.grid))

    def _look(self, number: int) -> None:
        """Have the server's own function see the weights after a round, 0 for the first."""
        if self.evaluate_fn is None:
            return
        if (found := self.evaluate_fn(number, self._arrays)) is not None:
            self.result.evaluate_metrics_serverapp[number] = found


def _score_record(score: Score, prefix: str) -> MetricRecord:
    metrics = MetricRecord()
    metrics[f"{prefix}examples"] = score.count
    metrics[f"{prefix}correct"] = score.correct
    metrics[f"{prefix}loss-sum"] = score.loss_sum
    if score.metric is not None:
        metrics[f"{prefix}metric"] = score.metric
    return metrics
