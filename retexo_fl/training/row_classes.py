"""Rows that cross as a noised class of a node's own features (``row-dp``).

Before anything is exchanged, each node's coordinates z (:mod:`.basis`) are put into one of C
classes by a ridge regression of the labels on z, from sums over train nodes (:mod:`.ridge`)::

    k = argmax of z W + b

What crosses is not z but a row for a class c that is drawn anew, k or another one: by k-ary
randomised response, ::

    P(c = k) = e^epsilon / (e^epsilon + C - 1),   every other class 1 / (e^epsilon + C - 1)

So whatever a node's features were, c is at most e^epsilon times as likely: epsilon-differential
privacy of all features of a node, against all peers together, since all get the same c; and
nothing else of a node crosses. The row of c is what is expected of a node that sent c: the mean
of class means, each with its share among train nodes times P(c | k).

Of **train nodes** that is not all: W, b, these means and the basis are made of their features and
sent to all clients without noise (``update-dp`` goes with no basis).

Symbols: d coordinates, C classes, n nodes.

Sources: Warner, JASA 60 (1965); Kairouz, Bonawitz and Ramage, ICML 2016, section 3.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from retexo_fl.errors import RemoteProtocolError
from retexo_fl.training.ridge import class_means, fit
from retexo_fl.training.stage_model import ModelShape

_WORDS: Final = 2**64
#: Of what e**epsilon loses in float64, many times.
_SLACK: Final = 2.0**-40


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowClasses:
    """Which class a node's coordinates are of, and the row that a class becomes.

    Attributes:
        weight: (d, C) W.
        bias: (C,) b.
        rows: (C, d) that cross for each class that may be sent.
    """

    weight: np.ndarray
    bias: np.ndarray
    rows: np.ndarray

    @classmethod
    def of_sums(cls, sums: np.ndarray, shape: ModelShape, epsilon: float) -> Self:
        """Make them of (:func:`.gram_values`,) :func:`.gram_sums` of all clients' train nodes.

        Raises:
            TrainingDiverged: As :func:`.ridge.fit`.
        """
        width, classes = shape.inputs, shape.classes
        found = fit(sums, width=width, classes=classes)
        shares, means = class_means(sums, width=width, classes=classes)
        own = chance_of_own(epsilon, classes)
        likely = np.full((classes, classes), own * math.exp(-epsilon))
        np.fill_diagonal(likely, own)
        likely *= shares[:, None]
        rows = (likely / likely.sum(axis=0)).T @ means
        return cls(weight=found.weight, bias=found.bias, rows=rows)

    def told(self) -> np.ndarray:
        """Return them flat: (:func:`told_values`,)."""
        return np.concatenate([self.weight.reshape(-1), self.bias, self.rows.reshape(-1)])

    @classmethod
    def of_told(cls, told: np.ndarray, shape: ModelShape) -> Self:
        """Read what :meth:`told` returned.

        Raises:
            RemoteProtocolError: There are not so many finite values.
        """
        width, classes = shape.inputs, shape.classes
        if len(told) != told_values(shape):
            raise RemoteProtocolError(
                f"classes of rows have {len(told)} values; expected {told_values(shape)}"
            )
        if not np.isfinite(told).all():
            raise RemoteProtocolError("classes of rows hold values that are not finite")
        cut = width * classes
        weight, bias, rows = np.split(told, [cut, cut + classes])
        return cls(
            weight=weight.reshape(width, classes), bias=bias, rows=rows.reshape(classes, width)
        )

    def of(self, coordinates: np.ndarray) -> np.ndarray:
        """Return the (n,) classes of (n, d) coordinates; of equal ones the first."""
        wide = coordinates.astype(np.float64)
        found: np.ndarray = (wide @ self.weight.astype(np.float64) + self.bias).argmax(axis=1)
        return found


def noised(classes: np.ndarray, epsilon: float, words: np.ndarray, *, count: int) -> np.ndarray:
    """Return (n,) classes to be sent, each drawn with its probability above.

    Args:
        classes: (n,) from 0.
        epsilon: Above 0.
        words: (n,) uint64, uniform.
        count: C.
    """
    if count == 1:
        return classes
    share = share_of_other(epsilon, count)
    # Words below (C - 1) shares are those of other classes, the first share of the first.
    other = (words // np.uint64(share)).astype(np.float64)
    other = np.minimum(other, count - 1).astype(np.int64)
    return np.where(other < count - 1, other + (other >= classes), classes)


def chance_of_own(epsilon: float, count: int) -> float:
    """Return P(c = k): how likely a node's own class is sent."""
    return 1.0 / (1.0 + (count - 1) * math.exp(-epsilon))


def promise(epsilon: float, count: int) -> str:
    """Return what is promised, of whom, in words."""
    return (
        f"features of each node but train nodes have an epsilon of {epsilon:g} against peers, who "
        f"are told one of {count} classes, its own with a chance of "
        f"{chance_of_own(epsilon, count):.0%}; sums over train nodes have none, nor has what the "
        "server makes of them and tells (row-dp, experimental)"
    )


def share_of_other(epsilon: float, count: int) -> int:
    """Return how many of 2**64 words give one certain other class: rounded up, never down.

    So a class is sent of a node that has it at most e**epsilon times as often as of another node.
    """
    return math.ceil(_WORDS / (math.exp(epsilon) + count - 1) * (1 + _SLACK))


def told_values(shape: ModelShape) -> int:
    """Return how many values :meth:`RowClasses.told` has; 0 where rows cross as they are."""
    return shape.classes * (2 * shape.inputs + 1) if shape.tells_classes else 0


def told_with_basis(told: np.ndarray, basis: np.ndarray) -> np.ndarray:
    """Return a basis as it travels (:class:`.BasisForm`), behind classes of rows.

    Args:
        told: (:func:`told_values`,) as :meth:`RowClasses.told` returns them.
        basis: (b,) bytes (uint8), or values of a float dtype, which ``told`` gets, too.
    """
    if basis.dtype == np.uint8:
        told = told.astype("<f4").view(np.uint8)
    return np.concatenate([told.astype(basis.dtype), basis])


def parted_basis(array: np.ndarray, shape: ModelShape) -> tuple[np.ndarray, np.ndarray]:
    """Part what :func:`told_with_basis` returned; of other shapes nothing comes before a basis.

    Returns:
        (:func:`told_values`,) values, or fewer where the array is shorter, and the basis.
    """
    values = told_values(shape)
    if array.dtype != np.uint8:
        return array[:values], array[values:]
    told = np.ascontiguousarray(array[: 4 * values])
    return told[: len(told) // 4 * 4].view("<f4"), array[4 * values :]
