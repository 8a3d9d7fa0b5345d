"""Ridge regression of labels on what the last layer reads, from sums over clients: no rounds.

Symbols: n train nodes, D width of the rows that the layer reads, C classes. With rows z and labels
Y as (n, C) indicators, A = [z | 1], every client adds up its own nodes' part of::

    G = A' A   ((D + 1, D + 1), of which the upper triangle travels),   B = A' Y   ((D + 1, C))

From their sums the server knows mean, covariance and class means of all train nodes, so it
minimises ``|Y - z W - b|^2 + penalty |W|^2`` as if it held the rows. The penalty is the one of a
fixed row of candidates with the least generalised cross-validation, which needs no other node, so
no client is asked again.

Source: Hoerl and Kennard, Technometrics 12 (1970); Golub, Heath and Wahba, Technometrics 21 (1979),
equation 1.4, for the penalty.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from retexo_fl.graph.features import Features

#: Candidates for the penalty, as shares of the rows' mean variance over coordinates, times n.
_PENALTIES: Final = tuple(10.0 ** (step / 4 - 6) for step in range(29))


#: Of a sum under masks.
MASKED_GRAM_BITS: Final = 40


def gram_values(width: int, classes: int) -> int:
    """Return how many values :func:`gram_sums` has."""
    return (width + 1) * (width + 2) // 2 + (width + 1) * classes


def gram_sums(rows: Features, labels: np.ndarray, classes: int) -> np.ndarray:
    """Return a client's part of G and B, flat: (:func:`gram_values`,) float64.

    Args:
        rows: (n, D) that the layer reads of its train nodes.
        labels: (n,) their classes.
        classes: C.
    """
    wide = rows.astype(np.float64)
    dense = wide if isinstance(wide, np.ndarray) else wide.toarray()
    beside = np.column_stack([dense, np.ones(len(labels))])
    indicators = np.zeros((len(labels), classes))
    indicators[np.arange(len(labels)), labels] = 1.0
    upper = (beside.T @ beside)[np.triu_indices(beside.shape[1])]
    return np.concatenate([upper, (beside.T @ indicators).reshape(-1)])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RidgeFit:
    """What was fitted.

    Attributes:
        weight: (D, C) float64.
        bias: (C,) float64.
        penalty: What was chosen, as a share of the mean variance of the rows' coordinates, times n.
    """

    weight: np.ndarray
    bias: np.ndarray
    penalty: float


def fit(sums: np.ndarray, *, width: int, classes: int) -> RidgeFit:
    """Fit the weights that explain the labels best, from (:func:`gram_values`,) summed sums."""
    gram, products = _unpacked(sums.astype(np.float64), width, classes)
    count = float(gram[width, width])
    means, class_shares = gram[width, :width] / count, products[width] / count
    # About their means, so that the bias is free.
    scatter = gram[:width, :width] - count * np.outer(means, means)
    explained = products[:width] - count * np.outer(means, class_shares)
    values, vectors = np.linalg.eigh(scatter)
    values = np.maximum(values, 0.0)
    turned = vectors.T @ explained
    scale = values.sum() / width or 1.0
    # Indicators have squares of one.
    total = count - count * float(class_shares @ class_shares)

    def score(penalty: float) -> float:
        """Return the generalised cross-validation of a penalty."""
        kept = values + penalty * scale
        shrunk = turned / kept[:, None]
        left = total - 2.0 * float(np.sum(shrunk * turned))
        left += float(np.sum(values[:, None] * shrunk**2))
        # Of the residuals' n degrees of freedom, the share that the fit leaves; at least one.
        share = max(1.0 - (1.0 + float(np.sum(values / kept))) / count, 1.0 / count)
        return left / share**2

    penalty = min(_PENALTIES, key=score)
    weight = vectors @ (turned / (values + penalty * scale)[:, None])
    return RidgeFit(weight=weight, bias=class_shares - means @ weight, penalty=penalty)


def _unpacked(sums: np.ndarray, width: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (D + 1, D + 1) G and (D + 1, C) B."""
    size = width + 1
    places = np.triu_indices(size)
    gram = np.zeros((size, size))
    gram[places] = sums[: len(places[0])]
    gram = np.triu(gram) + np.triu(gram, 1).T
    return gram, sums[len(places[0]) :].reshape(size, classes)
