"""What labels of nodes may be: classes, several labels each, or numbers; their form alone decides.

A :class:`LabelKind` knows what its labels look like, and which are unknown.

=============  ==========================================  ==================
task           labels                                      unlabelled
=============  ==========================================  ==================
`classes`      [N] integers: the class, from 0             -1
`multi-label`  [N, L] integers: 1 where the label applies  a row of -1 alone
`regression`   [N] floats                                  NaN
=============  ==========================================  ==================

Of several labels a node's may be known in part: -1 where one is not.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from types import MappingProxyType
from typing import ClassVar, Final

import numpy as np

from retexo_fl.errors import ConfigurationError
from retexo_fl.graph.checks import ArrayChecks, HasForm, largest_label
from retexo_fl.units import format_counted

#: Above any class.
MOST_LABEL: Final = 2**31 - 1
#: More numbers than this that do not count from 0 are taken for something else than classes.
MOST_NAMED: Final = 1000
#: No more digits than 64 bits hold.
_NUMERAL: Final = re.compile(r"[+-]?[0-9]{1,18}(\.0*)?")
#: Labels of one node; a model has an output for each.
_MOST_LABELS: Final = 65_536
#: Of numbers that are to be predicted, the largest size: that which float32 holds.
LARGEST: Final = float(np.finfo(np.float32).max)


class LabelKind(ABC):
    """What labels are for, and what follows from it.

    Attributes:
        name: Of the task.
        what: What labels are called in errors.
        form: Of the array, in errors.
        dtype: Of labels that are stored.
        ndim: Of the array.
        width: How many outputs a model has, whatever the labels; None where that differs.
        are_read: Labels of a source are read.
        are_classes: Labels are classes: these may have names, and a split may keep their shares.
    """

    name: ClassVar[str]
    what: ClassVar[str]
    form: ClassVar[str]
    dtype: ClassVar[type[np.generic]]
    ndim: ClassVar[int] = 1
    width: ClassVar[int | None] = None
    are_read: ClassVar[bool] = True
    are_classes: ClassVar[bool] = False

    @property
    def key(self) -> dict[str, str]:
        """How files name the task."""
        return {"task": self.name}

    @property
    def asked_for(self) -> str:
        """What to give to somebody who has given no label."""
        return self.form

    @abstractmethod
    def sizes_told(self, outputs: int) -> str:
        """Return how many outputs a model of them has, in words."""

    @abstractmethod
    def labelled(self, labels: np.ndarray) -> np.ndarray:
        """Return [N] bool: of which nodes a label is known."""

    @abstractmethod
    def unlabelled(self, nodes: int, outputs: int) -> np.ndarray:
        """Return the labels of so many unlabelled nodes, for a model with so many outputs."""

    @abstractmethod
    def outputs(self, labels: HasForm) -> int | None:
        """Return how many outputs a model has by the form of labels; None where by values."""

    def strata(self, labels: np.ndarray) -> np.ndarray:
        """Return [n] integers: nodes of the same number are split alike."""
        return np.zeros(len(labels), dtype=np.int64)

    def check_form(self, checks: ArrayChecks, name: str, labels: HasForm) -> None:
        """Check dtype and shape of labels, or of what a header says."""
        if labels.dtype.kind not in "iuf" or len(labels.shape) != self.ndim:
            checks.fail(name, f"got {labels.dtype} of shape {labels.shape}; expected {EXPECTED}")

    def check(self, checks: ArrayChecks, name: str, labels: np.ndarray, *, outputs: int) -> None:
        """Check labels of a model with so many outputs."""
        self.check_form(checks, name, labels)
        self._check_values(checks, name, labels, outputs)
        expected = self.outputs(labels)
        if expected not in {None, outputs}:
            checks.fail(name, f"there are {outputs} outputs for {expected}; expected as many")

    def check_fit(self, labels: HasForm, *, source: str) -> None:
        """Check that labels are of this kind.

        Raises:
            ConfigurationError: They are of another.
        """
        kind = kind_of(labels)
        if kind is not self:
            raise ConfigurationError(
                f"task: {self.name} does not fit the labels of {source}, which are {kind.what}; "
                f"expected {kind.name}"
            )

    @abstractmethod
    def _check_values(
        self, checks: ArrayChecks, name: str, labels: np.ndarray, outputs: int
    ) -> None:
        """Check values of labels whose form is checked."""


class _Classes(LabelKind):
    name = "classes"
    what = "one class for each node"
    form = "integers, one for each node"
    dtype = np.int64
    are_classes = True

    @property
    def key(self) -> dict[str, str]:
        """Nothing: files are older than other tasks."""
        return {}

    @property
    def asked_for(self) -> str:
        """See :class:`LabelKind`."""
        return "classes from 0"

    def sizes_told(self, outputs: int) -> str:
        """See :class:`LabelKind`."""
        return f"{outputs} {'class' if outputs == 1 else 'classes'}"

    def labelled(self, labels: np.ndarray) -> np.ndarray:
        """See :class:`LabelKind`."""
        known: np.ndarray = labels >= 0
        return known

    def unlabelled(self, nodes: int, outputs: int) -> np.ndarray:
        """See :class:`LabelKind`."""
        del outputs
        return np.full(nodes, -1)

    def outputs(self, labels: HasForm) -> int | None:
        """See :class:`LabelKind`."""
        del labels
        return None

    def strata(self, labels: np.ndarray) -> np.ndarray:
        """Return the classes."""
        return labels

    def _check_values(
        self, checks: ArrayChecks, name: str, labels: np.ndarray, outputs: int
    ) -> None:
        checks.labels(name, labels, num_classes=outputs)


class _Flags(LabelKind):
    name = "multi-label"
    what = "several labels for each node"
    form = "integers 0, 1 or -1, several for each node"
    dtype = np.int8
    ndim = 2

    def sizes_told(self, outputs: int) -> str:
        """See :class:`LabelKind`."""
        return format_counted(outputs, "label")

    def labelled(self, labels: np.ndarray) -> np.ndarray:
        """See :class:`LabelKind`."""
        known: np.ndarray = labels >= 0
        return np.asarray(known.any(axis=1))

    def unlabelled(self, nodes: int, outputs: int) -> np.ndarray:
        """See :class:`LabelKind`."""
        return np.full((nodes, outputs), -1, dtype=np.int8)

    def outputs(self, labels: HasForm) -> int:
        """See :class:`LabelKind`."""
        return int(labels.shape[1])

    def check_form(self, checks: ArrayChecks, name: str, labels: HasForm) -> None:
        """See :class:`LabelKind`."""
        super().check_form(checks, name, labels)
        if not 1 <= labels.shape[1] <= _MOST_LABELS:
            checks.fail(name, f"got {labels.dtype} of shape {labels.shape}; expected {EXPECTED}")

    def _check_values(
        self, checks: ArrayChecks, name: str, labels: np.ndarray, outputs: int
    ) -> None:
        del outputs
        rows, columns = np.nonzero((labels < -1) | (labels > 1))
        if len(rows):
            value = labels[rows[0], columns[0]]
            checks.fail(name, f"row {rows[0]} has {value}; expected 0, 1, or -1 for unknown")


class _Numbers(LabelKind):
    name = "regression"
    what = "numbers"
    form = "floats, one for each node"
    dtype = np.float64
    width = 1

    def sizes_told(self, outputs: int) -> str:
        """See :class:`LabelKind`."""
        del outputs
        return "numbers as labels"

    def labelled(self, labels: np.ndarray) -> np.ndarray:
        """See :class:`LabelKind`."""
        return np.asarray(~np.isnan(labels))

    def unlabelled(self, nodes: int, outputs: int) -> np.ndarray:
        """See :class:`LabelKind`."""
        del outputs
        return np.full(nodes, np.nan)

    def outputs(self, labels: HasForm) -> int | None:
        """See :class:`LabelKind`."""
        del labels
        return self.width

    def _check_values(
        self, checks: ArrayChecks, name: str, labels: np.ndarray, outputs: int
    ) -> None:
        del outputs
        wrong = np.flatnonzero(np.abs(labels) > LARGEST)
        if len(wrong):
            value = labels[wrong[0]]
            shown = "infinite" if np.isinf(value) else f"{value:g}"
            checks.fail(
                name,
                f"row {wrong[0]} is {shown}; expected numbers of at most {LARGEST:.2g} in size, "
                "which float32 holds, or NaN for none",
            )


class _Unread(_Classes):
    """Of a task that predicts edges, or of a graph whose labels are not looked at."""

    name = "links"
    are_read = False

    @property
    def key(self) -> dict[str, str]:
        """See :class:`LabelKind`."""
        return {"task": self.name}

    def check_fit(self, labels: HasForm, *, source: str) -> None:
        """Return: they may be anything."""


CLASSES: Final = _Classes()
MULTI_LABEL: Final = _Flags()
REGRESSION: Final = _Numbers()
#: Predicts edges; labels are not read.
LINKS: Final = _Unread()
#: By task, those that labels say by their form.
KINDS: Final[Mapping[str, LabelKind]] = MappingProxyType(
    {kind.name: kind for kind in (CLASSES, MULTI_LABEL, REGRESSION)}
)
EXPECTED: Final = f"{CLASSES.form}; {MULTI_LABEL.form}; or {REGRESSION.form}"


def labels_for(task: str) -> LabelKind:
    """Return what labels are for a task.

    Raises:
        ConfigurationError: There is no such task.
    """
    if task == LINKS.name:
        return LINKS
    if task not in KINDS:
        raise ConfigurationError(
            f"task: got {task!r:.60}; expected {', '.join(KINDS)} or {LINKS.name}"
        )
    return KINDS[task]


def kind_of(labels: HasForm) -> LabelKind:
    """Return what labels, or a header of labels, are by their form."""
    if labels.dtype.kind == "f":
        return REGRESSION
    return MULTI_LABEL if len(labels.shape) == 2 else CLASSES


def labelled(labels: np.ndarray) -> np.ndarray:
    """Return [N] bool: of which nodes a label is known."""
    return kind_of(labels).labelled(labels)


def count_outputs(
    checks: ArrayChecks, name: str, labels: np.ndarray, *, num_classes: int | None
) -> int:
    """Return how many outputs a model of a whole graph's labels has.

    Some node must be labelled, unless ``num_classes`` says how many there are.
    """
    kind = kind_of(labels)
    kind.check_form(checks, name, labels)
    if num_classes is None and not kind.labelled(labels).any():
        checks.fail(name, f"no node is labelled; expected {kind.asked_for}, or task {LINKS.name}")
    outputs = kind.outputs(labels)
    if outputs is not None:
        return outputs
    largest = largest_label(labels)
    if num_classes is None and largest >= len(labels):
        row = int(labels.argmax())
        checks.fail(name, f"row {row} is {largest}; expected fewer classes than nodes")
    return largest + 1 if num_classes is None else num_classes


def class_names(numbers: Iterable[int]) -> tuple[str, ...]:
    """Return the names of classes that do not count from 0, in their order; nothing of others.

    Classes that count from 0 are their own numbers. One class alone has no name either.

    Args:
        numbers: The labels that are there, each at least once; negative ones are none.
    """
    there = sorted({number for number in numbers if number >= 0})
    if len(there) < 2 or there[-1] == len(there) - 1:
        return ()
    return tuple(map(str, there))


def disjoint_classes(by_type: Mapping[str, Sequence[str]]) -> str:
    """Return which two types of nodes have no class in common, a clause; empty where all have.

    One model predicts the classes of all nodes, so that a class has to mean the same for all types.

    Args:
        by_type: Names, or numbers as text, of the classes of a type; of none, none.
    """
    there = {kind: classes for kind, classes in by_type.items() if len(classes)}
    for (one, mine), (other, theirs) in combinations(there.items(), 2):
        if not {*mine}.intersection(theirs):
            told = (f"{kind} {', '.join(c[:5])[:60]}" for kind, c in ((one, mine), (other, theirs)))
            return f"types {one} and {other} have no class in common: {', '.join(told)}"
    return ""


def counted_from_zero(
    checks: ArrayChecks, name: str, labels: np.ndarray, *, known: tuple[str, ...] = ()
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return labels of classes as numbers from 0, and what the classes are called.

    Args:
        checks: Names the source in errors.
        name: Of the labels.
        labels: [N] integers, -1 for unlabelled; or text, empty for unlabelled.
        known: Names of the classes by class; empty to find them.

    Returns:
        [N] integers, and the names; as they are and none, where they count from 0.
    """
    is_text = labels.dtype.kind == "U"
    if is_text and all(_NUMERAL.fullmatch(text) for text in np.unique(labels).tolist() if text):
        numerals = [int(text.partition(".")[0]) if text else -1 for text in labels.tolist()]
        labels, is_text = np.array(numerals, np.int64), False
    if not len(labels):
        return labels, ()
    there = np.unique(labels)
    if is_text and not known:
        known = tuple(text for text in there.tolist() if text)
    if known:
        place = {text: number for number, text in enumerate(known)} | {"": -1, "-1": -1}
        if odd := [label for label in there.tolist() if str(label) not in place]:
            row = int(np.flatnonzero(labels == odd[0])[0])
            checks.fail(name, f"row {row} is {odd[0]}; expected a class: {', '.join(known[:12])}")
        return np.array([place[str(label)] for label in labels.tolist()], np.int64), known
    names = class_names(there.tolist())
    if not names:
        return labels, ()
    # Of classes that begin at 0 one that is as large as there are nodes is refused, by its row.
    is_odd = there[0] < -1 or there[-1] >= (len(labels) if 0 in there else MOST_LABEL)
    if is_odd:
        return labels, ()
    if len(names) > MOST_NAMED:
        checks.fail(
            name,
            f"{len(names)} different numbers up to {there[-1]}; expected classes from 0, or at "
            f"most {MOST_NAMED} others",
        )
    numbers = np.searchsorted(there[there >= 0], labels)
    return np.where(labels < 0, -1, numbers), names
