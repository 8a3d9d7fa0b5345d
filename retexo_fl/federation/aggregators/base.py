"""What an aggregator is, and the base of those that look at single updates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final, Literal, Protocol

import numpy as np

#: Bytes of all clients' values at one stretch of coordinates: a share of a core's cache.
STRETCH_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundFacts:
    """The round that an aggregator begins.

    Attributes:
        seed: Of the training; random choices depend on it, on ``stage`` and on ``number`` alone.
        stage: Stage index.
        number: Of the round in its stage, from 1.
        size: P, length of every update.
        dtype: Of every update, ``float32`` or ``float64``.
    """

    seed: int
    stage: int
    number: int
    size: int
    dtype: str


class Aggregator(Protocol):
    """Makes one update of a round's updates.

    It does not depend on what an update means (a gradient, a change of weights). It is fed in
    client order, so that equal updates give equal bits, and keeps nothing from one round for the
    next, since a resumed training begins with a new one. What goes in has been checked.

    It may have an attribute ``least_clients``: how many clients with train nodes it needs.

    Attributes:
        needs: ``sum`` if the sum over clients is enough (what secure aggregation can give),
            ``each`` if single updates are looked at.
    """

    needs: Literal["sum", "each"]

    def start(self, begun: RoundFacts) -> None:
        """Begin a round."""
        ...

    def add(self, client: int, update_sum: np.ndarray, count: int) -> None:
        """Add one client's update.

        Args:
            client: Its index, larger than that of the client before.
            update_sum: (P,) its mean update times ``count``; read-only.
            count: Its train nodes, as reported; at least 1, or 0 where ``needs`` is ``sum`` and the
                client passes on gradients of its peers' losses (end-to-end training).
        """
        ...

    def finish(self) -> np.ndarray:
        """Return the (P,) update of the round, of the dtype of those that were added."""
        ...


class EachUpdate(ABC):
    """Base of aggregators that look at single updates: it keeps every client's mean update.

    The counts are not used as weights: clients report them, and a client that lies
    about its update would lie about its count. A round holds one array for each client, and
    :meth:`combine` is to need little beside them.

    Attributes:
        least_clients: How many clients with train nodes it needs.
        round: The present round.
    """

    needs: Literal["sum", "each"] = "each"
    least_clients: int = 1
    round: RoundFacts

    def start(self, begun: RoundFacts) -> None:
        """See :class:`Aggregator`."""
        self.round = begun
        self._updates: list[np.ndarray] = []

    def add(self, client: int, update_sum: np.ndarray, count: int) -> None:
        """See :class:`Aggregator`."""
        del client
        self._updates.append(update_sum / count)

    def finish(self) -> np.ndarray:
        """See :class:`Aggregator`."""
        updates, self._updates = self._updates, []
        return self.combine(updates)

    @abstractmethod
    def combine(self, updates: list[np.ndarray]) -> np.ndarray:
        """Return the update of a round.

        Args:
            updates: (P,) mean updates in client order, at least ``least_clients`` of them, which
                may be written to. One that is not finite must not make the result so.
        """


class CoordinateWise(EachUpdate):
    """Base of aggregators that look at the clients' values of one coordinate at a time."""

    def combine(self, updates: list[np.ndarray]) -> np.ndarray:
        """See :class:`EachUpdate`."""
        result = np.empty_like(updates[0])
        for columns in stretches(updates):
            values = np.stack([update[columns] for update in updates])
            values.sort(axis=0)  # what is not a number comes last
            result[columns] = self.combine_sorted(values)
        return result

    @abstractmethod
    def combine_sorted(self, values: np.ndarray) -> np.ndarray:
        """Return (c,) results of (clients, c) values, each column ascending."""


def stretches(updates: list[np.ndarray]) -> list[slice]:
    """Cut the coordinates of (P,) updates into stretches that are small over all clients."""
    size = len(updates[0])
    width = max(1, STRETCH_BYTES // (len(updates) * updates[0].itemsize))
    return [slice(begin, min(begin + width, size)) for begin in range(0, size, width)]
