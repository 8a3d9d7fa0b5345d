from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from retexo_fl.errors import EngineFailed
from sims.catalogue import Setting, Written
from sims.outcome import figures_of
from sims.sweep import ACCURACY, MOVED, Column, Place, Sweep
from sims.trained import Trained
from sims.trainings import Keys

pytestmark = pytest.mark.slow

SEED = Column("seed", "", lambda trained: trained.result["seed"], is_compared=False)


def by_its_keys(keys: Keys) -> Trained:
    """Train nothing: more rounds are more accurate, and so are later seeds."""
    seed, rounds = int(keys["seed"]), int(keys["rounds"])
    result = {
        "test_accuracy": rounds + seed,
        "seed": seed,
        "bytes": {"payload": {"total": rounds * 10**6}},
    }
    return Trained(result=result, moved=[], history=[])


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


def test_seeds_are_added_to_a_written_result(tmp_path: Path) -> None:
    first = swept(tmp_path / "first", (3,))
    written = Written(figures_of(first.rows([ACCURACY, MOVED])), ("abc",))
    trained: list[tuple[int, int]] = []

    def noting(keys: Keys) -> Trained:
        trained.append((int(keys["rounds"]), int(keys["seed"])))
        return by_its_keys(keys)

    sweep = Sweep(Setting(kept=tmp_path / "more", written=written), (3, 1))
    places: dict[Place, Keys] = {("cora", "few"): {"rounds": 2}, ("cora", "new"): {"rounds": 4}}
    sweep.train(places, noting)
    # The first seed that was written is trained again, and must come to the same.
    assert trained == [(2, 3), (4, 3), (2, 1), (4, 1)]
    assert sweep.row(("cora", "few"), ACCURACY).values == (5, 3)
    assert sweep.row(("cora", "new"), ACCURACY, ("cora", "few")).reference == 4
    assert sweep.commits.startswith("abc ")
    trained.clear()
    sweep = Sweep(Setting(kept=tmp_path / "none", written=written), (3,))
    sweep.train({("cora", "few"): {"rounds": 2}}, noting)
    assert not trained
    assert sweep.row(("cora", "few"), ACCURACY).values == (5,)


def test_seeds_are_not_added_to_what_trains_otherwise_now(tmp_path: Path) -> None:
    first = swept(tmp_path / "first", (3,))
    written = Written(figures_of(first.rows([ACCURACY, MOVED])), ("abc",))
    sweep = Sweep(Setting(kept=tmp_path / "more", written=written), (3, 1))
    with pytest.raises(EngineFailed, match=r"cora, few: .* comes to 6; expected 5 as written"):
        sweep.train({("cora", "few"): {"rounds": 3}}, by_its_keys)
