"""The rounds of one stage, as a run trains them: retried, closed without some, resumed."""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message
from flwr.serverapp import Grid

from retexo_fl.federation import records
from retexo_fl.federation.stage_state import StageOutcome, StageState
from retexo_fl.federation.strategy import LazyMessagePassing, read_score
from retexo_fl.training.selection import Score


class StageLoop:
    """Trains one stage by the strategy's hooks; the messenger carries what they address.

    Flower's own loop (:meth:`LazyMessagePassing.start`) asks every client once, and waits for all.

    Args:
        strategy: Has joined its clients.
        stage: Stage index.
        state: Where an earlier attempt left it.
        grid: The way to the clients.
    """

    def __init__(
        self, strategy: LazyMessagePassing, stage: int, state: StageState, grid: Grid
    ) -> None:
        self._strategy = strategy
        self._config = strategy.config
        self._messenger = strategy.messenger
        self._participants = strategy.participants
        self._grid = grid
        self._stage = stage
        self._absent = state.absent
        strategy.open_stage(stage, state)
        strategy.summary()

    @property
    def round(self) -> int:
        """Rounds done."""
        return self._strategy.round

    @property
    def finished(self) -> bool:
        """Whether no round is left: all are done, or none of the last ``patience`` was better."""
        if self.round >= self._config.rounds:
            return True
        patience = self._config.patience
        since_best = self.round - 1 - self._strategy.best.round_number
        return bool(patience) and self.round > 1 and since_best >= patience

    def state(self) -> StageState:
        """Return where the stage stands."""
        return self._strategy.state(self._absent)

    def train_round(self, behind: Set[int] = frozenset()) -> dict[str, Any] | None:
        """Train one round; return what became known of w(round - 1), or None in the first.

        Clients ``behind`` are not asked, nor until the next round.
        """
        number = self.round + 1
        # Of the round before, which this round's answers validate.
        loss, absent = self._strategy.loss, self._absent
        self._strategy.behind = behind
        messages = self._strategy.configure_train(
            number, self._strategy.arrays, ConfigRecord(), self._grid
        )
        replies = self._ask(messages, "train", counted={*self._participants.training})
        _, metrics = self._strategy.aggregate_train(number, replies)
        self._absent = tuple(
            sorted({*self._messenger.absent, *behind} & {*self._participants.asked})
        )
        if number == 1:
            return None
        return self._facts(number - 1, loss, absent, read_score(metrics, "validation-"))

    @property
    def absent(self) -> tuple[int, ...]:
        """Clients whose answers the last round was closed without, ascending."""
        return self._absent

    def close(self) -> tuple[dict[str, Any], StageOutcome]:
        """Validate the last weights; return what became known of them, and the outcome."""
        weights = records.weights_of(self._strategy.arrays)
        score = self.evaluate(weights, "validation")
        self._strategy.best.offer(weights, self.round, score)
        facts = self._facts(self.round, self._strategy.loss, self._absent, score)
        return facts, self._strategy.outcome()

    def evaluate(self, weights: np.ndarray, nodes: str) -> Score:
        """Evaluate (P,) weights on the ``validation`` or ``test`` nodes of all clients."""
        messages = self._strategy.configure_evaluate(
            self.round, records.weights_record(weights), ConfigRecord({"nodes": nodes}), self._grid
        )
        metrics = self._strategy.aggregate_evaluate(self.round, self._ask(messages, "evaluate"))
        assert metrics is not None, "the question names nodes"
        return read_score(metrics, "")

    def _ask(
        self, messages: Iterable[Message], purpose: str, counted: Set[int] | None = None
    ) -> Iterable[Message]:
        asked = self._messenger.ask(messages, stage=self._stage, purpose=purpose, counted=counted)
        return (reply for _, reply in asked)

    def _facts(
        self, number: int, loss: float | None, absent: tuple[int, ...], score: Score
    ) -> dict[str, Any]:
        """Return what is known of w(number) and the round that made it."""
        best = self._strategy.best
        assert best.score is not None
        return {
            "stage": self._stage,
            "round": number,
            "rounds": self._config.rounds,
            "loss": loss,
            **({"absent": list(absent)} if absent else {}),
            "val_loss": score.loss,
            "val_accuracy": score.accuracy,
            **({} if score.metric is None else {"val_metric": score.metric}),
            "best_round": best.round_number,
            "best_val_accuracy": best.score.accuracy,
        }
