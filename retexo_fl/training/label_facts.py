"""What a loss knows of all clients' labels, and what the user should: rare or absent classes.

Weights of classes, and the units of numbers, follow from the train nodes of all clients, which no
client knows: each adds up its own, the server adds up all and sends what follows with every
question that needs the loss.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import ClassVar, Final

import numpy as np

from retexo_fl.errors import LocalProtocolError
from retexo_fl.graph.recipes.moments import Moments
from retexo_fl.units import counted

#: Classes that a sentence names.
_MOST_NAMED: Final = 10
#: Uses of nodes, by their bits in :func:`classes_by_use`.
TRAIN: Final = 1
_BITS: Final = {"train": TRAIN, "validation": 2, "test": 4}
#: That a class occurs among the nodes of every use.
ALL_USES: Final = sum(_BITS.values())

#: Numbers are added as multiples of 2**-200: float32 holds none that is smaller.
_FINEST_BITS: Final = 200
#: Of their sum, which stays below 2**(128 + 200) times the nodes; the sum of squares is above.
_TOTAL_BITS: Final = 384
#: Of both: squares stay below 2**(256 + 400) times the nodes.
_MOMENT_BITS: Final = 1088
#: Sums of digits are exact in float64 for two million clients.
_DIGIT_BITS: Final = 32
_DIGITS: Final = _MOMENT_BITS // _DIGIT_BITS
#: Sums of digits stay exact.
_MOST_DIGITS: Final = 2**53


class LabelFacts(ABC):
    """What a loss knows of all clients' labels, and the sums over train nodes that it follows from.

    Of a model with so many outputs: classes, labels, or one number.

    Attributes:
        words: Words of 64 bits where the sums are digits of one whole number, else 0.
        num_units: How many numbers outputs of a model cannot be read without; they are kept with
            its layers. All facts, or none of them.
    """

    words: ClassVar[int] = 0
    num_units: ClassVar[int] = 0

    @abstractmethod
    def sums(self, labels: np.ndarray, outputs: int) -> tuple[float, ...]:
        """Return what a client adds up of the labels of its train nodes."""

    @abstractmethod
    def num_sums(self, outputs: int) -> int:
        """Return how many :meth:`sums` there are."""

    @abstractmethod
    def why_none(self, sums: tuple[float, ...], nodes: int) -> str:
        """Return why so many sums cannot be of so many train nodes; empty where they can."""

    @abstractmethod
    def of_sums(self, sums: np.ndarray, nodes: int) -> tuple[float, ...]:
        """Return what follows for the loss from the sums over all clients' train nodes.

        Args:
            sums: Added up in client order.
            nodes: Train nodes.
        """

    @abstractmethod
    def least(self, outputs: int) -> list[float]:
        """Return the least that each fact can be."""

    def units(self, facts: tuple[float, ...]) -> tuple[float, ...]:
        """Return those facts without which outputs cannot be read."""
        return facts if self.num_units else ()

    def check(self, facts: Sequence[float], outputs: int) -> None:
        """Refuse what cannot be facts.

        Raises:
            LocalProtocolError: They are of another number, or one is what no loss can have.
        """
        least = self.least(outputs)
        if len(facts) != len(least) or any(
            not (math.isfinite(fact) and fact >= bound)
            for fact, bound in zip(facts, least, strict=True)
        ):
            raise LocalProtocolError(
                f"label-facts has {counted(len(facts), 'number')}; expected {len(least)} finite "
                "ones that can be weights, or mean and scale of labels"
            )


class NoFacts(LabelFacts):
    """Of a loss that depends on a client's own labels alone."""

    def sums(self, labels: np.ndarray, outputs: int) -> tuple[float, ...]:
        """Return nothing."""
        del labels, outputs
        return ()

    def num_sums(self, outputs: int) -> int:
        """Return 0."""
        del outputs
        return 0

    def why_none(self, sums: tuple[float, ...], nodes: int) -> str:
        """Return nothing: there are no sums."""
        del sums, nodes
        return ""

    def of_sums(self, sums: np.ndarray, nodes: int) -> tuple[float, ...]:
        """Return nothing."""
        del sums, nodes
        return ()

    def least(self, outputs: int) -> list[float]:
        """Return nothing."""
        del outputs
        return []


class _Weights(LabelFacts):
    """Base of weights, which follow from counts of train nodes."""

    def why_none(self, sums: tuple[float, ...], nodes: int) -> str:
        """See :class:`LabelFacts`."""
        totals = self._totals(sums)
        if self._are_of(totals, nodes) and not any(count < 0 for count in sums):
            return ""
        return f"add up to {totals.tolist()}; expected counts of {nodes} train nodes"

    def least(self, outputs: int) -> list[float]:
        """Return 0 for each weight."""
        return [0.0] * outputs

    @abstractmethod
    def _totals(self, sums: tuple[float, ...]) -> np.ndarray:
        """Return counts of which :meth:`_are_of` knows how many there can be."""

    @abstractmethod
    def _are_of(self, totals: np.ndarray, nodes: int) -> bool:
        """Return whether they can be of so many train nodes."""


class ClassWeights(_Weights):
    """Balanced weights of classes, from (C,) counts of train nodes by class."""

    def sums(self, labels: np.ndarray, outputs: int) -> tuple[float, ...]:
        """Return the counts."""
        return tuple(np.bincount(labels, minlength=outputs).astype(np.float64).tolist())

    def num_sums(self, outputs: int) -> int:
        """Return C."""
        return outputs

    def of_sums(self, sums: np.ndarray, nodes: int) -> tuple[float, ...]:
        """Return the weights."""
        del nodes
        return balanced_weights(sums)

    def _totals(self, sums: tuple[float, ...]) -> np.ndarray:
        return np.asarray(sums)

    def _are_of(self, totals: np.ndarray, nodes: int) -> bool:
        return bool(totals.sum() == nodes)


class PositiveWeights(_Weights):
    """Weights of each label's positives: its negatives over them; 1 without any.

    From (2 L,) counts of train nodes: positives of each label, then negatives.
    """

    def sums(self, labels: np.ndarray, outputs: int) -> tuple[float, ...]:
        """Return the counts."""
        del outputs
        counts = np.concatenate([(labels == 1).sum(axis=0), (labels == 0).sum(axis=0)])
        return tuple(counts.astype(np.float64).tolist())

    def num_sums(self, outputs: int) -> int:
        """Return 2 L."""
        return 2 * outputs

    def of_sums(self, sums: np.ndarray, nodes: int) -> tuple[float, ...]:
        """Return the weights."""
        del nodes
        positives, negatives = np.split(sums, 2)
        weights = np.where(positives > 0, negatives / np.maximum(positives, 1), 1.0)
        return tuple(weights.tolist())

    def _totals(self, sums: tuple[float, ...]) -> np.ndarray:
        both: np.ndarray = np.asarray(sums).reshape(2, -1).sum(axis=0)
        return both

    def _are_of(self, totals: np.ndarray, nodes: int) -> bool:
        return bool((totals <= nodes).all())


class MeanAndScale(LabelFacts):
    """Mean and standard deviation of numbers, from the digits of :func:`moment_number`."""

    words: ClassVar[int] = _MOMENT_BITS // 64
    num_units: ClassVar[int] = 2

    def sums(self, labels: np.ndarray, outputs: int) -> tuple[float, ...]:
        """Return the digits."""
        del outputs
        return digits_of(moment_number(labels))

    def num_sums(self, outputs: int) -> int:
        """Return how many digits there are."""
        del outputs
        return _DIGITS

    def why_none(self, sums: tuple[float, ...], nodes: int) -> str:
        """See :class:`LabelFacts`."""
        are_digits = all(digit.is_integer() and 0 <= digit < _MOST_DIGITS for digit in sums)
        if are_digits and moments_of(number_of_digits(sums), nodes) is not None:
            return ""
        return f"is {list(sums)[:9]}; expected digits of a sum, and of one of squares"

    def of_sums(self, sums: np.ndarray, nodes: int) -> tuple[float, ...]:
        """Return both, each rounded once; a deviation of 1 for equal numbers."""
        moments = moments_of(number_of_digits(sums.tolist()), nodes)
        assert moments is not None, "checked when it came"
        return moments.mean, moments.deviation or 1.0

    def least(self, outputs: int) -> list[float]:
        """Return that a mean may be negative, and a scale is above 0."""
        del outputs
        return [-math.inf, sys.float_info.min]


def balanced_weights(counts: np.ndarray) -> tuple[float, ...]:
    """Return n / (k n_c) for (C,) counts n_c of train nodes, of which there are n in k classes.

    So the weights of the train nodes have a mean of one. A class without train nodes weighs one:
    only losses of validation nodes read it.
    """
    occurs = counts > 0
    weights = counts.sum() / (occurs.sum() * np.maximum(counts, 1))
    return tuple(np.where(occurs, weights, 1.0).tolist())


def uses_of(counts: Mapping[str, int]) -> int:
    """Return the uses of which there is anything, by its bits: 1 train, 2 validation, 4 test."""
    return sum(bit for use, bit in _BITS.items() if counts[use])


def classes_by_use(labels: Mapping[str, np.ndarray], classes: int) -> tuple[int, ...]:
    """Return the (C,) uses that each class has nodes of: 1 train, 2 validation, 4 test, added.

    Of labels, nodes that have them; numbers are one class.

    Args:
        labels: By use, those of its nodes, as stored.
        classes: C.
    """
    found = np.zeros(classes, np.int64)
    for use, bit in _BITS.items():
        of_use = labels[use]
        if of_use.ndim == 2:
            found[(of_use == 1).any(axis=0)] |= bit
        elif of_use.dtype.kind == "f":
            found[: len(of_use)] |= bit
        else:
            found[np.unique(of_use)] |= bit
    return tuple(found.tolist())


def class_counts(labels: Mapping[str, np.ndarray], classes: int) -> tuple[int, ...]:
    """Return the (3 C,) nodes of each class: of train, then validation, then test nodes.

    Of several labels a node counts for each that it has; numbers are one class.
    """
    found: list[int] = []
    for use in _BITS:
        of_use = labels[use]
        if of_use.ndim == 2:
            found.extend((of_use == 1).sum(axis=0).tolist())
        elif of_use.dtype.kind == "f":
            found.extend([len(of_use)] + [0] * (classes - 1))
        else:
            found.extend(np.bincount(of_use, minlength=classes).tolist())
    return tuple(found)


def uses_by_class(counts: Sequence[int]) -> tuple[int, ...]:
    """Return the (C,) uses of :func:`classes_by_use` that follow from :func:`class_counts`."""
    table = np.asarray(counts).reshape(len(_BITS), -1) > 0
    found: np.ndarray = np.asarray([*_BITS.values()]) @ table
    return tuple(found.tolist())


# ---- sums of numbers, however far from zero --------------------------------------------------


def moment_number(numbers: np.ndarray) -> int:
    """Return the sum of numbers and that of their squares, exactly, as one whole number.

    Such whole numbers of several clients add up to that of all their numbers: no split and no order
    of additions shows in what follows, and nothing is lost of numbers that are far from zero.

    Args:
        numbers: (n,) float64, of a size that float32 holds.
    """
    on_grid = np.ldexp(np.rint(np.ldexp(numbers, _FINEST_BITS)), -_FINEST_BITS)
    moments = Moments.of(on_grid)
    total = moments.total * 2**_FINEST_BITS
    squares = moments.squares * 2 ** (2 * _FINEST_BITS)
    assert total.denominator == squares.denominator == 1
    number: int = total.numerator + (squares.numerator << _TOTAL_BITS)
    return number


def moments_of(number: int, nodes: int) -> Moments | None:
    """Return what :func:`moment_number` was made of; None where no numbers have these sums."""
    half = 1 << _TOTAL_BITS - 1
    total = (number + half) % (2 * half) - half
    squares = (number - total) >> _TOTAL_BITS
    if total * total > nodes * squares:
        return None
    return Moments(
        count=nodes,
        total=Fraction(total, 2**_FINEST_BITS),
        squares=Fraction(squares, 2 ** (2 * _FINEST_BITS)),
    )


def digits_of(number: int) -> tuple[float, ...]:
    """Return a whole number from 0 as digits, the lowest first."""
    least = (1 << _DIGIT_BITS) - 1
    return tuple(float(number >> _DIGIT_BITS * place & least) for place in range(_DIGITS))


def number_of_digits(digits: Sequence[float]) -> int:
    """Return the whole number of which these are the digits, or sums of digits."""
    return sum(int(digit) << _DIGIT_BITS * place for place, digit in enumerate(digits))


def absent_classes(occurring: Sequence[Sequence[int]]) -> tuple[str, ...]:
    """Return a sentence for each use that has nodes, but none of some classes.

    Args:
        occurring: By client, :func:`classes_by_use`; clients may be missing.
    """
    if not occurring:
        return ()
    found = np.bitwise_or.reduce(np.asarray(occurring, np.int64), axis=0)
    sentences = []
    for use, bit in _BITS.items():
        absent = np.flatnonzero(found & bit == 0).tolist()
        if absent and len(absent) < len(found):
            sentences.append(f"no {use} node is of {_named(absent)}")
    return tuple(sentences)


def only_prediction(confusion: np.ndarray) -> tuple[str, ...]:
    """Return a sentence where (C, C) counts have nodes of several classes predicted as one."""
    predicted = np.flatnonzero(confusion.sum(axis=0))
    if len(predicted) != 1 or np.count_nonzero(confusion.sum(axis=1)) < 2:
        return ()
    return (f"the model predicts class {predicted[0]} for every test node",)


def _named(classes: list[int]) -> str:
    numbers = ", ".join(map(str, classes[:_MOST_NAMED]))
    more = f" and {len(classes) - _MOST_NAMED} more" if len(classes) > _MOST_NAMED else ""
    return f"class{'' if len(classes) == 1 else 'es'} {numbers}{more}"
