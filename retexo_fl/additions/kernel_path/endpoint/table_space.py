"""Space in a receiver's tables: taken together or not at all, and given back when it is safe."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from retexo_fl.additions.kernel_path.endpoint.ranges import RangeAllocator
from retexo_fl.additions.kernel_path.packets.layout import Tables
from retexo_fl.errors import ChannelUnavailable


@dataclass(frozen=True, slots=True)
class Place:
    """A range of one table's entries."""

    table: str
    start: int
    size: int


class TableSpace:
    """The ranges of all tables.

    Args:
        tables: Whose sizes count.
        make_room: Gives back what is kept for convenience; False where there is nothing.
        settle: See :class:`~retexo_fl.additions.kernel_path.endpoint.arena.TableArena`.
    """

    def __init__(
        self, tables: Tables, *, make_room: Callable[[], bool], settle: Callable[[], None] | None
    ) -> None:
        self._free = {
            "cells": RangeAllocator(len(tables.acc)),
            "seen": RangeAllocator(len(tables.seen)),
            "slots": RangeAllocator(len(tables.slots)),
            "streams": RangeAllocator(len(tables.streams)),
            "regions": RangeAllocator(len(tables.regions)),
        }
        self._make_room = make_room
        self._settle = settle
        self._unsettled: list[Place] = []

    def take(self, **sizes: int) -> list[Place]:
        """Return a place of each size, in the order of the names.

        Raises:
            ChannelUnavailable: One table has no room for it; nothing was taken.
        """
        for table, size in sizes.items():
            if size > self._free[table].capacity:
                raise ChannelUnavailable(self._too_small(table, size))
        taken: list[Place] = []
        for table, size in sizes.items():
            while (start := self._free[table].take(size)) is None:
                if not (self._settle_all() or self._make_room()):
                    self._return(taken)
                    raise ChannelUnavailable(self._too_small(table, size))
            taken.append(Place(table, start, size))
        return taken

    def give_back(self, places: Iterable[Place]) -> None:
        """Take places back."""
        if self._settle is None:
            self._return(places)
        else:
            self._unsettled.extend(places)

    def _settle_all(self) -> bool:
        if self._settle is None or not self._unsettled:
            return False
        self._settle()
        self._return(self._unsettled)
        self._unsettled = []
        return True

    def _return(self, places: Iterable[Place]) -> None:
        for place in places:
            self._free[place.table].give_back(place.start, place.size)

    def _too_small(self, table: str, size: int) -> str:
        free = self._free[table]
        return (
            f"datagrams: the receiver's table of {table} has no room for {size} more "
            f"in one piece ({free.free} of {free.capacity} are free)"
        )
