"""The Flower strategy: a training stage by stage, by Flower's hooks.

    basis         where features become coordinates: their sums, then one block after the other
    for each stage m:
        publish   every client embeds its nodes with the selected layer m - 1 and sends its vectors
        collect   until every vector has arrived, or the deadline decides
        R rounds  weights w(r-1) out, gradient sums back, one step to w(r)
        evaluate  w(R) on the validation nodes; the best of w(1)..w(R) is kept
    evaluate      the selected model on the test nodes, once

With ``solver = ridge`` no stage has rounds: after the exchanges of all stages clients add up
products, from which the last layer follows.

A stage that ``patience`` has stopped does not validate its last weights. Where the server sends
changes of weights, the exchange is not asked for by itself but in the first round's messages.

Algorithms that train end to end have one stage, which holds all layers.

Source: RETEXO (Kolluri et al.), section 3.1.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from retexo_fl.algorithms import check_algorithm
from retexo_fl.config import RunConfig, config_values
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
from retexo_fl.federation.rounds.clients import Untold, untold_bytes
from retexo_fl.federation.rounds.exchange import Exchanged
from retexo_fl.federation.rounds.stage import StageTraining
from retexo_fl.federation.rounds.stage_state import StageOutcome, StageState
from retexo_fl.federation.stage_loop import StageLoop
from retexo_fl.graph.labels import REGRESSION
from retexo_fl.ledger import TrafficLedger
from retexo_fl.methods.pieces.basis.script import find_basis
from retexo_fl.methods.ridge.script import solve_last
from retexo_fl.run_log.events import RoundClosed
from retexo_fl.training.selection import Score
from retexo_fl.units import clients_named, counted
from retexo_fl.updates import UpdateCodec, update_codec

logger = logging.getLogger(__name__)

#: What :meth:`.LazyMessagePassing.configure_evaluate` is asked for at the end of a stage.
_LAST: Final = "validation of the last weights"


class Follower:
    """Is told how a training goes on; does nothing by itself but say what is not known of it.

    ``retexo run`` writes its run directory from here.
    """

    def exchanged(self, stage: int, exchanged: Exchanged, *, along: bool = False) -> None:
        """See an exchange that has ended; it went ``along`` with the first round if so."""

    def round_done(self, known: RoundClosed | None, training: StageTraining, *, last: bool) -> None:
        """See a round that has ended, and what it told of the one before."""

    def validated(self, known: RoundClosed) -> None:
        """See what is known of the last round of a stage."""

    def stage_done(self, outcome: StageOutcome) -> None:
        """See what a stage leaves."""

    def tested(self, config: RunConfig, untold: Untold) -> None:
        """See that the test is over."""
        for line in untold_bytes(config, untold):
            logger.warning(line)


class LazyMessagePassing(Strategy):
    """Trains one stage after the other, by any algorithm.

    With ``lazy`` clients exchange rows before the rounds of a stage, and not within them.

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
        follower: Is told how the training goes on.

    Source: RETEXO (Kolluri et al.), section 3.1.
    """

    def __init__(
        self,
        config: RunConfig,
        *,
        codec: UpdateCodec | None = None,
        follower: Follower | None = None,
    ) -> None:
        self.config = config
        self._codec = codec or update_codec(
            update_bits=config.update_bits,
            weight_bits=config.weight_bits,
            keeps_zeros=config.codec == "dense",
            masked=config.secure_aggregation == "masked",
        )
        self._follower = Follower() if follower is None else follower
        self._joined: Joined | None = None
        self._training: StageTraining | None = None
        #: Stages that this attempt has trained, or whose exchange it has repeated.
        self._done = 0
        #: The round that the hooks carry out, and what it has asked; then what came of it.
        self._round: tuple[Round[Score], Ask] | None = None
        self._score: Score | None = None

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
        if self._joined is None:
            check_algorithm(config_values(self.config))
            check_links(grid, self.config)
            self.join(grid)
        if timeout is not None:
            self.joined.messenger.wait_at_most(timeout)
        stage = self._done
        if stage == self.stages:
            raise ConfigurationError(f"layers: all {counted(stage, 'stage')} are trained")
        if not stage:
            self.find_basis()
        result = Result()
        if self.config.solver == "ridge":
            outcome = self._solve(stage)
        elif stage < len(self.joined.job.outcomes):
            # Clients may have lost what they held in memory; where not, nothing is sent again.
            self._exchange(stage)
            outcome = self.joined.job.outcomes[stage]
        elif not self.config.stage_rounds[stage]:
            self._exchange(stage)
            outcome = StageOutcome.untrained(stage, self.initial(stage))
            self._close_stage(outcome)
        else:
            state = self._state(stage, initial_arrays)
            hooks = _Hooks(
                train_config=train_config or ConfigRecord(),
                evaluate_config=evaluate_config or ConfigRecord(),
                evaluate_fn=evaluate_fn,
                rounds=num_rounds,
            )
            outcome = self._train_stage(stage, state, grid, hooks, result)
        self._done += 1
        result.arrays = records.weights_record(outcome.weights)
        return result

    def test(self, grid: Grid) -> MetricRecord:
        """Evaluate the trained model on all test nodes; the clients then forget the job.

        Returns:
            ``examples``, ``correct``, ``loss-sum`` and, where it is not accuracy, ``metric``.
        """
        job = self.joined.job
        arrays = records.weights_record(job.outcomes[-1].weights)
        metrics = self._evaluate(0, arrays, ConfigRecord({"nodes": "test"}), grid)
        assert metrics is not None, "a question that names nodes has an answer"
        self._follower.tested(self.config, job.untold)
        return metrics

    @property
    def score(self) -> Score:
        """Of the last evaluation, or of the weights that the last round was sent."""
        assert self._score is not None, "start() or test() comes first"
        return self._score

    def _train_stage(
        self, stage: int, state: StageState, grid: Grid, hooks: _Hooks, result: Result
    ) -> StageOutcome:
        """Train a stage from where an earlier attempt left it; return what it leaves."""
        joined, training = self.joined, self.open_stage(stage, state)
        loop = StageLoop(self.config, joined.job.ledger, training, rounds=hooks.rounds)
        is_exchanged = not joined.exchanges.go_along or loop.finished
        if is_exchanged:
            self._exchange(stage)
        arrays = records.weights_record(training.weights)
        hooks.look(0, arrays, result)

        def train() -> Score:
            nonlocal arrays
            number = training.round + 1
            messages = self.configure_train(number, arrays, hooks.train_config, grid)
            replies = self._replies(messages, grid, along=None if is_exchanged else stage)
            trained, metrics = self.aggregate_train(number, replies)
            # None of a subclass leaves them as they were, as Flower has it.
            arrays = arrays if trained is None else trained
            training.go_on_from(records.weights_of(arrays))
            if metrics is not None:
                result.train_metrics_clientapp[number] = metrics
            return self.score

        while not loop.finished:
            joined.exchanges.bring_up(stage, training.training)
            known = loop.train_round(train)
            is_exchanged = True
            self._follower.round_done(known, training, last=loop.finished)
            number = training.round
            if (told := self._evaluate(number, arrays, hooks.evaluate_config, grid)) is not None:
                result.evaluate_metrics_clientapp[number] = told
            hooks.look(number, arrays, result)

        def validate() -> Score:
            self._evaluate(training.round, arrays, ConfigRecord({"nodes": _LAST}), grid)
            return self.score

        known, outcome = loop.close(validate)
        if known is not None:
            self._follower.validated(known)
        self._close_stage(outcome)
        return outcome

    def _solve(self, stage: int) -> StageOutcome:
        """Find the last layer without rounds; those before it have no weights.

        Clients send the vectors of a stage in the messages that end the exchange before it.
        """
        joined, last = self.joined, self.stages - 1
        if stage < last:
            outcome = StageOutcome.untrained(stage, self.initial(stage))
            joined.job.outcomes[stage:] = [outcome]
            publishing = joined.exchanges.publishing(stage + 1)
            exchanged, _ = joined.exchanges.run_with(stage, publishing)
            self._follower.exchanged(stage, exchanged)
            self._follower.stage_done(outcome)
            return outcome
        solving = solve_last(joined.clients, joined.job.ticket(last), joined.schedule.shape)
        exchanged, weights = joined.exchanges.run_with(last, joined.rounds.wrapped(solving))
        self._follower.exchanged(last, exchanged)
        training = self.open_stage(last, replace(StageState.first(weights), round=1))
        loop = StageLoop(self.config, joined.job.ledger, training)
        known, outcome = loop.close(lambda: joined.rounds.carry_out(training.validate_last()))
        if known is not None:
            self._follower.validated(known)
        self._close_stage(outcome)
        return outcome

    def _state(self, stage: int, initial: ArrayRecord | None) -> StageState:
        known = self.joined.job.stage_state(stage)
        if known is not None:
            return known
        return StageState.first(records.weights_of(initial) if initial else self.initial(stage))

    def _exchange(self, stage: int) -> None:
        self._follower.exchanged(stage, self.joined.exchanges.run(stage))

    def _close_stage(self, outcome: StageOutcome) -> None:
        self._follower.stage_done(outcome)
        self.joined.job.outcomes.append(outcome)

    def _evaluate(
        self, number: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> MetricRecord | None:
        messages = self.configure_evaluate(number, arrays, config, grid)
        return self.aggregate_evaluate(number, self._replies(messages, grid))

    def _replies(
        self, messages: Iterable[Message], grid: Grid, *, along: int | None = None
    ) -> Iterable[Message]:
        """Have what a hook returned carried; yield the replies as they come, in client order.

        Args:
            messages: Of all clients that the round asks, or of those that a subclass has left.
            grid: Carries what is no round of ours.
            along: The stage whose exchange goes in the same messages, or before them.

        Raises:
            ConfigurationError: A client was left out, and may not be.
        """
        sent = list(messages)
        if self._round is None:
            return grid.send_and_receive(sent) if sent else []
        joined, (asking, ask) = self.joined, self._round
        by_client = {joined.messenger.client_at(m.metadata.dst_node_id): m for m in sent}
        ask = self._among(ask, by_client)
        self._round = asking, ask
        if along is not None and joined.exchanges.goes_with(ask):
            return self._with_exchange(along, ask)
        if along is not None:
            self._exchange(along)
        carried = joined.messenger.replies(ask, [by_client[client] for client in ask.requests])
        return (reply for _, reply in carried)

    def _with_exchange(self, stage: int, ask: Ask) -> Iterator[Message]:
        both = self.joined.exchanges.with_question(stage)
        for _, reply in both.replies(ask):
            yield reply
        self._follower.exchanged(stage, both.exchanged, along=True)

    def _among(self, ask: Ask, there: Collection[int | None]) -> Ask:
        """Return what is asked of the clients that a subclass has left."""
        out = tuple(client for client in ask.requests if client not in there)
        if out and ask.cohorts:
            raise ConfigurationError(
                f"configure_{ask.purpose}: no message to {clients_named(out)}; expected one to all "
                "clients of a cohort, since masks of the others would not cancel"
            )
        if out and not self.joined.messenger.policy.may_close_early:
            raise ConfigurationError(
                f"configure_{ask.purpose}: no message to {clients_named(out)}; expected one to all "
                "that are asked, or min-clients, under which clients may be absent"
            )
        return ask.among([client for client in ask.requests if client in there]) if out else ask

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
        self._joined = open_training(
            grid, self.config, job, codec=self._codec, on_silence=on_silence, watch=watch
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
            RoundIncomplete: A client has not answered that has to.
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
            return self._begin(self.training.validate_last())
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
        self._score = self.joined.messenger.go_on(asking, answers)
        self._round = None
        return self._score

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
            records.raise_failure(reply, "a client" if client is None else f"client {client}")
            if client is not None:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hooks:
    """What the hooks of a stage are called with."""

    train_config: ConfigRecord
    evaluate_config: ConfigRecord
    evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None
    rounds: int | None

    def look(self, number: int, arrays: ArrayRecord, result: Result) -> None:
        """Have the server's own function see the weights after a round, 0 for the first."""
        found = None if self.evaluate_fn is None else self.evaluate_fn(number, arrays)
        if found is not None:
            result.evaluate_metrics_serverapp[number] = found


def _score_record(score: Score, prefix: str) -> MetricRecord:
    metrics = MetricRecord()
    metrics[f"{prefix}examples"] = score.count
    metrics[f"{prefix}correct"] = score.correct
    metrics[f"{prefix}loss-sum"] = score.loss_sum
    if score.metric is not None:
        metrics[f"{prefix}metric"] = score.metric
    return metrics
