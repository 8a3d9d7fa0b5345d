"""Outputs of a model against labels; the labels' form decides the task (`graph/labels.py`).

Labels as tensors: (R,) int64 classes, (R, L) int64 with 1, 0 or -1 for unknown, or (R,) float64
numbers. Outputs are (R, C) logits of classes or of labels, or (R, 1) numbers.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

NOTHING: Final = np.zeros(0)
#: More classes have no confusion matrix.
MOST_CONFUSED: Final = 256
#: Of :func:`number_sums`.
NUMBER_SUMS: Final = 6


def label_tensor(labels: np.ndarray) -> torch.Tensor:
    """Return labels as stored as a tensor."""
    dtype = np.float64 if labels.dtype.kind == "f" else np.int64
    return torch.from_numpy(np.asarray(labels, dtype))


def is_regression(labels: torch.Tensor) -> bool:
    """Return whether labels are numbers."""
    return labels.is_floating_point()


def count_right(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return how many nodes are right, a scalar: class, or all known labels; 0 of numbers."""
    if is_regression(labels):
        return labels.new_zeros((), dtype=torch.int64)
    if labels.ndim == 1:
        return (outputs.argmax(dim=1) == labels).sum()
    return ((labels < 0) | ((outputs > 0) == (labels == 1))).all(dim=1).sum()


def report_sums(
    outputs: torch.Tensor, labels: torch.Tensor, units: tuple[float, ...] = ()
) -> np.ndarray:
    """Return the (k,) float64 sums that a report of the test is made of; empty where there is none.

    Classes: (C, C) nodes by class and predicted class. Labels: (3, L) hits, predictions, positives.
    Numbers: :func:`number_sums` in ``units``.
    """
    if is_regression(labels):
        found = number_sums(outputs, labels, *units)
    elif labels.ndim == 2:
        found = label_counts(outputs, labels).reshape(-1)
    elif not confusion_length(outputs.shape[1]):
        return NOTHING
    else:
        places = labels * outputs.shape[1] + outputs.argmax(dim=1)
        found = torch.bincount(places, minlength=outputs.shape[1] ** 2)
    sums: np.ndarray = found.double().numpy()
    return sums


def confusion_length(classes: int) -> int:
    """Return how many sums :func:`report_sums` has of so many classes."""
    return classes**2 if classes <= MOST_CONFUSED else 0


def label_counts(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return (3, C) counts by class, or by label where known: hits, predictions, positives."""
    if labels.ndim == 1:
        predicted, classes = outputs.argmax(dim=1), outputs.shape[1]
        counted = (labels[predicted == labels], predicted, labels)
        return torch.stack([torch.bincount(nodes, minlength=classes) for nodes in counted])
    predicted, positive = (outputs > 0) & (labels >= 0), labels == 1
    return torch.stack([each.sum(dim=0) for each in (predicted & positive, predicted, positive)])


def number_sums(
    outputs: torch.Tensor, labels: torch.Tensor, mean: float = 0.0, scale: float = 1.0
) -> torch.Tensor:
    """Return (6,) float64: count, sum, sum of squares, and of errors the sum, of sizes, of squares.

    All of them are of numbers less ``mean``, over ``scale``. So they keep their digits however far
    from zero numbers are, or how small.

    Args:
        outputs: (R, 1), in the units of the labels.
        labels: (R,).
        mean: Of the train nodes' labels.
        scale: Their deviation.
    """
    errors = (outputs[:, 0].double() - labels) / scale
    numbers = (labels - mean) / scale
    count = labels.new_tensor(float(len(labels)))
    sums = (each.sum() for each in (numbers, numbers**2, errors, errors.abs(), errors**2))
    return torch.stack([count, *sums])


def indicators(labels: np.ndarray, outputs: int) -> np.ndarray:
    """Return the (n, C) float64 labels of n nodes that a basis is made of."""
    if labels.dtype.kind == "f":
        return labels.astype(np.float64)[:, None]
    found: np.ndarray = labels == 1
    if labels.ndim == 1:
        found = labels[:, None] == np.arange(outputs)
    return found.astype(np.float64)
