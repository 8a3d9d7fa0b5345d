"""Which weights of a stage are kept: the best of w(1)..w(R) on the validation nodes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from retexo_fl.errors import RemoteProtocolError
from retexo_fl.training.metrics import Metric, metric_value
from retexo_fl.units import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Validation over all clients; ``count`` 0 means that no client has validation nodes.

    ``metric`` is the value of a metric other than accuracy, or None.
    """

    count: int
    correct: int
    loss_sum: float
    metric: float | None = None

    @property
    def accuracy(self) -> float | None:
        """Share classified rightly, or None without nodes."""
        return self.correct / self.count if self.count else None

    @property
    def loss(self) -> float | None:
        """Mean cross entropy, or None without nodes."""
        return self.loss_sum / self.count if self.count else None

    def beats(self, other: Score) -> bool:
        """Say whether these weights are to be preferred to earlier ones.

        Higher accuracy (or the metric's value) wins, then lower loss; at a full tie the earlier
        weights stay. Without validation nodes later weights win, since nothing speaks against
        training longer.
        """
        if not self.count:
            return True
        return (self._height, -self.loss_sum) > (other._height, -other.loss_sum)

    @property
    def _height(self) -> float:
        return self.correct if self.metric is None else self.metric


@dataclass(slots=True)
class ScoreSums:
    """Adds up what clients answer about one set of nodes, in the order given."""

    count: int = 0
    correct: int = 0
    loss_sum: float = 0.0
    metric: np.ndarray | None = None

    def add(self, count: int, correct: int, loss_sum: float, metric: tuple[float, ...]) -> None:
        """Add a client's sums.

        Raises:
            RemoteProtocolError: Its metric has another length than those before.
        """
        self.count += count
        self.correct += correct
        self.loss_sum += loss_sum
        if not metric:
            return
        sums = np.asarray(metric, dtype=np.float64)
        if self.metric is not None and self.metric.shape != sums.shape:
            raise RemoteProtocolError(
                f"a client's metric has {counted(len(sums), 'sum')}; expected "
                f"{len(self.metric)} as before"
            )
        self.metric = sums if self.metric is None else self.metric + sums

    def score(self, metric: Metric | None) -> Score:
        """Return the score of all nodes added."""
        value = None
        if metric is not None and self.metric is not None:
            value = metric_value(metric, self.metric)
        return Score(count=self.count, correct=self.correct, loss_sum=self.loss_sum, metric=value)


@dataclass(slots=True, kw_only=True)
class BestWeights:
    """The best candidate so far.

    Attributes:
        weights: (P,), or None before the first candidate.
        round_number: r of w(r).
        score: Its validation.
    """

    weights: np.ndarray | None = None
    round_number: int = 0
    score: Score | None = None

    def offer(self, weights: np.ndarray, round_number: int, score: Score) -> bool:
        """Keep ``weights`` if they beat the best so far; say whether they did."""
        if self.score is not None and not score.beats(self.score):
            return False
        self.weights, self.round_number, self.score = weights.copy(), round_number, score
        return True
