"""Trainings of many places of a table, each by all seeds, and the rows that they come to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import NamedTuple

from retexo_fl.errors import EngineFailed
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
        self._written = setting.written

    @property
    def commits(self) -> str:
        """The commits of the code that did the trainings."""
        before = () if self._written is None else self._written.commits
        return " ".join(dict.fromkeys([*before, *self._kept.commits.split()]))

    def train(self, places: Mapping[Place, Keys], how: How = train_whole) -> None:
        """Train places by their configurations, which name no seed.

        Of places whose first seeds a written result has, only the others are trained. With them the
        first seed of the first such place, which must come to what is written.

        Raises:
            RetexoError: Any named failure of a training.
            EngineFailed: The code of today trains to something else than what is written.
        """
        begun = {place: len(self._known(place, ACCURACY)) for place in places}
        again = None
        if any(count < len(self.seeds) for count in begun.values()):
            again = next((place for place, count in begun.items() if count), None)
        # Seed by seed, so that an interrupted run has whole tables of fewer seeds.
        done = train_all(
            self._kept,
            {
                (place, seed): {**keys, "seed": seed}
                for number, seed in enumerate(self.seeds)
                for place, keys in places.items()
                if number >= begun[place] or (place == again and not number)
            },
            how,
        )
        if again is not None:
            self._check_same(again, done[again, self.seeds[0]])
        self.found |= {
            place: [done[place, seed] for seed in self.seeds[begun[place] :]] for place in places
        }

    def _known(self, place: Place, column: Column) -> tuple[float, ...]:
        """Return the figures that a written result has of the first seeds of a place."""
        figures = {} if self._written is None else self._written.figures
        row = figures.get(", ".join((column.metric, *place)))
        return () if row is None else row.values[: len(self.seeds)]

    def _check_same(self, place: Place, trained: Trained) -> None:
        for column in (ACCURACY, MOVED):
            known, now = self._known(place, column)[:1], column.value(trained)
            if known != (now,):
                raise EngineFailed(
                    f"--extend: {column.metric}, {', '.join(place)}: the first seed comes to "
                    f"{now:g}; expected {known[0]:g} as written: the code trains otherwise now"
                )

    def values(self, place: Place, value: Value) -> list[float]:
        """Return a figure of what was trained of a place, in the order of the seeds."""
        return [value(trained) for trained in self.found[place]]

    def mean(self, place: Place, value: Value) -> float:
        """Return the mean of a figure over the seeds."""
        return fmean(self.values(place, value))

    def figures(self, place: Place, column: Column) -> list[float]:
        """Return a figure of a place, in the order of the seeds: those written, and new ones."""
        return [*self._known(place, column), *self.values(place, column.value)]

    def row(self, place: Place, column: Column, against: Place | None = None) -> Row:
        """Return one figure of a place, beside that of another one."""
        row = Row.of(
            ", ".join((column.metric, *place)),
            self.figures(place, column),
            unit=column.unit,
            reference=None if against is None else fmean(self.figures(against, column)),
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
