"""Classes that are rare or absent: their weights in the loss, and what the user should know.

Weights follow from the train nodes of all clients, which no client knows: each counts its own, the
server adds the counts up and sends the weights with every question that needs the loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from retexo_fl.config import RunConfig

#: Classes that a sentence names.
_MOST_NAMED: Final = 10
#: Uses of nodes, by their bits in :func:`classes_by_use`.
_BITS: Final = {"train": 1, "validation": 2, "test": 4}
#: That a class occurs among the nodes of every use.
ALL_USES: Final = sum(_BITS.values())


def given_weights(config: RunConfig) -> tuple[float, ...]:
    """Return the class weights that a configuration gives, or none."""
    if config.class_weights in {"none", "balanced"}:
        return ()
    return tuple(float(text) for text in config.class_weights.split(","))


def balanced_weights(counts: np.ndarray) -> tuple[float, ...]:
    """Return n / (k n_c) for (C,) counts n_c of train nodes, of which there are n in k classes.

    So the weights of the train nodes have a mean of one. A class without train nodes weighs one:
    only losses of validation nodes read it.
    """
    occurs = counts > 0
    weights = counts.sum() / (occurs.sum() * np.maximum(counts, 1))
    return tuple(np.where(occurs, weights, 1.0).tolist())


def class_counts(labels: np.ndarray, classes: int) -> tuple[float, ...]:
    """Return how many of (n,) labels are of each class."""
    return tuple(np.bincount(labels, minlength=classes).astype(np.float64).tolist())


def classes_by_use(labels: Mapping[str, np.ndarray], classes: int) -> tuple[int, ...]:
    """Return the (C,) uses that each class has nodes of: 1 train, 2 validation, 4 test, added.

    Args:
        labels: By use, the (n,) labels of its nodes.
        classes: C.
    """
    found = np.zeros(classes, np.int64)
    for use, bit in _BITS.items():
        found[np.unique(labels[use])] |= bit
    return tuple(found.tolist())


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
