"""Trainings of many places of a table, each by all seeds, and the rows that they come to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import NamedTuple

from sims.catalogue import Setting
from sims.kept import Kept
from sims.outcome import Row
from sims.trained import Trained
from sims.training import train_whole
from sims.trainings import How, Keys, train_all

#: The names of what was chosen: a graph, a layer, an algorithm, ... They end a row's metric.
Place = tuple[str, ...]
Value = Callable[[Trained], float]


class Column(NamedTuple):
    """One figure of every place.

    Attributes:
        metric: What, before the names of the place.
        unit: Of the row.
        value: The figure of one training.
        is_compared: The row's reference is the mean of another place.
    """

    metric: str
    unit: str
    value: Value
    is_compared: bool = True


class Sweep:
    """Trains places by all seeds; with ``--quick`` by the first.

    Args:
        setting: Tells where finished trainings are kept.
        seeds: Of the trainings; or one, whose rows have no spread.

    Attributes:
        seeds: That are trained.
        found: By place, in the order in which they were asked for; one training for each seed.
    """

    def __init__(self, setting: Setting, seeds: Sequence[int] | int) -> None:
        self._has_spread = not isinstance(seeds, int)
        self.seeds = (seeds,) if isinstance(seeds, int) else tuple(setting.few(seeds))
        self.found: dict[Place, list[Trained]] = {}
        self._kept = Kept(setting.kept)

    @property
    def commits(self) -> str:
        """The commits of the code that did the trainings."""
        return self._kept.commits

    def train(self, places: Mapping[Place, Keys], how: How = train_whole) -> None:
        """Train places by their configurations, which name no seed.

        Raises:
            RetexoError: Any named failure of a training.
        """
        # Seed by seed, so that an interrupted run has whole tables of fewer seeds.
        done = train_all(
            self._kept,
            {
                (place, seed): {**keys, "seed": seed}
                for seed in self.seeds
                for place, keys in places.items()
            },
            how,
        )
        self.found |= {place: [done[place, seed] for seed in self.seeds] for place in places}

    def values(self, place: Place, value: Value) -> list[float]:
        """Return a figure of a place, in the order of the seeds."""
        return [value(trained) for trained in self.found[place]]

    def mean(self, place: Place, value: Value) -> float:
        """Return the mean of a figure over the seeds."""
        return fmean(self.values(place, value))

    def row(self, place: Place, column: Column, against: Place | None = None) -> Row:
        """Return one figure of a place, beside that of another one."""
        row = Row.of(
            ", ".join((column.metric, *place)),
            self.values(place, column.value),
            unit=column.unit,
            reference=None if against is None else self.mean(against, column.value),
        )
        return row if self._has_spread else replace(row, spread=None)

    def rows(
        self,
        columns: Iterable[Column],
        *,
        last: str | None = None,
        places: Iterable[Place] | None = None,
    ) -> list[Row]:
        """Return all columns of each place.

        Args:
            columns: The figures.
            last: The last name of the place that each is compared with; without, none is.
            places: Those to tell of; without, all.
        """
        return [
            self.row(place, column, (*place[:-1], last) if column.is_compared and last else None)
            for place in places or self.found
            for column in columns
        ]


#: Share of all clients' test nodes that the selected model gets right.
ACCURACY = Column("test accuracy", "share", lambda trained: trained.accuracy)
#: Payload of all kinds, every byte once.
MOVED = Column(
    "moved", "MB", lambda trained: float(trained.result["bytes"]["payload"]["total"]) / 1e6
)
