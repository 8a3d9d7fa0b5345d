"""Least recently used, exactly: an N-sized map and a linked list in arrays, O(1) for each id.

The sets of a GPU cache that is associative by hash lose rows before their turn; here the row that
leaves is always the one that was asked for longest ago, so hit rates are those of the policy.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from retexo_fl.additions.devices.sampling.compiled import compiled
from retexo_fl.errors import ConfigurationError
from retexo_fl.units import counted

#: A row that has to come from the store; smaller numbers name a row of the same answer.
MISSED: Final = -1
_FIRST_REPEATED: Final = -2


class Asked(NamedTuple):
    """Where the rows of n ids come from, and what is put into the table after they were read.

    Attributes:
        sources: (n,) int64: a place in the table as it was before; :data:`MISSED`; or ``-2 - i``,
            the row that has come for place i of this answer.
        written: (w,) int64 distinct places of the table to be overwritten.
        writers: (w,) int64: the row of this answer that goes into each.
    """

    sources: np.ndarray
    written: np.ndarray
    writers: np.ndarray

    def hits(self) -> int:
        """Return how many rows were in the table when their turn came."""
        return int(np.count_nonzero(self.sources != MISSED))


class LruOrder:
    """Which of N ids are kept in a table of ``capacity`` places.

    The ids of one call are taken one after another: each is a hit if it is kept at its turn, and
    becomes the most recently used; a miss takes a free place or that of the least recently used.

    Args:
        num_ids: N.
        capacity: Places; 0 keeps nothing.

    Raises:
        ConfigurationError: The capacity is negative.
    """

    def __init__(self, num_ids: int, capacity: int) -> None:
        self.capacity = checked_capacity(capacity, num_ids)
        self._places = np.full(num_ids, MISSED, np.int32)
        self._ids = np.full(self.capacity, MISSED, np.int64)
        # The entry behind the last place closes the circle: its next is the most recently used.
        self._next = np.empty(self.capacity + 1, np.int32)
        self._previous = np.empty(self.capacity + 1, np.int32)
        _link_all(self._next, self._previous)
        #: Which row of the answer now given each place waits for; MISSED outside of calls.
        self._waiting = np.full(self.capacity, MISSED, np.int64)

    @property
    def kept_count(self) -> int:
        """Places that are taken."""
        return int(np.count_nonzero(self._ids != MISSED))

    def ask(self, ids: np.ndarray) -> Asked:
        """Take (n,) int64 ids in turn; the same id may come again."""
        if not self.capacity:
            nothing = np.empty(0, np.int64)
            return Asked(np.full(len(ids), MISSED, np.int64), nothing, nothing)
        sources, written = _ask(
            ids, self._places, self._ids, self._next, self._previous, self._waiting
        )
        writers = self._waiting[written]
        self._waiting[written] = MISSED
        return Asked(sources, written, writers)

    def kept(self) -> np.ndarray:
        """Return the ids that are kept, most recently used first."""
        found, place = [], int(self._next[self.capacity])
        while place != self.capacity and self._ids[place] != MISSED:
            found.append(self._ids[place])
            place = int(self._next[place])
        return np.array(found, np.int64)


def checked_capacity(capacity: int, num_ids: int) -> int:
    """Return a number of places, at most one for each id.

    Raises:
        ConfigurationError: It is negative, or beyond int32.
    """
    capacity = min(capacity, num_ids)
    if not 0 <= capacity < np.iinfo(np.int32).max:
        raise ConfigurationError(
            f"feature cache: got {counted(capacity, 'row')}; expected 0 to 2^31 - 2"
        )
    return capacity


@compiled
def _link_all(following: np.ndarray, previous: np.ndarray) -> None:
    places = len(following)
    for place in range(places):
        following[place] = (place + 1) % places
        previous[place] = (place - 1) % places


@compiled
def _ask(  # noqa: PLR0917 - the arrays of one list
    ids: np.ndarray,
    places: np.ndarray,
    kept: np.ndarray,
    following: np.ndarray,
    previous: np.ndarray,
    waiting: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    end = len(kept)
    sources = np.empty(len(ids), np.int64)
    written = np.empty(min(len(ids), end), np.int64)
    count = 0
    for at in range(len(ids)):
        node = ids[at]
        place = np.int64(places[node])
        if place == MISSED:
            place = np.int64(previous[end])
            if kept[place] != MISSED:
                places[kept[place]] = MISSED
            kept[place] = node
            places[node] = place
            sources[at] = MISSED
            if waiting[place] == MISSED:
                written[count] = place
                count += 1
            waiting[place] = at
        elif waiting[place] != MISSED:
            sources[at] = _FIRST_REPEATED - waiting[place]
        else:
            sources[at] = place
        following[previous[place]] = following[place]
        previous[following[place]] = previous[place]
        following[place] = following[end]
        previous[following[end]] = place
        following[end] = place
        previous[place] = end
    return sources, written[:count]
