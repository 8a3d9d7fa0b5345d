"""What labels of nodes may be: classes, several labels each, or numbers; told by their form alone.

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
from collections.abc import Iterable
from typing import Final

import numpy as np

from retexo_fl.errors import ConfigurationError
from retexo_fl.graph.checks import ArrayChecks, HasForm, largest_label
from retexo_fl.units import format_counted

CLASSES: Final = "classes"
MULTI_LABEL: Final = "multi-label"
REGRESSION: Final = "regression"
#: Predicts edges; labels are not read.
LINKS: Final = "links"
#: What labels are called in errors.
KINDS: Final = {
    CLASSES: "one class for each node",
    MULTI_LABEL: "several labels for each node",
    REGRESSION: "numbers",
}
#: Above any class.
MOST_LABEL: Final = 2**31 - 1
#: More numbers than this that do not count from 0 are taken for something else than classes.
MOST_NAMED: Final = 1000
#: No more digits than 64 bits hold.
_NUMERAL: Final = re.compile(r"[+-]?[0-9]{1,18}(\.0*)?")
#: Labels of one node; a model has an output for each.
_MOST_LABELS: Final = 65_536
_FORMS: Final = {
    CLASSES: "integers, one for each node",
    MULTI_LABEL: "integers 0, 1 or -1, several for each node",
    REGRESSION: "floats, one for each node",
}
#: Of numbers that are to be predicted, the largest size: that which float32 holds.
LARGEST: Final = float(np.finfo(np.float32).max)
EXPECTED: Final = f"{_FORMS[CLASSES]}; {_FORMS[MULTI_LABEL]}; or {_FORMS[REGRESSION]}"


def task_of(labels: HasForm) -> str:
    """Return the task that labels, or a header of labels, are for."""
    if labels.dtype.kind == "f":
        return REGRESSION
    return MULTI_LABEL if len(labels.shape) == 2 else CLASSES


def sizes_told(features: int, outputs: int, task: str) -> str:
    """Return how wide features and labels are, in words."""
    told = format_counted(features, "feature")
    if task == REGRESSION:
        return f"{told}, numbers as labels"
    if task == MULTI_LABEL:
        return f"{told}, {format_counted(outputs, 'label')}"
    return f"{told}, {outputs} {'class' if outputs == 1 else 'classes'}"


def labelled(labels: np.ndarray) -> np.ndarray:
    """Return [N] bool: of which nodes a label is known."""
    task = task_of(labels)
    known: np.ndarray = labels >= 0
    if task == REGRESSION:
        known = np.asarray(~np.isnan(labels))
    return np.asarray(known.any(axis=1)) if task == MULTI_LABEL else known


def unknown_labels(task: str, nodes: int, outputs: int) -> np.ndarray:
    """Return the labels of so many unlabelled nodes, for a model with so many outputs."""
    match task:
        case "regression":
            return np.full(nodes, np.nan)
        case "multi-label":
            return np.full((nodes, outputs), -1, dtype=np.int8)
        case _:
            return np.full(nodes, -1)


def check_label_form(checks: ArrayChecks, name: str, labels: HasForm) -> None:
    """Check dtype and shape of labels, or of what a header says."""
    task, shape = task_of(labels), labels.shape
    fits = labels.dtype.kind in "iuf" and len(shape) == (2 if task == MULTI_LABEL else 1)
    if not fits or (task == MULTI_LABEL and not 1 <= shape[1] <= _MOST_LABELS):
        checks.fail(name, f"got {labels.dtype} of shape {shape}; expected {EXPECTED}")


def check_labels(checks: ArrayChecks, name: str, labels: np.ndarray, *, outputs: int) -> None:
    """Check labels of a model with so many outputs: classes, labels, or one number."""
    check_label_form(checks, name, labels)
    match task_of(labels):
        case "regression":
            _check_sizes(checks, name, labels)
            expected = 1
        case "multi-label":
            rows, columns = np.nonzero((labels < -1) | (labels > 1))
            if len(rows):
                value = labels[rows[0], columns[0]]
                checks.fail(name, f"row {rows[0]} has {value}; expected 0, 1, or -1 for unknown")
            expected = labels.shape[1]
        case _:
            checks.labels(name, labels, num_classes=outputs)
            return
    if outputs != expected:
        checks.fail(name, f"there are {outputs} outputs for {expected}; expected as many")


def _check_sizes(checks: ArrayChecks, name: str, numbers: np.ndarray) -> None:
    wrong = np.flatnonzero(np.abs(numbers) > LARGEST)
    if len(wrong):
        value = numbers[wrong[0]]
        shown = "infinite" if np.isinf(value) else f"{value:g}"
        checks.fail(
            name,
            f"row {wrong[0]} is {shown}; expected numbers of at most {LARGEST:.2g} in size, which "
            "float32 holds, or NaN for none",
        )


def count_outputs(
    checks: ArrayChecks, name: str, labels: np.ndarray, *, num_classes: int | None
) -> int:
    """Return how many outputs a model of a whole graph's labels has.

    Some node must be labelled, unless ``num_classes`` says how many there are.
    """
    check_label_form(checks, name, labels)
    task = task_of(labels)
    if num_classes is None and not labelled(labels).any():
        told = "classes from 0" if task == CLASSES else _FORMS[task]
        checks.fail(name, f"no node is labelled; expected {told}, or task {LINKS}")
    if task != CLASSES:
        return 1 if task == REGRESSION else int(labels.shape[1])
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


def stored_labels(labels: np.ndarray) -> np.ndarray:
    """Return labels in the dtype of their task: int64, int8 or float64."""
    dtypes = {CLASSES: np.int64, MULTI_LABEL: np.int8, REGRESSION: np.float64}
    return labels.astype(dtypes[task_of(labels)])


def check_task(labels: np.ndarray, task: str, *, source: str) -> None:
    """Check that labels are for a task.

    Raises:
        ConfigurationError: They are for another.
    """
    found = task_of(labels)
    if task not in {found, LINKS}:
        raise ConfigurationError(
            f"task: {task} does not fit the labels of {source}, which are {KINDS[found]}; expected "
            f"{found}"
        )
