"""How long a stage is trained: rounds, patience; and what is told of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retexo_fl.config import RunConfig
from retexo_fl.federation.rounds.stage import StageTraining
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

    Attributes:
        training: The stage.
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
        self.training = training
        stage = training.ticket.stage
        self._rounds = config.stage_rounds[stage] if rounds is None else rounds
        self._patience = config.patience
        if config.last_rounds and stage == config.stages - 1:
            self._patience = 0

    @property
    def wants_round(self) -> bool:
        """Whether a round is left, and the last ``patience`` rounds were not all in vain."""
        return self.training.round < self._rounds and not self.has_lost_patience

    @property
    def has_lost_patience(self) -> bool:
        """Whether none of the last ``patience`` weights was better than those before.

        Those of the last round are not looked at then.
        """
        done, patience = self.training.round, self._patience
        since_best = done - 1 - self.training.best.round_number
        return bool(patience) and done > 1 and since_best >= patience

    def known(self) -> dict[str, Any]:
        """Return what is known of the last round, by fields of its event."""
        training = self.training
        names = ("round", "loss", "absent", "summed", "cut")
        return {name: getattr(training, name) for name in names}

    def closed(self, known: Mapping[str, Any], score: Score) -> RoundClosed:
        """Return what is known of a round, and of the weights that it made."""
        best = self.training.best
        assert best.score is not None
        return RoundClosed(
            stage=self.training.ticket.stage,
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
