"""The rows of a sweep: runs, and means of those that differ in published split and seed alone."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from retexo_fl.api.rows import Rows
from retexo_fl.config import Scalar
from retexo_fl.run_log.result import Result

_PUBLISHED: Final = "published"
_USES: Final = ("validation", "test")


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRow:
    """One run of a sweep.

    Attributes:
        keys: What was chosen for it, as `config.toml` names it, and ``profile``.
        path: Its run directory, which a run without any round has not.
        error: What it failed by; empty of a run that finished.
        result: How it ended; None of a run that failed.
    """

    keys: Mapping[str, Scalar]
    path: Path
    error: str = ""
    result: Result | None = None

    def __repr__(self) -> str:
        keys = ", ".join(f"{key} {text_of(value)}" for key, value in self.keys.items())
        return f"<SweepRow {keys}: {told(self)}>"

    def cells(self) -> dict[str, Any]:
        """Return it as cells of a table; a figure that a run does not have is None."""
        result = self.result
        found: dict[str, Any] = {**self.keys, "state": "failed" if self.error else "finished"}
        found |= dict.fromkeys(("metric", "validation", "test", "payload_bytes", "seconds"))
        if result is not None:
            metric, last = result.metric, result.stages[-1].metric
            found["metric"] = "accuracy" if metric is None else metric.name
            found["validation"] = result.val_accuracy if last is None else last.value
            found["test"] = result.test_accuracy if metric is None else metric.value
            found["payload_bytes"] = result.volumes["payload"]["total"]
            found["seconds"] = result.seconds["total"]
        return {**found, "error": self.error, "run": str(self.path)}


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


class SweepRows(Rows[SweepRow]):
    """The runs of a sweep, in their order."""

    def __init__(self, rows: Iterable[SweepRow]) -> None:
        super().__init__(rows, SweepRow.cells)

    def means(self) -> Rows[SweepMean]:
        """Return mean and deviation over published splits and seeds.

        Runs that have all other keys in common are one row.
        """
        return Rows(means_of(self), SweepMean.cells)


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


def told(row: SweepRow) -> str:
    """Return in words how a run ended."""
    if row.error:
        return f"failed: {row.error}"
    cells = row.cells()
    figures = [
        f"{use} {cells[use]:.4f}" for use in ("validation", "test") if cells[use] is not None
    ]
    return ", ".join([cells["metric"], *figures])


def text_of(value: Scalar) -> str:
    """Return a value as a command line has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
