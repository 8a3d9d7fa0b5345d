"""Which nodes sums of products are of, by how likely the share of each candidate is in a sum.

Symbols: N candidates with rows z (D,) and classes y of C; S the sum over n train nodes; v what a
candidate adds (:mod:`retexo_fl.training.ridge`, :mod:`retexo_fl.training.clipped_products`): the
products of each two values of z once, and z in the column of y.

If what nodes add is normal with the mean m and the covariance K, and each value of a sum has noise
of the variance s, then a sum with v in it is more likely than another by about half of::

    2 (v - m)' (n K + s I)^-1 (S - n m)  -  (v - m)' (n K + s I)^-1 (v - m)

With the candidates' m and K this needs their (N, N) inner products, however long S is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from retexo_fl.leakage.figures import Finding, membership
from retexo_fl.leakage.scores import auc
from retexo_fl.leakage.watch import Products, Watch

#: Candidates of all clients, and the fewest train nodes, and others, of a client that is tried.
_MOST_CANDIDATES: Final = 1200
_LEAST_OF_CLIENT: Final = 2
#: Of the largest variance, what each direction has besides: of few candidates it is known badly.
_FLOOR: Final = 1e-4


def members_from_products(watch: Watch, classes: int, *, seed: int) -> Finding | None:
    """Find train nodes among candidates, whose rows and labels are known, by sums of products.

    Returns:
        What is reached; None without a client that has both.
    """
    products = watch.products
    drawn = _Candidates.of(products, seed=seed)
    if drawn is None:
        return None
    likelihood = _Likelihood(drawn, classes)
    own: list[tuple[float, float]] = []
    counts: list[tuple[int, int]] = []
    for client in map(int, np.unique(drawn.clients)):
        theirs = drawn.clients == client
        cohort = [products[one] for one in watch.together(client) if one in products]
        noise = sum(float(np.var(one.noise)) for one in cohort if one.noise is not None)
        views = (
            (products[client].sums, len(products[client].rows), 0.0),
            (
                np.sum([one.told for one in cohort], axis=0),
                sum(len(one.rows) for one in cohort),
                noise,
            ),
        )
        scores = [likelihood.scores(*view) for view in views]
        clear, masked = (
            auc(of[theirs & drawn.trained], of[theirs & ~drawn.trained]) for of in scores
        )
        own.append((clear, masked))
        trained = int(drawn.trained[theirs].sum())
        counts.append((trained, int(theirs.sum()) - trained))
    return membership("from products for a regression", own, counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidates:
    """Nodes of all clients that are tried.

    Attributes:
        rows: (N, D) as they are multiplied, with a one behind each where that is done.
        labels: (N,) classes.
        clients: (N,) owners.
        trained: (N,) whether the sums are of it.
    """

    rows: np.ndarray
    labels: np.ndarray
    clients: np.ndarray
    trained: np.ndarray

    @classmethod
    def of(cls, products: Mapping[int, Products], *, seed: int) -> Self | None:
        """Draw as many of each client; None where no client has enough."""
        most = max(_MOST_CANDIDATES // max(2 * len(products), 1), _LEAST_OF_CLIENT)
        drawn: list[tuple[np.ndarray, np.ndarray, int, bool]] = []
        for client, one in products.items():
            if min(len(one.rows), len(one.others)) < _LEAST_OF_CLIENT:
                continue
            if sum(len(rows) for rows, *_ in drawn) >= _MOST_CANDIDATES:
                break
            generator = np.random.default_rng([seed, client])
            for rows, labels, trained in (
                (one.rows, one.labels, True),
                (one.others, one.other_labels, False),
            ):
                which = generator.permutation(len(rows))[:most]
                drawn.append((rows[which].astype(float), labels[which], client, trained))
        if not drawn:
            return None
        rows = np.concatenate([rows for rows, *_ in drawn])
        counts = [len(rows) for rows, *_ in drawn]
        if all(one.noise is None for one in products.values()):
            rows = np.column_stack([rows, np.ones(len(rows))])
        return cls(
            rows=rows,
            labels=np.concatenate([labels for _, labels, *_ in drawn]),
            clients=np.repeat([client for *_, client, _ in drawn], counts),
            trained=np.repeat([trained for *_, trained in drawn], counts),
        )


class _Likelihood:
    """How likely sums are with each candidate in them: twice the logarithm, and a constant."""

    def __init__(self, drawn: _Candidates, classes: int) -> None:
        self._drawn = drawn
        self._classes = classes
        inner = drawn.rows @ drawn.rows.T
        squares = np.square(drawn.rows)
        same = drawn.labels[:, None] == drawn.labels
        products = (np.square(inner) + squares @ squares.T) / 2 + inner * same
        self._means = products.mean(axis=0)
        centred = products - self._means - self._means[:, None] + self._means.mean()
        values, self._vectors = np.linalg.eigh(centred)
        self._values = np.maximum(values, 0.0)

    def scores(self, sums: np.ndarray, nodes: int, noise: float) -> np.ndarray:
        """Return the (N,) scores by a sum over some nodes, whose values have noise of a variance.

        More values may follow those that are read.
        """
        along = self._along(sums) - nodes * self._means
        along -= along.mean()
        variances = nodes * self._values / len(self._values) + noise
        variances += _FLOOR * variances.max() + np.finfo(float).tiny
        linear = self._vectors @ ((self._vectors.T @ along) / variances)
        lengths = np.square(self._vectors) @ (self._values / variances)
        scores: np.ndarray = 2 * linear - lengths
        return scores

    def _along(self, sums: np.ndarray) -> np.ndarray:
        """Return the (N,) inner products of what candidates add with a sum."""
        rows, labels = self._drawn.rows, self._drawn.labels
        width = rows.shape[1]
        places = np.triu_indices(width)
        begin = len(places[0])
        upper = np.zeros((width, width))
        upper[places] = sums[:begin]
        columns = sums[begin : begin + width * self._classes].reshape(width, self._classes)
        along: np.ndarray = ((rows @ upper) * rows + rows * columns.T[labels]).sum(axis=1)
        return along
