"""What a recipe hands back."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self, TypeAlias

if TYPE_CHECKING:
    import matplotlib.axes

#: Matplotlib is imported by what writes a picture alone: it is an extra.
Axes: TypeAlias = "matplotlib.axes.Axes"
#: Draws in axes.
Draw: TypeAlias = "Callable[[Axes], None]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """What several trainings came to.

    Attributes:
        low: The least.
        high: The most.
        median: The one in the middle.
        sd: Standard deviation of the sample; None of fewer than two.
        values: All, in the order of the seeds.
    """

    low: float
    high: float
    median: float
    sd: float | None
    values: tuple[float, ...]

    @classmethod
    def of(cls, values: list[float]) -> Self:
        """Summarise at least one value."""
        sd = statistics.stdev(values) if len(values) > 1 else None
        return cls(
            low=min(values),
            high=max(values),
            median=statistics.median(values),
            sd=sd,
            values=tuple(values),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure.

    Attributes:
        metric: What.
        unit: ``share``, ``s``, ``bytes``, ...
        reference: The figure that it is compared with, or None; ``Outcome.setting`` says whose.
        ours: Ours; of several trainings, the mean.
        spread: What it is the mean of, or None.
    """

    metric: str
    unit: str
    ours: float
    reference: float | None = None
    spread: Spread | None = None

    @property
    def values(self) -> tuple[float, ...]:
        """Those of all seeds; the figure alone where it is the mean of nothing."""
        return (self.ours,) if self.spread is None else self.spread.values

    @classmethod
    def of(
        cls, metric: str, values: list[float], *, unit: str, reference: float | None = None
    ) -> Self:
        """Return the mean of several trainings."""
        return cls(
            metric=metric,
            unit=unit,
            ours=statistics.fmean(values),
            reference=reference,
            spread=Spread.of(values),
        )


#: What rows say, by metric: what checks and published cells are made from, so that both can be made
#: anew from a written result.
Figures = Mapping[str, Row]


def figures_of(rows: Iterable[Row]) -> Figures:
    """Return rows by their metrics."""
    return {row.metric: row for row in rows}


def rows_of(facts: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Return the rows of a written result."""
    return [
        Row(
            **{key: value for key, value in row.items() if key != "spread"},
            spread=None if row["spread"] is None else Spread.of(list(row["spread"]["values"])),
        )
        for row in facts
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A published figure, and what stands beside it.

    Attributes:
        name: Which one.
        unit: As of a row.
        published: The figure.
        sd: Its published standard deviation, or None.
        ours: What comes closest to it here; None where nothing does.
        how: What ``ours`` is, where its name does not say it.
    """

    name: str
    unit: str
    published: float
    sd: float | None = None
    ours: float | None = None
    how: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A line that must hold, or a target that was set beforehand, and whether it does."""

    line: str
    holds: bool
    is_target: bool = False

    @property
    def text(self) -> str:
        """The line, and whether it holds."""
        yes, no = ("reached", "MISSED") if self.is_target else ("holds", "FAILS")
        return f"{yes if self.holds else no}: {self.line}"

    def facts(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        target = {"is_target": True} if self.is_target else {}
        return {"line": self.line, "holds": self.holds, **target}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Everything a recipe found.

    Attributes:
        title: A line for people.
        setting: Sizes, inputs, whose the reference figures are, how settings were chosen.
        rows: The figures.
        checks: Lines that must hold, where more than figures tells it.
        pictures: Draw, where more than figures are drawn; each in axes of its own.
    """

    title: str
    setting: Mapping[str, Any]
    rows: list[Row]
    checks: tuple[Check, ...] = ()
    pictures: tuple[Draw, ...] = ()

    def facts(self) -> dict[str, Any]:
        """Return what was found, as JSON has it."""
        return {
            "title": self.title,
            "setting": dict(self.setting),
            "rows": [asdict(row) for row in self.rows],
            "published": [],
            "checks": [check.facts() for check in self.checks],
        }
