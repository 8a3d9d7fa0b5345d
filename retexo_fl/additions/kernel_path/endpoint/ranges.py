"""Ranges of indices of a table of fixed size, allocated first fit and freed."""

from __future__ import annotations

from bisect import bisect_left


class RangeAllocator:
    """Allocates ranges of ``capacity`` indices.

    Ranges given back are joined with their neighbours, so that a table that is empty again takes
    what an empty one takes.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._free: list[tuple[int, int]] = [(0, capacity)] if capacity else []

    @property
    def capacity(self) -> int:
        """Indices in all."""
        return self._capacity

    @property
    def free(self) -> int:
        """Indices that are free."""
        return sum(size for _, size in self._free)

    def take(self, size: int) -> int | None:
        """Return the first index of ``size`` that follow each other; None where none are left."""
        if size == 0:
            return 0
        for place, (start, length) in enumerate(self._free):
            if length >= size:
                if length == size:
                    del self._free[place]
                else:
                    self._free[place] = (start + size, length - size)
                return start
        return None

    def give_back(self, start: int, size: int) -> None:
        """Take back what :meth:`take` returned."""
        if size == 0:
            return
        place = bisect_left(self._free, (start, 0))
        stop = start + size
        if place < len(self._free) and self._free[place][0] == stop:
            stop += self._free.pop(place)[1]
        if place and sum(self._free[place - 1]) == start:
            place -= 1
            start = self._free.pop(place)[0]
        self._free.insert(place, (start, stop - start))
