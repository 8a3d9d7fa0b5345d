"""Counts and sums of one client over one set of nodes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from retexo_fl.training.metrics import metric_sums
from retexo_fl.training.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What a client reports about a set of nodes.

    Attributes:
        count: Labelled nodes of the set.
        loss_sum: Sum of their losses.
        correct: How many were classified rightly.
        metric_sums: What a metric other than accuracy adds up; empty without one.
    """

    count: int = 0
    loss_sum: float = 0.0
    correct: int = 0
    metric_sums: tuple[float, ...] = ()

    def __add__(self, other: Tally) -> Tally:
        """Return the tally of both sets together."""
        sums = self.metric_sums or other.metric_sums
        if self.metric_sums and other.metric_sums:
            sums = tuple(float(item) for item in np.add(self.metric_sums, other.metric_sums))
        return Tally(
            count=self.count + other.count,
            loss_sum=self.loss_sum + other.loss_sum,
            correct=self.correct + other.correct,
            metric_sums=sums,
        )


@dataclass(slots=True, kw_only=True)
class PassSums:
    """What a pass over train and validation rows adds up.

    Attributes:
        gradient_sum: (P,) of the train rows' summed loss; None without train rows.
        is_finite: Nothing in it is infinite or not a number.
        train: Of the train rows, with dropout; ``correct`` is not counted.
        validation: Of the validation rows, without dropout, where they are in the same pass.
    """

    gradient_sum: np.ndarray | None = None
    is_finite: bool = True
    train: Tally = Tally()
    validation: Tally = Tally()

    def add(self, other: PassSums) -> None:
        """Add the sums of further rows."""
        if self.gradient_sum is None:
            self.gradient_sum = other.gradient_sum
        elif other.gradient_sum is not None:
            self.gradient_sum += other.gradient_sum
        self.is_finite &= other.is_finite
        self.train += other.train
        self.validation += other.validation


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerUpdate:
    """What a client returns from a round.

    Attributes:
        update_sum: (P,) gradient of the summed loss over its train nodes, or with several local
            steps the change of the weights times the number of train nodes; zeros without any.
        train: Over the train nodes, at the incoming weights with dropout; ``correct`` is not
            counted.
        validation: Over the validation nodes, at the incoming weights, without dropout.
    """

    update_sum: np.ndarray
    train: Tally
    validation: Tally


@torch.no_grad()
def tally(logits: torch.Tensor, labels: torch.Tensor, recipe: Recipe) -> Tally:
    """Judge (R, C) logits of nodes with (R,) int64 labels; without any, no loss is asked."""
    if not len(labels):
        return Tally()
    sums: tuple[float, ...] = ()
    if recipe.metric is not None:
        sums = tuple(float(item) for item in metric_sums(recipe.metric, logits, labels))
    return Tally(
        count=len(labels),
        loss_sum=float(recipe.loss(logits, labels)),
        correct=int((logits.argmax(dim=1) == labels).sum()),
        metric_sums=sums,
    )
