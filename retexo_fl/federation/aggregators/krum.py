"""The updates that lie closest to most others."""

from __future__ import annotations

import numpy as np

from retexo_fl.federation.aggregators.base import EachUpdate, stretches
from retexo_fl.graph.seeding import seeded_generator


class Krum(EachUpdate):
    """The one update with the smallest score, of the means of random pairs of clients.

    An update's score is the sum of squared distances to the ``n - malicious - 2`` updates that are
    closest to it; of equal scores the lower client's counts.

    The update nearest to all others is as a rule the shortest, and so the same client's in round
    after round: with ten clients that hold Cora, the model learns from one tenth of the train nodes
    and loses about a sixth of its accuracy, attacked or not. So the clients are first averaged in
    random pairs, anew in every round. A liar spoils one pair, so pairs are made where enough of
    them are there for Krum; with fewer than ``4 malicious + 5`` clients, it works on single ones.

    Source: Blanchard, El Mhamdi, Guerraoui and Stainer, NeurIPS 2017, section 4; n >= 2f + 3 is
    their proposition 4.2. Pairs: Karimireddy, He and Jaggi, ICLR 2022, algorithm 1 with s = 2.
    """

    def __init__(self, malicious: int) -> None:
        """Assume ``malicious`` lying clients, at least 1."""
        self._malicious = malicious
        self.least_clients = 2 * malicious + 3

    def combine(self, updates: list[np.ndarray]) -> np.ndarray:
        """See :class:`~retexo_fl.federation.aggregators.base.EachUpdate`."""
        if (len(updates) + 1) // 2 >= self.least_clients:
            purpose = f"krum stage {self.round.stage} round {self.round.number}"
            order = seeded_generator(self.round.seed, purpose).permutation(len(updates))
            updates = pair_means(updates, order.tolist())
        scores = krum_scores(updates, self._malicious)
        return updates[int(np.argsort(scores, kind="stable")[0])]


class MultiKrum(EachUpdate):
    """The mean of the ``n - malicious - 2`` mean updates with Krum's smallest scores.

    Source: as :class:`Krum`, without pairs; as many are averaged as Damaskinos et al. (AggregaThor,
    MLSys 2019) show to be safe.
    """

    def __init__(self, malicious: int) -> None:
        """Assume ``malicious`` lying clients, at least 1."""
        self._malicious = malicious
        self.least_clients = 2 * malicious + 3

    def combine(self, updates: list[np.ndarray]) -> np.ndarray:
        """See :class:`~retexo_fl.federation.aggregators.base.EachUpdate`."""
        order = np.argsort(krum_scores(updates, self._malicious), kind="stable")
        chosen = sorted(order[: len(updates) - self._malicious - 2].tolist())
        result: np.ndarray = updates[chosen[0]]
        for client in chosen[1:]:
            result += updates[client]
        result /= len(chosen)
        return result


def pair_means(updates: list[np.ndarray], order: list[int]) -> list[np.ndarray]:
    """Return the means of updates 0 and 1, 2 and 3, ... of an order; of an odd number, the last.

    The updates are written to: n of them may be half of the memory.
    """
    means = []
    for one, other in zip(order[::2], order[1::2], strict=False):
        mean = updates[one]
        mean += updates[other]
        mean /= 2
        means.append(mean)
    return [*means, updates[order[-1]]] if len(order) % 2 else means


def krum_scores(updates: list[np.ndarray], malicious: int) -> np.ndarray:
    """Return the [n] float64 scores of n updates; not a number for one that is not finite."""
    distances = squared_distances(updates)
    np.fill_diagonal(distances, np.inf)
    distances.sort(axis=1)
    scores: np.ndarray = distances[:, : len(updates) - malicious - 2].sum(axis=1)
    return scores


def squared_distances(updates: list[np.ndarray]) -> np.ndarray:
    """Return the [n, n] float64 squared distances between n updates.

    In float64, whose rounding is far below the distances of float32 updates, so that they can be
    had from products, which a matrix product gives fastest.
    """
    products = np.zeros((len(updates), len(updates)))
    for columns in stretches(updates):
        values = np.stack([update[columns] for update in updates]).astype(np.float64)
        products += values @ values.T
    squares = np.diag(products)
    # Of an update that is not finite, distances are not numbers, and are sorted last.
    distances: np.ndarray = np.maximum(squares[:, None] + squares[None, :] - 2 * products, 0.0)
    return distances
