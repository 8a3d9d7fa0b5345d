from __future__ import annotations

import statistics
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from retexo_fl.api.sweep_rows import SweepRow, SweepRows, means_of


def row(test: float | None, **keys: Any) -> SweepRow:
    """Return a row that finished with an accuracy, or failed."""
    if test is None:
        return SweepRow(keys=keys, path=Path("run"), error="no luck")
    result: Any = SimpleNamespace(
        metric=None,
        stages=[SimpleNamespace(metric=None)],
        val_accuracy=test - 0.1,
        test_accuracy=test,
        volumes={"payload": {"total": 1}},
        seconds={"total": 1.0},
    )
    return SweepRow(keys=keys, path=Path("run"), result=result)


def test_runs_are_one_where_published_split_and_seed_alone_differ() -> None:
    values = {
        (split, seed): 0.5 + 0.1 * split + 0.03 * seed for split in range(3) for seed in (7, 8)
    }
    rows = [
        row(value, model="gcn", split=f"published:{split}", seed=seed)
        for (split, seed), value in values.items()
    ]
    rows += [row(0.9, model="gat", split="published:0", seed=7)]
    many, one = means_of(rows)
    assert (many.keys, many.runs, many.splits, many.seeds) == ({"model": "gcn"}, 6, 3, 2)
    assert many.test is not None
    assert many.test.value == pytest.approx(statistics.fmean(values.values()))
    # Divided by n - 1, as NumPy does with ddof=1.
    assert many.test.deviation == pytest.approx(statistics.stdev(values.values()))
    assert many.validation is not None
    assert many.validation.value == pytest.approx(many.test.value - 0.1)
    assert (one.keys, one.runs) == ({"model": "gat"}, 1)
    assert one.test is not None
    assert (str(one.test), one.test.deviation) == ("0.9000", None)


def test_drawn_splits_are_runs_of_their_own() -> None:
    drawn = [
        row(0.5, split=f"random:{share}/0.1/0.1", seed=seed)
        for share in (0.1, 0.2)
        for seed in (0, 1)
    ]
    assert [mean.runs for mean in means_of(drawn)] == [2, 2]


def test_runs_that_failed_are_counted_and_not_averaged() -> None:
    rows = [row(0.5, seed=0), row(None, seed=1), row(0.7, seed=2), row(None, seed=0, model="gat")]
    (cells,) = SweepRows(rows).means().cells()
    assert (cells["runs"], cells["failed"], cells["seeds"]) == (2, 1, 3)
    assert cells["test"] == pytest.approx(0.6)
    assert cells["test_deviation"] == pytest.approx(statistics.stdev((0.5, 0.7)))
