"""How good a model is: what its best weights are selected by, and what a run reports."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import ClassVar, Final

import numpy as np
import torch

from retexo_fl.errors import PluginError
from retexo_fl.plugins import load_callable, load_plugin
from retexo_fl.training.judging import label_counts, number_sums

#: What an error says about the name of a metric.
_WANTED: Final = (
    "expected a built-in name, or module:attribute naming a subclass of "
    "retexo_fl.training.metrics.Metric (or a function without arguments that returns one)"
)
#: In the place of a class that was asked for by its name.
_BY_NAME: Final = -1


class Metric(ABC):
    """A number over all nodes of a set, computed from sums that every client can form alone.

    The server gets each client's sums; choose some that reveal no more than they must.

    Attributes:
        lower_is_better: Less is better, as of an error.
        counts: Each sum is a count of some of the nodes; under masks it then takes fewer bits.
    """

    lower_is_better: ClassVar[bool] = False
    counts: ClassVar[bool] = False

    @abstractmethod
    def sums(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return a (k,) vector whose sum over all nodes decides the metric.

        Args:
            logits: (R, C); R may be 0. Of a regression (R, 1) numbers in the units of the labels.
            labels: (R,) int64 classes; (R, L) int64 of 0, 1 and -1; or (R,) float64 numbers.
        """

    @abstractmethod
    def value(self, totals: np.ndarray) -> float | None:
        """Return the metric of (k,) float64 totals; None where these nodes leave it undefined.

        There is at least one node.
        """

    def ranked_among(self, totals: np.ndarray) -> float | None:
        """Return among how many others the mean node ranked its edges; None of what ranks none."""
        del totals
        return None

    def unfit_for(self, outputs: int) -> str | None:
        """Return why it cannot judge a model of so many outputs; None where it can."""
        del outputs
        return None

    def length(self, outputs: int) -> int | None:
        """Return k, so that clients' sums can be checked; None where it is not known."""
        del outputs
        return None


def make_metric(
    name: str, facts: tuple[float, ...] = (), *, of_classes: bool = True
) -> Metric | None:
    """Return the metric called ``name``, or None for ``accuracy``, which is always counted.

    Args:
        name: Of the metric; it fits the task.
        facts: Of labels; of numbers mean and scale, which say in which units the sums are.
        of_classes: A node has one class of several; else each label is judged by itself.

    Raises:
        PluginError: ``module:attribute`` names no factory of a :class:`Metric`.
    """
    if name == "accuracy":
        return None
    if name in _NAMED:
        return _NAMED[name]()
    if name in _ERRORS:
        return _ERRORS[name](*facts)
    if name in _RANKINGS:
        return _RANKINGS[name](of_classes=of_classes)
    kind, _, target = name.partition(":")
    if kind in _COUNTED:
        return _COUNTED[kind](int(target) if target.isdecimal() else _BY_NAME)
    load_plugin("metric", name)
    try:
        found = load_callable("metric", name)()
    except PluginError as error:
        raise PluginError(
            f"{error}; a metric is computed from sums that each client forms alone, and not from "
            f"all nodes' labels: {_WANTED}"
        ) from error
    if not isinstance(found, Metric):
        raise PluginError(f"metric {name!r}: {_WANTED}")
    return found


def metric_sums(metric: Metric, logits: torch.Tensor, labels: torch.Tensor) -> np.ndarray:
    """Return a metric's (k,) float64 sums over some rows.

    Raises:
        PluginError: The metric returned something else.
    """
    found = metric.sums(logits, labels)
    if not isinstance(found, torch.Tensor) or found.ndim != 1 or not found.numel():
        raise PluginError(
            f"metric {type(metric).__name__}: sums returned "
            f"{getattr(found, 'shape', type(found).__name__)}; expected a vector of sums"
        )
    return found.detach().to(torch.float64).numpy()


def metric_value(metric: Metric, totals: np.ndarray) -> float | None:
    """Return a metric's value.

    Raises:
        PluginError: It is no finite number, nor None.
    """
    value = metric.value(totals)
    if value is None:
        return None
    if not isinstance(value, int | float | np.floating) or not math.isfinite(value):
        raise PluginError(
            f"metric {type(metric).__name__}: value returned {value!r}; expected a finite number"
        )
    return float(value)


# ---- of counts by class -------------------------------------------------------------------------


class _ByClass(Metric):
    """Base of metrics of three counts of each class or label: hits, predictions and positives."""

    counts = True

    def sums(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the (3 C,) counts."""
        return label_counts(logits, labels).reshape(-1)

    def length(self, outputs: int) -> int:
        """Return 3 C."""
        return 3 * outputs


class BalancedAccuracy(_ByClass):
    """The mean recall of the classes that occur."""

    def value(self, totals: np.ndarray) -> float | None:
        """See :class:`Metric`."""
        hits, _, labelled = np.split(totals, 3)
        return _mean(hits, labelled)


class MacroF1(_ByClass):
    """The mean F1 of the classes that occur or are predicted."""

    def value(self, totals: np.ndarray) -> float | None:
        """See :class:`Metric`."""
        hits, predicted, labelled = np.split(totals, 3)
        return _mean(2 * hits, predicted + labelled)


def _mean(parts: np.ndarray, counts: np.ndarray) -> float | None:
    """Return the mean share over the classes that are counted; None where none is.

    Of several labels none may apply to any of the nodes.
    """
    there = counts > 0
    return float((parts[there] / counts[there]).mean()) if there.any() else None


class _OfOneClass(_ByClass):
    """Base of metrics of one class; 0 where nothing was predicted, or is there, to be divided by.

    Args:
        target: The class, or label; :data:`_BY_NAME` until it is known which has the name.
    """

    def __init__(self, target: int) -> None:
        self._target = target

    def unfit_for(self, outputs: int) -> str | None:
        """See :class:`Metric`."""
        if self._target == _BY_NAME:
            return f"names of classes are not known here; expected a place from 0 to {outputs - 1}"
        if self._target < outputs:
            return None
        return f"there is no class {self._target}; expected one from 0 to {outputs - 1}"

    def _counts(self, totals: np.ndarray) -> tuple[float, float, float]:
        hits, predicted, labelled = np.split(totals, 3)
        return hits[self._target], predicted[self._target], labelled[self._target]


class F1(_OfOneClass):
    """The harmonic mean of recall and precision of one class."""

    def value(self, totals: np.ndarray) -> float:
        """See :class:`Metric`."""
        hits, predicted, labelled = self._counts(totals)
        return 2 * hits / max(predicted + labelled, 1)


class Recall(_OfOneClass):
    """The share of one class that was found."""

    def value(self, totals: np.ndarray) -> float:
        """See :class:`Metric`."""
        hits, _, labelled = self._counts(totals)
        return hits / max(labelled, 1)


class Precision(_OfOneClass):
    """The share of what was predicted to be of one class that is."""

    def value(self, totals: np.ndarray) -> float:
        """See :class:`Metric`."""
        hits, predicted, _ = self._counts(totals)
        return hits / max(predicted, 1)


class LogLoss(Metric):
    """The mean negative log likelihood, natural logarithm, whatever loss is trained on."""

    lower_is_better = True

    def sums(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the sum and the number of rows, or of known labels."""
        wide = logits.double()
        if labels.ndim == 2:
            known = labels >= 0
            likelihood = torch.nn.functional.logsigmoid(torch.where(labels == 1, wide, -wide))
            return torch.stack([-likelihood[known].sum(), known.sum().double()])
        picked = torch.log_softmax(wide, dim=1).gather(1, labels[:, None])
        return torch.stack([-picked.sum(), wide.new_tensor(float(len(labels)))])

    def value(self, totals: np.ndarray) -> float | None:
        """See :class:`Metric`."""
        return float(totals[0] / totals[1]) if totals[1] else None

    def length(self, outputs: int) -> int:
        """See :class:`Metric`."""
        del outputs
        return 2


# ---- of rankings --------------------------------------------------------------------------------

#: Bins of a ranking's scores.
BINS: Final = 4096
#: Scores beyond count as the outermost bins; a probability of 1 - 1e-7.
REACH: Final = 16.0
#: Rankings of more classes would make messages of megabytes.
MOST_RANKED: Final = 64


class _Ranking(Metric):
    """Base of metrics of how classes are ranked: counts of positives and negatives by score.

    The score of a class is the logit of its probability against all others: with two classes the
    difference of both logits, and then the second class alone is ranked. Of several labels it is
    each one's own logit, of nodes where the label is known. Scores are counted in
    :data:`BINS` bins of equal width from -REACH to REACH; a bin begins at its lower edge. Scores in
    one bin count as equal, so what is computed is exact for scores at the edges of bins.
    """

    counts = True

    def sums(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the (K, 2, BINS) counts as one vector: of K classes negatives, then positives."""
        if labels.ndim == 2:
            scores, positive, known = logits.double(), labels == 1, labels >= 0
        else:
            scores = _against_rest(logits)
            classes = torch.arange(scores.shape[1]) if scores.shape[1] > 1 else torch.tensor([1])
            positive = labels[:, None] == classes
            known = torch.ones_like(positive)
        places = ((scores + REACH) * (BINS / (2 * REACH))).floor().clamp(0, BINS - 1)
        rows = 2 * torch.arange(scores.shape[1]) + positive
        found = (rows * BINS + places.to(torch.int64))[known]
        return torch.bincount(found, minlength=scores.shape[1] * 2 * BINS)

    def value(self, totals: np.ndarray) -> float | None:
        """Return the mean over the classes of which there are positives and negatives."""
        negatives, positives = totals.reshape(-1, 2, BINS).transpose(1, 0, 2)
        values = [
            self.of_counts(negative, positive)
            for negative, positive in zip(negatives, positives, strict=True)
            if negative.any() and positive.any()
        ]
        return float(np.mean(values)) if values else None

    def __init__(self, *, of_classes: bool = True) -> None:
        self._of_classes = of_classes

    def unfit_for(self, outputs: int) -> str | None:
        """See :class:`Metric`."""
        least, what = (2, "classes") if self._of_classes else (1, "labels")
        if least <= outputs <= MOST_RANKED:
            return None
        return f"there are {outputs} {what}; expected {least} to {MOST_RANKED}"

    def length(self, outputs: int) -> int:
        """See :class:`Metric`."""
        return (1 if outputs == 2 and self._of_classes else outputs) * 2 * BINS

    @abstractmethod
    def of_counts(self, negatives: np.ndarray, positives: np.ndarray) -> float:
        """Return the metric of one class from (BINS,) counts, the lowest score first."""


class RocAuc(_Ranking):
    """The area under the ROC curve, one class against the rest, averaged.

    Off by at most half of the share of pairs, of a positive and a negative, that share a bin.
    """

    def of_counts(self, negatives: np.ndarray, positives: np.ndarray) -> float:
        """Return the share of pairs in order; a pair within a bin is half in order."""
        below = np.cumsum(negatives) - negatives
        return float(positives @ (below + negatives / 2) / (positives.sum() * negatives.sum()))


class AveragePrecision(_Ranking):
    """The mean precision over the positives, one class against the rest, averaged.

    With scikit-learn's convention for equal scores. Off by at most the mean, over the positives, of
    the difference between the highest and the lowest precision that an order of their bin gives.
    """

    def of_counts(self, negatives: np.ndarray, positives: np.ndarray) -> float:
        """Return the precision at the lower edge of each bin, weighed by its positives."""
        right, wrong = np.cumsum(positives[::-1]), np.cumsum(negatives[::-1])
        return float(positives[::-1] @ (right / np.maximum(right + wrong, 1)) / right[-1])


class Hits(_Ranking):
    """The share of edges that are ranked above the K-th of all pairs without one.

    Edges in the bin of that pair do not count, as if they were ranked below it.

    Args:
        most: K.

    Source: Hu et al., Open Graph Benchmark, NeurIPS 2020, section 4.2 (Hits@K).
    """

    def __init__(self, most: int) -> None:
        super().__init__(of_classes=False)
        self._most = most

    def value(self, totals: np.ndarray) -> float | None:
        """Return the share; None with fewer than K pairs without an edge."""
        negatives, positives = totals.reshape(2, BINS)
        if negatives.sum() < self._most or not positives.any():
            return None
        return self.of_counts(negatives, positives)

    def of_counts(self, negatives: np.ndarray, positives: np.ndarray) -> float:
        """See :meth:`value`."""
        from_top = np.cumsum(negatives[::-1])
        above = int(np.searchsorted(from_top, self._most))
        return float(positives[::-1][:above].sum() / positives.sum())


#: Pairs without an edge that each edge is ranked among by ``mrr``.
MRR_PAIRS: Final = 100


class MeanReciprocalRank(Metric):
    """The mean of 1 / rank of each edge among pairs of its own end that have none.

    Equal scores rank by half: the mean of the best and the worst rank.

    Source: Hu et al., Open Graph Benchmark, NeurIPS 2020, section 4.2 (MRR).
    """

    def sums(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the sum and the number of edges, each row of 1 followed by its pairs of 0."""
        scores = logits.double().reshape(-1)
        starts = labels.reshape(-1) == 1
        groups = starts.cumsum(0) - 1
        edges = scores[starts]
        beside = scores - edges[groups]
        higher = ((beside > 0).double() + (beside == 0).double() / 2).masked_fill(starts, 0)
        ranks = torch.ones_like(edges).index_add(0, groups, higher)
        return torch.stack([(1 / ranks).sum(), starts.sum().double()])

    def value(self, totals: np.ndarray) -> float:
        """See :class:`Metric`."""
        return float(totals[0] / totals[1])

    def length(self, outputs: int) -> int:
        """See :class:`Metric`."""
        del outputs
        return 2


class NodeRanking(Metric):
    """Base of metrics of how nodes rank those that they may have an edge to, each by itself.

    A node with held-out edges ranks all candidates: those that its client knows, and that it has no
    other edge to. Of a relation of two types its sources rank, as users do items. Any order of
    equal scores is as likely. Of fewer candidates a figure is higher: how many there were is added
    up, too.
    """

    def sums(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the sum over nodes, their number, and how many candidates they have together.

        Args:
            logits: (R, M) of R nodes and M others.
            labels: (R, M) int64: 1 of a held-out edge, of which each node has one at least, 0 of
                another candidate, -1 of what is none.
        """
        rows, columns = torch.nonzero(labels == 1, as_tuple=True)
        counts = torch.bincount(rows, minlength=len(logits))
        place = torch.arange(len(rows)) - (counts.cumsum(0) - counts)[rows]
        held = logits.new_zeros(len(logits), max([1, *counts.tolist()]))
        held[rows, place] = logits[rows, columns]
        ordered = logits.masked_fill(labels < 0, -torch.inf).sort(dim=1).values
        above = logits.shape[1] - torch.searchsorted(ordered, held, right=True)
        alike = logits.shape[1] - torch.searchsorted(ordered, held) - above
        known = torch.arange(held.shape[1]) < counts[:, None]
        of_nodes = self.of_ranks(above, alike.clamp(min=1), known)
        candidates = torch.count_nonzero(labels >= 0)
        return torch.stack(
            [of_nodes.sum(), *of_nodes.new_tensor([float(len(of_nodes)), float(candidates)])]
        )

    @abstractmethod
    def of_ranks(
        self, above: torch.Tensor, alike: torch.Tensor, known: torch.Tensor
    ) -> torch.Tensor:
        """Return (R,) float64 of nodes.

        Args:
            above: (R, P) how many candidates score higher than each edge.
            alike: (R, P) how many score as high, itself with them.
            known: (R, P) which are edges; each row begins with those.
        """

    def value(self, totals: np.ndarray) -> float | None:
        """See :class:`Metric`."""
        return float(totals[0] / totals[1]) if totals[1] else None

    def ranked_among(self, totals: np.ndarray) -> float | None:
        """See :class:`Metric`."""
        return float(totals[2] / totals[1]) if totals[1] else None

    def length(self, outputs: int) -> int:
        """See :class:`Metric`."""
        del outputs
        return 3


class NodeHits(NodeRanking):
    """The share of nodes that rank one of their held-out edges among the first K candidates.

    Args:
        most: K.
    """

    def __init__(self, most: int) -> None:
        self._most = most

    def of_ranks(
        self, above: torch.Tensor, alike: torch.Tensor, known: torch.Tensor
    ) -> torch.Tensor:
        """See :class:`NodeRanking`.

        Of n alike, m of them edges, none of these is among s places with chance C(n - m, s) /
        C(n, s).
        """
        first = _first(above, known)
        same = known & (above == first[:, None])
        edges, alike = same.sum(dim=1), (alike * same).amax(dim=1)
        places = torch.minimum((self._most - first).clamp(min=0), alike)
        left = (alike - edges).clamp(min=0)
        missed = torch.exp(
            _log_choose(left, torch.minimum(places, left)) - _log_choose(alike, places)
        )
        return 1 - missed.masked_fill(places > left, 0)


class NodeNdcg(NodeRanking):
    """The mean over nodes of the discounted gain of the first K, beside that of the best order.

    Args:
        most: K.

    Source: Järvelin and Kekäläinen, TOIS 2002, with gains of 0 and 1 and log2(1 + rank); of equal
    scores the mean over all orders, McSherry and Najork, ECIR 2008.
    """

    def __init__(self, most: int) -> None:
        self._most = most

    def of_ranks(
        self, above: torch.Tensor, alike: torch.Tensor, known: torch.Tensor
    ) -> torch.Tensor:
        """See :class:`NodeRanking`."""
        most = min(self._most, int((above + alike).max()) if above.numel() else 1)
        ranks = torch.arange(1, max(most, known.shape[1]) + 1, dtype=torch.float64)
        total = torch.cat([ranks.new_zeros(1), (1 / torch.log2(1 + ranks)).cumsum(0)])
        gain = (total[(above + alike).clamp(max=most)] - total[above.clamp(max=most)]) / alike
        best = total[known.sum(dim=1).clamp(max=self._most)]
        return gain.masked_fill(~known, 0).sum(dim=1) / best


class NodeMrr(NodeRanking):
    """The mean over nodes of 1 / rank of the first of their held-out edges among candidates.

    Of equal scores it is the mean of the best and the worst rank.
    """

    def of_ranks(
        self, above: torch.Tensor, alike: torch.Tensor, known: torch.Tensor
    ) -> torch.Tensor:
        """See :class:`NodeRanking`."""
        return 1 / _first(above + (alike + 1).double() / 2, known)


def _first(ranks: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    """Return the (R,) least of (R, P) ranks that are known."""
    most = torch.iinfo(ranks.dtype).max if not ranks.is_floating_point() else torch.inf
    return ranks.masked_fill(~known, most).amin(dim=1)


def _log_choose(count: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Return the logarithm of how many ways there are to choose so many of so many, float64."""
    n, k = count.double(), chosen.double()
    return torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)


def pairs_beside(metric: Metric | None) -> int:
    """Return how many pairs without an edge each held-out edge is judged beside."""
    return MRR_PAIRS if isinstance(metric, MeanReciprocalRank) else 1


def _against_rest(logits: torch.Tensor) -> torch.Tensor:
    """Return the (R, K) float64 scores of (R, C) logits."""
    wide = logits.double()
    if wide.shape[1] == 2:
        return wide[:, 1:] - wide[:, :1]
    columns = range(wide.shape[1])
    rest = [torch.cat([wide[:, :c], wide[:, c + 1 :]], dim=1).logsumexp(dim=1) for c in columns]
    return wide - torch.stack(rest, dim=1)


# ---- of numbers ---------------------------------------------------------------------------------


class _OfNumbers(Metric):
    """Base of metrics of a regression: of :func:`.number_sums`.

    Args:
        mean: Of the train nodes' labels.
        scale: Their deviation.
    """

    def __init__(self, mean: float = 0.0, scale: float = 1.0) -> None:
        self._mean = mean
        self._scale = scale

    def sums(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the (6,) sums."""
        return number_sums(logits, labels, self._mean, self._scale)

    def length(self, outputs: int) -> int:
        """See :class:`Metric`."""
        del outputs
        return 6


class RootMeanSquaredError(_OfNumbers):
    """The root of the mean squared error."""

    lower_is_better = True

    def value(self, totals: np.ndarray) -> float:
        """See :class:`Metric`."""
        count, *_, squares = totals
        return self._scale * math.sqrt(max(squares, 0.0) / count)


class MeanAbsoluteError(_OfNumbers):
    """The mean size of the error."""

    lower_is_better = True

    def value(self, totals: np.ndarray) -> float:
        """See :class:`Metric`."""
        count, _, _, _, sizes, _ = totals
        return float(self._scale * sizes / count)


class R2(_OfNumbers):
    """The share of the labels' variance that is explained; undefined where they are all equal."""

    def value(self, totals: np.ndarray) -> float | None:
        """See :class:`Metric`."""
        count, total, squares, _, _, left = totals
        spread = squares - total**2 / count
        # Rounding leaves something of nothing.
        return 1 - left / spread if spread > 1e-12 * squares else None


_NAMED: Final[Mapping[str, Callable[[], Metric]]] = MappingProxyType(
    {
        "balanced-accuracy": BalancedAccuracy,
        "macro-f1": MacroF1,
        "log-loss": LogLoss,
        "mrr": MeanReciprocalRank,
        "node-mrr": NodeMrr,
    }
)
_ERRORS: Final[Mapping[str, Callable[..., Metric]]] = MappingProxyType(
    {"rmse": RootMeanSquaredError, "mae": MeanAbsoluteError, "r2": R2}
)
_RANKINGS: Final[Mapping[str, Callable[..., Metric]]] = MappingProxyType(
    {"roc-auc": RocAuc, "average-precision": AveragePrecision}
)
#: By what comes before a number: of a class, of pairs, or of candidates.
_COUNTED: Final[Mapping[str, Callable[[int], Metric]]] = MappingProxyType(
    {
        **{"f1": F1, "recall": Recall, "precision": Precision},
        **{"hits": Hits, "node-hits": NodeHits, "node-ndcg": NodeNdcg},
    }
)
