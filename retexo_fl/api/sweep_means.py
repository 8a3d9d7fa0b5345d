"""Means of a sweep: runs that differ in nothing but a published split and the seed, as one row."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from retexo_fl.config import Scalar

if TYPE_CHECKING:
    from retexo_fl.api.sweeps import SweepRow

_PUBLISHED: Final = "published"
_USES: Final = ("validation", "test")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """A figure of several runs.

    Attributes:
        value: Its mean.
        deviation: Standard deviation of a sample, divided by n - 1, as papers have it; None of one
            run.
    """

    value: float
    deviation: float | None

    def __str__(self) -> str:
        shown = f"{self.value:.4f}"
        return shown if self.deviation is None else f"{shown} ± {self.deviation:.4f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepMean:
    """Runs of a sweep that have all keys in common but a published split and the seed.

    Attributes:
        keys: What was chosen for all of them.
        runs: Of them, those that finished, of which the figures are.
        failed: How many did not.
        splits: How many splits of the graph they have.
        seeds: How many seeds.
        metric: What was judged by.
        validation: At validation nodes; None where no run has it.
        test: At test nodes.
    """

    keys: Mapping[str, Scalar]
    runs: int
    failed: int
    splits: int
    seeds: int
    metric: str
    validation: Mean | None
    test: Mean | None

    def cells(self) -> dict[str, Any]:
        """Return it as cells of a table; a figure that it does not have is None."""
        cells: dict[str, Any] = {**self.keys, "runs": self.runs, "failed": self.failed}
        cells |= {"splits": self.splits, "seeds": self.seeds, "metric": self.metric}
        for use, mean in zip(_USES, (self.validation, self.test), strict=True):
            cells[use] = None if mean is None else mean.value
            cells[f"{use}_deviation"] = None if mean is None else mean.deviation
        return cells


def means_of(rows: Sequence[SweepRow]) -> list[SweepMean]:
    """Return the means of runs that differ in a published split and the seed alone.

    Args:
        rows: All runs of a sweep.

    Returns:
        In the order of their first runs; groups of which no run finished are left out.
    """
    groups: dict[tuple[object, ...], list[SweepRow]] = {}
    for row in rows:
        groups.setdefault(tuple(sorted(_common(row.keys).items())), []).append(row)
    return [_mean(group) for group in groups.values() if any(row.result for row in group)]


def _common(keys: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return the keys that runs of one mean have in common."""
    return {key: value for key, value in keys.items() if key != "seed" and not _is_own(key, value)}


def _is_own(key: str, value: Scalar) -> bool:
    return key == "split" and str(value).partition(":")[0] == _PUBLISHED


def _mean(group: Sequence[SweepRow]) -> SweepMean:
    finished = [row.cells() for row in group if row.result]
    return SweepMean(
        keys=_common(group[0].keys),
        runs=len(finished),
        failed=len(group) - len(finished),
        splits=len({row.keys.get("split") for row in group}),
        seeds=len({row.keys.get("seed") for row in group}),
        metric=finished[0]["metric"],
        validation=_figure([cells["validation"] for cells in finished]),
        test=_figure([cells["test"] for cells in finished]),
    )


def _figure(values: Sequence[float | None]) -> Mean | None:
    there = [value for value in values if value is not None]
    if not there:
        return None
    deviation = statistics.stdev(there) if len(there) > 1 else None
    return Mean(value=statistics.fmean(there), deviation=deviation)
