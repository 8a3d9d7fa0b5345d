"""Ridge regression of labels on what the last layer reads, from sums over clients: no rounds.

Symbols: n train nodes, D width of the rows that the layer reads, C classes. With rows z and labels
Y as (n, C) indicators, A = [z | 1], every client adds up its own nodes' part of::

    G = A' A   ((D + 1, D + 1), of which the upper triangle travels),   B = A' Y   ((D + 1, C))

From their sums the server knows mean, covariance and class means of all train nodes, so it
minimises ``|Y - z W - b|^2 + penalty |W|^2`` as if it held the rows. The penalty is the one of a
fixed row of candidates with the least generalised cross-validation, which needs no other node; or,
where clients add up the same of their validation nodes, with the least squared error on these. No
client is asked again. Where the sums have noise, they are those of :mod:`.clipped_products`.

Source: Hoerl and Kennard, Technometrics 12 (1970); Golub, Heath and Wahba, Technometrics 21 (1979),
equation 1.4, for the penalty.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from retexo_fl.graph.features import Features
from retexo_fl.training.judging import indicators

#: Candidates for the penalty, as shares of the rows' mean variance over coordinates, times n.
_PENALTIES: Final = tuple(10.0 ** (step / 4 - 6) for step in range(29))


#: The mean square of a coordinate over a client's nodes, which is near 1 on average, is less.
#: Numbers then have steps of 2**-28 for each node.
MOST_SQUARE: Final = 2.0**11
#: Of a sum under masks.
MASKED_GRAM_BITS: Final = 40


def gram_values(width: int, classes: int) -> int:
    """Return how many values :func:`gram_sums` has."""
    return (width + 1) * (width + 2) // 2 + (width + 1) * classes


def gram_sums(rows: Features, labels: np.ndarray, classes: int) -> np.ndarray:
    """Return a client's part of G and B, flat: (:func:`gram_values`,) float64.

    Args:
        rows: (n, D) that the layer reads of some nodes.
        labels: Of these, as for :func:`.indicators`.
        classes: C.
    """
    wide = rows.astype(np.float64)
    dense = wide if isinstance(wide, np.ndarray) else wide.toarray()
    beside = np.column_stack([dense, np.ones(len(labels))])
    upper = (beside.T @ beside)[np.triu_indices(beside.shape[1])]
    return np.concatenate([upper, (beside.T @ indicators(labels, classes)).reshape(-1)])


def judged_values(width: int, classes: int) -> int:
    """Return how many values :func:`judged_sums` has."""
    return 2 * gram_values(width, classes) + 1


def judged_sums(
    train: tuple[Features, np.ndarray], validation: tuple[Features, np.ndarray], classes: int
) -> np.ndarray:
    """Return a client's sums over its train nodes, over its validation nodes, and their ``|Y|^2``.

    Args:
        train: (n, D) rows of train nodes, and their labels.
        validation: The same of validation nodes.
        classes: C.

    Returns:
        (:func:`judged_values`,) float64.
    """
    squares = np.square(indicators(validation[1], classes)).sum()
    return np.concatenate([gram_sums(*train, classes), gram_sums(*validation, classes), [squares]])


def _cuts(width: int, classes: int) -> list[int]:
    size = gram_values(width, classes)
    return [size, 2 * size]


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
    solved = _Solved.of(sums, width, classes)
    return solved.fit(min(_PENALTIES, key=solved.cross_validation))


def class_means(sums: np.ndarray, *, width: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return what classes are of: from (:func:`gram_values`,) summed sums.

    Returns:
        (C,) shares of the nodes, and (C, D) mean rows: of a class without nodes that of all.
    """
    gram, products = _unpacked(sums.astype(np.float64), width, classes)
    counts, total = products[width], gram[width, width]
    of_all = gram[:width, width] / total
    means = products[:width].T / np.maximum(counts, 1.0)[:, None]
    return counts / total, np.where(counts[:, None] > 0, means, of_all)


def validated_fit(
    sums: np.ndarray, *, width: int, classes: int
) -> tuple[RidgeFit | None, float | None]:
    """Fit by train nodes the weights that explain the labels of validation nodes best.

    Args:
        sums: (:func:`judged_values`,) summed sums.
        width: D.
        classes: C.

    Returns:
        The fit, and its squared error a validation node: of weights W with their biases
        ``|Y|^2 - 2 W.B + W.G W``. Nothing without nodes to fit or to judge.
    """
    train, validation, squares = np.split(sums.astype(np.float64), _cuts(width, classes))
    gram, products = _unpacked(validation, width, classes)
    count = float(gram[width, width])
    if min(count, _unpacked(train, width, classes)[0][width, width]) < 1:
        return None, None
    solved = _Solved.of(train, width, classes)

    def error(found: RidgeFit) -> float:
        weights = np.vstack([found.weight, found.bias])
        explained = 2.0 * float(np.sum(weights * products))
        return float(squares[0]) - explained + float(np.sum(weights * (gram @ weights)))

    best = min(map(solved.fit, _PENALTIES), key=error)
    return best, error(best) / count


def noised_fit(sums: np.ndarray, *, width: int, classes: int, deviation: float) -> RidgeFit:
    """Fit by noised sums of train nodes the weights that validation nodes are explained best by.

    Of G + E, E the noise, eigenvalues below 0 are noise: they become 0. Those of E reach
    ``2 sqrt(D)`` deviations (Wigner), so a quarter of that is added to all of them, whatever else
    the penalty is. It follows from the noise alone. So what is solved is positive definite.

    Args:
        sums: Summed :func:`.clipped_sums`, those of train nodes with noise.
        width: D.
        classes: C.
        deviation: Standard deviation of the noise of a value.

    Returns:
        The fit, without a bias. Where no validation nodes are added up, the penalty is that of the
        noise's whole reach.
    """
    size = (len(sums) - 1) // 2
    train, judged = (
        _unpacked(part, width - 1, classes) for part in np.split(sums[:-1].astype(float), [size])
    )
    values, vectors = np.linalg.eigh(train[0])
    values, turned = np.maximum(values, 0.0), vectors.T @ train[1]
    reach, scale = 2.0 * deviation * math.sqrt(width), float(values.sum()) / width or 1.0

    def fitted(penalty: float) -> RidgeFit:
        weight = vectors @ (turned / (values + penalty)[:, None])
        return RidgeFit(weight=weight, bias=np.zeros(classes), penalty=penalty / scale)

    def error(found: RidgeFit) -> float:
        weight, (gram, products) = found.weight, judged
        return float(np.sum(weight * (gram @ weight - 2.0 * products)))

    if sums[-1] < 1:
        return fitted(reach or scale)
    return min((fitted(reach / 4 + share * scale) for share in _PENALTIES), key=error)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Solved:
    """What the fits of all penalties have in common.

    Attributes:
        count: n.
        means: (D,) of the rows.
        class_shares: (C,) of the labels.
        values: (D,) eigenvalues of the rows' scatter about their means, so that the bias is free.
        vectors: (D, D) its eigenvectors.
        turned: (D, C) what rows and labels have in common about their means, along these.
        scale: Mean of the eigenvalues.
    """

    count: float
    means: np.ndarray
    class_shares: np.ndarray
    values: np.ndarray
    vectors: np.ndarray
    turned: np.ndarray
    scale: float

    @classmethod
    def of(cls, sums: np.ndarray, width: int, classes: int) -> _Solved:
        gram, products = _unpacked(sums.astype(np.float64), width, classes)
        count = float(gram[width, width])
        means, class_shares = gram[width, :width] / count, products[width] / count
        scatter = gram[:width, :width] - count * np.outer(means, means)
        explained = products[:width] - count * np.outer(means, class_shares)
        values, vectors = np.linalg.eigh(scatter)
        values = np.maximum(values, 0.0)
        return cls(
            count=count,
            means=means,
            class_shares=class_shares,
            values=values,
            vectors=vectors,
            turned=vectors.T @ explained,
            scale=values.sum() / width or 1.0,
        )

    def fit(self, penalty: float) -> RidgeFit:
        """Return the weights with a penalty."""
        shrunk = self.turned / (self.values + penalty * self.scale)[:, None]
        weight = self.vectors @ shrunk
        bias = self.class_shares - self.means @ weight
        return RidgeFit(weight=weight, bias=bias, penalty=penalty)

    def cross_validation(self, penalty: float) -> float:
        """Return the generalised cross-validation of a penalty; labels are indicators."""
        kept = self.values + penalty * self.scale
        shrunk = self.turned / kept[:, None]
        # Indicators have squares of one.
        left = self.count - self.count * float(self.class_shares @ self.class_shares)
        left -= 2.0 * float(np.sum(shrunk * self.turned))
        left += float(np.sum(self.values[:, None] * shrunk**2))
        # Of the residuals' n degrees of freedom, the share that the fit leaves; at least one.
        share = 1.0 - (1.0 + float(np.sum(self.values / kept))) / self.count
        return left / max(share, 1.0 / self.count) ** 2


def _unpacked(sums: np.ndarray, width: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (D + 1, D + 1) G and (D + 1, C) B."""
    size = width + 1
    places = np.triu_indices(size)
    gram = np.zeros((size, size))
    gram[places] = sums[: len(places[0])]
    gram = np.triu(gram) + np.triu(gram, 1).T
    return gram, sums[len(places[0]) :].reshape(size, classes)
