"""The rounds of one stage: train, validate, select, checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, MetricRecord
from flwr.serverapp import Grid

from retexo_fl.agent.api import Ticket
from retexo_fl.config import RunConfig
from retexo_fl.federation import records
from retexo_fl.federation.aggregators import make_aggregator
from retexo_fl.federation.messenger import Messenger
from retexo_fl.federation.optimizers import make_optimizer
from retexo_fl.federation.strategy import LazyMessagePassing, Participants, read_score
from retexo_fl.training.metrics import make_metric
from retexo_fl.training.selection import BestWeights, Score


@dataclass(frozen=True, slots=True, kw_only=True)
class StageOutcome:
    """What a finished stage leaves.

    Attributes:
        stage: Stage index.
        rounds: Rounds trained.
        best_round: r of the selected w(r).
        score: Its validation.
        weights: (P,) the selected weights.
    """

    stage: int
    rounds: int
    best_round: int
    score: Score
    weights: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class StageState:
    """Where a stage stands after a round: everything that decides how it goes on.

    Attributes:
        round: Rounds done.
        loss: Mean training loss of the last round, or None before the first.
        best: The best candidate of w(1)..w(round - 1).
        weights: (P,) w(round).
        optimizer: State of the server's optimizer.
        absent: Clients whose answers the last round was closed without, ascending.
    """

    round: int
    loss: float | None
    best: BestWeights
    weights: np.ndarray
    optimizer: Mapping[str, np.ndarray]
    absent: tuple[int, ...] = ()


class StageLoop:
    """Trains one stage."""

    def __init__(
        self,
        ticket: Ticket,
        state: StageState,
        *,
        config: RunConfig,
        participants: Participants,
        messenger: Messenger,
        grid: Grid,
    ) -> None:
        self._config = config
        self._grid = grid
        self._messenger = messenger
        self._participants = participants
        self._absent = state.absent
        self._stage = ticket.stage
        self._round = state.round
        self._loss = state.loss
        self._best = state.best
        self._optimizer = make_optimizer(config, state.weights)
        self._optimizer.load_state(state.optimizer)
        self._record = records.weights_record(self._optimizer.weights)
        self._strategy = LazyMessagePassing(
            ticket,
            participants,
            messenger=messenger,
            aggregator=make_aggregator(
                config.aggregator, takes_uncounted=config.traits.exchanges_in_rounds
            ),
            optimizer=self._optimizer,
            seed=config.seed,
            metric=make_metric(config.metric),
        )
        self._strategy.in_batches = config.sampler != "none"
        self._strategy.summary()

    @property
    def round(self) -> int:
        """Rounds done."""
        return self._round

    @property
    def finished(self) -> bool:
        """No round is left: all are done, or patience is over."""
        if self._round >= self._config.rounds:
            return True
        patience = self._config.patience
        since_best = self._round - 1 - self._best.round_number
        return bool(patience) and self._round > 1 and since_best >= patience

    def state(self) -> StageState:
        """Return where the stage stands."""
        return StageState(
            round=self._round,
            loss=self._loss,
            best=self._best,
            weights=self._optimizer.weights,
            optimizer=self._optimizer.state(),
            absent=self._absent,
        )

    def train_round(self, behind: Set[int] = frozenset()) -> dict[str, Any] | None:
        """Train one round; return what became known of w(round - 1), or None in the first.

        Clients ``behind`` are not asked, nor until the next round.
        """
        number = self._round + 1
        self._strategy.behind = behind
        sent = records.weights_of(self._record)
        messages = self._strategy.configure_train(number, self._record, ConfigRecord(), self._grid)
        replies = self._messenger.ask(
            messages,
            stage=self._stage,
            purpose="train",
            counted={*self._participants.training},
        )
        self._record, metrics = self._strategy.aggregate_train(
            number, (reply for _, reply in replies)
        )
        known = None if self._round == 0 else self._offer(sent, read_score(metrics, "validation-"))
        self._round, self._loss = number, _loss(metrics)
        self._absent = tuple(
            sorted({*self._messenger.absent, *behind} & {*self._participants.asked})
        )
        return known

    @property
    def absent(self) -> tuple[int, ...]:
        """Clients whose answers the last round was closed without, ascending."""
        return self._absent

    def close(self) -> tuple[dict[str, Any], StageOutcome]:
        """Validate the last weights; return what became known of them, and the outcome."""
        weights = self._optimizer.weights.copy()
        known = self._offer(weights, self.evaluate(weights, "validation"))
        assert self._best.weights is not None
        assert self._best.score is not None
        outcome = StageOutcome(
            stage=self._stage,
            rounds=self._round,
            best_round=self._best.round_number,
            score=self._best.score,
            weights=self._best.weights,
        )
        return known, outcome

    def evaluate(self, weights: np.ndarray, nodes: str) -> Score:
        """Evaluate (P,) weights on the ``validation`` or ``test`` nodes of all clients."""
        messages = self._strategy.configure_evaluate(
            self._round,
            records.weights_record(weights),
            ConfigRecord({"nodes": nodes}),
            self._grid,
        )
        replies = self._messenger.ask(messages, stage=self._stage, purpose="evaluate")
        metrics = self._strategy.aggregate_evaluate(self._round, (reply for _, reply in replies))
        return read_score(metrics, "")

    def _offer(self, weights: np.ndarray, score: Score) -> dict[str, Any]:
        self._best.offer(weights, self._round, score)
        best = self._best.score
        assert best is not None
        return {
            "stage": self._stage,
            "round": self._round,
            "rounds": self._config.rounds,
            "loss": self._loss,
            **({"absent": list(self._absent)} if self._absent else {}),
            "val_loss": score.loss,
            "val_accuracy": score.accuracy,
            **({} if score.metric is None else {"val_metric": score.metric}),
            "best_round": self._best.round_number,
            "best_val_accuracy": best.accuracy,
        }


def _loss(metrics: MetricRecord) -> float:
    value = metrics["loss"]
    assert isinstance(value, int | float)
    return value
