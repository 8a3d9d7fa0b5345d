"""Counts and sums of one client over one set of nodes."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import numpy as np
import torch

from retexo_fl.training.judging import NOTHING, count_right, report_sums
from retexo_fl.training.metrics import metric_sums
from retexo_fl.training.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tally:
    """What a client reports about a set of nodes.

    Attributes:
        count: Labelled nodes of the set.
        loss_sum: Sum of their losses.
        correct: How many are right (:func:`.count_right`).
        metric_sums: (k,) float64, what a metric other than accuracy adds up; empty without one.
        report_sums: (k,) float64, what a report of the test is made of (:func:`.report_sums`), and
            behind it what each type of nodes adds up (:func:`sums_by_type`); empty of other nodes.
    """

    count: int = 0
    loss_sum: float = 0.0
    correct: int = 0
    metric_sums: np.ndarray = field(default_factory=lambda: NOTHING)
    report_sums: np.ndarray = field(default_factory=lambda: NOTHING)

    def __add__(self, other: Tally) -> Tally:
        """Return the tally of both sets together."""
        return Tally(
            count=self.count + other.count,
            loss_sum=self.loss_sum + other.loss_sum,
            correct=self.correct + other.correct,
            metric_sums=_added(self.metric_sums, other.metric_sums),
            report_sums=_added(self.report_sums, other.report_sums),
        )

    def __eq__(self, other: object) -> bool:
        """Return whether all counts and sums are equal."""
        if not isinstance(other, Tally):
            return NotImplemented
        names = [item.name for item in fields(self)]
        return all(np.array_equal(getattr(self, n), getattr(other, n)) for n in names)

    __hash__ = None  # type: ignore[assignment]


def _added(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    if not one.size or not other.size:
        return one if one.size else other
    both: np.ndarray = one + other
    return both


@dataclass(slots=True, kw_only=True)
class PassSums:
    """What a pass over train and validation rows adds up.

    Attributes:
        gradient_sum: (P,) of the train rows' summed loss; None without train rows.
        spans: (n, 2) places outside which it is zero, ascending and apart; None if not known.
        is_finite: Nothing in it is infinite or not a number.
        train: Of the train rows, with dropout.
        validation: Of the validation rows, without dropout, where they are in the same pass.
    """

    gradient_sum: np.ndarray | None = None
    spans: np.ndarray | None = None
    is_finite: bool = True
    train: Tally = field(default_factory=Tally)
    validation: Tally = field(default_factory=Tally)

    def add(self, other: PassSums) -> None:
        """Add the sums of further rows."""
        if self.gradient_sum is None:
            self.gradient_sum, self.spans = other.gradient_sum, other.spans
        elif other.gradient_sum is not None:
            self.gradient_sum += other.gradient_sum
            self.spans = None
        self.is_finite &= other.is_finite
        self.train += other.train
        self.validation += other.validation


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerUpdate:
    """What a client returns from a round.

    Attributes:
        update_sum: (P,) gradient of the summed loss over its train nodes, or with several local
            steps the change of the weights times the number of train nodes; zeros without any.
        spans: As of :class:`PassSums`.
        train: Over the train nodes, at the incoming weights with dropout; layer by layer with
            ``correct``.
        validation: Over the validation nodes, at the incoming weights, without dropout.
        cached: What was read for it where devices cache features (:attr:`.CachedRows.numbers`);
            empty where none does.
    """

    update_sum: np.ndarray
    spans: np.ndarray | None = None
    train: Tally
    validation: Tally
    cached: tuple[int, ...] = ()


def sums_by_type(
    outputs: torch.Tensor, labels: torch.Tensor, recipe: Recipe, of_types: np.ndarray | None
) -> np.ndarray:
    """Return what nodes of each type add up, flat.

    Args:
        outputs: (R, C) of some nodes, in the units of labels.
        labels: Of the nodes, as :mod:`.judging` has them.
        recipe: With the metric.
        of_types: (K, R) bool; None where not several types have labels.

    Returns:
        (K (2 + m),) float64: how many nodes of a type there are, how many of them are right, and
        the m sums of the metric; empty where not several types have labels.
    """
    found = [NOTHING]
    for rows in map(np.flatnonzero, () if of_types is None else of_types):
        judged = outputs[rows], labels[rows]
        metric = NOTHING if recipe.metric is None else metric_sums(recipe.metric, *judged)
        found.append(np.array([len(rows), int(count_right(*judged)), *metric], np.float64))
    return np.concatenate(found)


def tallies_by_type(sums: np.ndarray, types: int) -> list[Tally]:
    """Return what :func:`sums_by_type` of so many types add up to: tallies without losses."""
    return [
        Tally(count=int(row[0]), correct=int(row[1]), metric_sums=row[2:])
        for row in sums.reshape(types, -1)
    ]


@torch.no_grad()
def tally(
    outputs: torch.Tensor,
    labels: torch.Tensor,
    recipe: Recipe,
    which: str,
    *,
    of_types: np.ndarray | None = None,
) -> Tally:
    """Judge (R, C) outputs of nodes with R labels; without any, no loss is asked.

    Args:
        outputs: Of the nodes.
        labels: Of the nodes, as :mod:`.judging` has them.
        recipe: Loss and metric.
        which: Use of the nodes; of the ``test`` a report is made.
        of_types: As of :func:`sums_by_type`.
    """
    if not len(labels):
        return Tally()
    metric, answers = recipe.metric, recipe.in_units(outputs)
    report = NOTHING
    if which == "test":
        report = report_sums(answers, labels, recipe.label_facts)
    if which == "test" and of_types is not None:
        report = np.concatenate([report, sums_by_type(answers, labels, recipe, of_types)])
    return Tally(
        count=len(labels),
        loss_sum=float(recipe.loss(outputs, labels)),
        correct=int(count_right(outputs, labels)),
        metric_sums=NOTHING if metric is None else metric_sums(metric, answers, labels),
        report_sums=report,
    )
