from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from sims.catalogue import Setting
from sims.sweep import ACCURACY, Column, Sweep
from sims.trained import Trained
from sims.trainings import Keys

pytestmark = pytest.mark.slow

SEED = Column("seed", "", lambda trained: trained.result["seed"], is_compared=False)


def by_its_keys(keys: Keys) -> Trained:
    """Train nothing: more rounds are more accurate, and so are later seeds."""
    seed, rounds = int(keys["seed"]), int(keys["rounds"])
    return Trained(result={"test_accuracy": rounds + seed, "seed": seed}, moved=[], history=[])


def swept(folder: Path, seeds: Sequence[int] | int, *, quick: bool = False) -> Sweep:
    sweep = Sweep(Setting(quick=quick, kept=folder), seeds)
    sweep.train({("cora", "few"): {"rounds": 2}, ("cora", "many"): {"rounds": 10}}, by_its_keys)
    return sweep


def test_a_row_is_the_mean_of_the_seeds_beside_that_of_another_place(tmp_path: Path) -> None:
    rows = swept(tmp_path, (3, 1)).rows([ACCURACY, SEED], last="many")
    assert [(row.metric, row.unit, row.values, row.ours, row.reference) for row in rows] == [
        ("test accuracy, cora, few", "share", (5, 3), 4, 12),
        ("seed, cora, few", "", (3, 1), 2, None),
        ("test accuracy, cora, many", "share", (13, 11), 12, 12),
        ("seed, cora, many", "", (3, 1), 2, None),
    ]


def test_a_table_of_one_seed_has_no_spread_and_quick_trains_the_first(tmp_path: Path) -> None:
    (row,) = swept(tmp_path, 7).rows([ACCURACY], places=[("cora", "few")])
    assert (row.ours, row.spread, row.reference) == (9, None, None)
    sweep = swept(tmp_path, (3, 1), quick=True)
    assert sweep.seeds == (3,)
    assert sweep.values(("cora", "few"), ACCURACY.value) == [5]
    assert sweep.commits
