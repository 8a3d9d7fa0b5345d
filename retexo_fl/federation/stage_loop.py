"""How long a stage is trained: rounds, patience; and what is told of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from retexo_fl.config import RunConfig
from retexo_fl.federation.rounds.stage import StageTraining
from retexo_fl.federation.rounds.stage_state import StageOutcome
from retexo_fl.ledger import TrafficLedger
from retexo_fl.run_log.events import RoundClosed
from retexo_fl.training.selection import Score


class StageLoop:
    """Says how long one stage is trained, and what became known of it.

    Args:
        config: Of the run.
        ledger: Of the job.
        training: The stage.
        rounds: How many at most; as configured if None.
    """

    def __init__(
        self,
        config: RunConfig,
        ledger: TrafficLedger,
        training: StageTraining,
        *,
        rounds: int | None = None,
    ) -> None:
        self._ledger = ledger
        self._training = training
        stage = training.ticket.stage
        self._rounds = config.stage_rounds[stage] if rounds is None else rounds
        self._patience = config.patience
        if config.last_rounds and stage == config.stages - 1:
            self._patience = 0

    @property
    def finished(self) -> bool:
        """Whether no round is left: all are done, or none of the last ``patience`` was better."""
        return self._training.round >= self._rounds or self._has_lost_patience

    @property
    def _has_lost_patience(self) -> bool:
        """Whether none of the last ``patience`` weights was better than those before.

        Those of the last round are not looked at then.
        """
        done, patience = self._training.round, self._patience
        since_best = done - 1 - self._training.best.round_number
        return bool(patience) and done > 1 and since_best >= patience

    def train_round(self, train: Callable[[], Score]) -> RoundClosed | None:
        """Have a round trained; return what became known of w(round - 1), or None in the first."""
        # Of the round before, which this round's answers validate.
        before = self._known()
        score = train()
        return self._closed(before, score) if before["round"] else None

    def close(self, validate: Callable[[], Score]) -> tuple[RoundClosed | None, StageOutcome]:
        """Return what became known of the last weights, if they are validated, and the outcome."""
        if self._has_lost_patience:
            return None, self._training.outcome()
        score = validate()
        closed = self._closed(self._known(), score)
        return closed, self._training.outcome()

    def _known(self) -> dict[str, Any]:
        """Return what is known of the last round, by fields of its event."""
        training = self._training
        names = ("round", "loss", "absent", "summed", "cut")
        return {name: getattr(training, name) for name in names}

    def _closed(self, known: Mapping[str, Any], score: Score) -> RoundClosed:
        """Return what is known of a round, and of the weights that it made."""
        best = self._training.best
        assert best.score is not None
        return RoundClosed(
            stage=self._training.ticket.stage,
            rounds=self._rounds,
            **known,
            val_loss=score.loss,
            val_accuracy=score.accuracy,
            val_metric=score.metric,
            best_round=best.round_number,
            best_val_accuracy=best.score.accuracy,
            best_val_metric=best.score.metric,
            bytes_payload=self._ledger.sum().payload,
        )
