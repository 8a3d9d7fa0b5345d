"""Which weights of a stage are kept: the best of w(1)..w(R) on the validation nodes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np

from retexo_fl.errors import RemoteProtocolError
from retexo_fl.training.metrics import Metric, metric_value
from retexo_fl.training.tally import Tally
from retexo_fl.units import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Validation over all clients; ``count`` 0 means that no client has validation nodes.

    Attributes:
        count: Nodes; ``correct`` and ``loss_sum`` are sums over them.
        metric: Value of a metric other than accuracy; None for accuracy, and where the nodes leave
            it undefined.
        ranked_among: :meth:`.Metric.ranked_among`; None where no node ranks others.
        by_metric: Whether a metric other than accuracy decides.
        lower_is_better: Of that metric.
        counts_right: Whether answers are right or wrong: not so of numbers.
        train_accuracy: Share of the train nodes that the same weights have right, with the dropout
            of their training; where they are the last of a stage, that the weights before have.
            None where it is not counted.
    """

    count: int
    correct: int
    loss_sum: float
    metric: float | None = None
    by_metric: bool = False
    lower_is_better: bool = False
    counts_right: bool = True
    train_accuracy: float | None = None
    ranked_among: float | None = None

    @classmethod
    def of(cls, found: Tally, metric: Metric | None, *, counts_right: bool = True) -> Self:
        """Return the score of all nodes that were counted."""
        value = among = None
        if metric is not None and found.metric_sums.size:
            value = metric_value(metric, found.metric_sums)
            among = metric.ranked_among(found.metric_sums)
        return cls(
            count=found.count,
            correct=found.correct,
            loss_sum=found.loss_sum,
            metric=value,
            by_metric=metric is not None,
            lower_is_better=metric is not None and metric.lower_is_better,
            counts_right=counts_right,
            ranked_among=among,
        )

    @property
    def value(self) -> float | None:
        """What was chosen to judge by: the metric, or accuracy."""
        return self.metric if self.by_metric else self.accuracy

    @property
    def accuracy(self) -> float | None:
        """Share of right answers; None without nodes, and of numbers."""
        return self.correct / self.count if self.count and self.counts_right else None

    @property
    def loss(self) -> float | None:
        """Mean loss, or None without nodes."""
        return self.loss_sum / self.count if self.count else None

    @property
    def gap(self) -> float:
        """How much more of its train than of its validation nodes are right; -inf if unknown."""
        if self.train_accuracy is None or self.accuracy is None:
            return -math.inf
        return self.train_accuracy - self.accuracy

    def beats(self, other: Score) -> bool:
        """Return whether these weights are to be preferred to earlier ones.

        Higher accuracy (or the metric's better value) wins, then lower loss; at a full tie the
        earlier weights stay. A value is better than one that is undefined. Without validation nodes
        later weights win, as there is no reason against training longer.
        """
        if not self.count:
            return True
        return (self._height, -self.loss_sum) > (other._height, -other.loss_sum)

    def is_higher(self, other: Score) -> bool:
        """Return whether accuracy, or the metric, is better; losses of other kinds do not count."""
        return self.count > 0 and self._height > other._height

    def clearly_beats(self, other: Score) -> bool:
        """Return whether this is better by more than a standard error of a share of so many."""
        mine, others = self.value, other.value
        if mine is None or others is None:
            return False
        ahead = others - mine if self.lower_is_better else mine - others
        return ahead > math.sqrt(max(others * (1 - others), 0.0) / self.count)

    @property
    def _height(self) -> float:
        if not self.by_metric:
            return self.correct
        if self.metric is None:
            return -math.inf
        return -self.metric if self.lower_is_better else self.metric


def add_answer(total: Tally, answer: Tally) -> Tally:
    """Return the tally of what clients have answered so far, in the order given.

    Raises:
        RemoteProtocolError: The answer's sums are of another length than those before.
    """
    for name in ("metric_sums", "report_sums"):
        sums, expected = len(getattr(answer, name)), len(getattr(total, name))
        if sums and expected and sums != expected:
            raise RemoteProtocolError(
                f"a client's {name.removesuffix('_sums')} has {counted(sums, 'sum')}; expected "
                f"{expected} as before"
            )
    return total + answer


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
        """Keep ``weights`` if they beat the best so far; return whether they did."""
        if self.score is not None and not score.beats(self.score):
            return False
        self.weights, self.round_number, self.score = weights.copy(), round_number, score
        return True
