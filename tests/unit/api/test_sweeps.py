from __future__ import annotations

from pathlib import Path

from retexo_fl.api.sweeps import expanded, sweep_in


def test_lists_are_combined_and_tuples_are_values() -> None:
    base = {"model": ["gcn", "gat"], "fanouts": (4, 3), "seed": range(2)}
    assert [(run["model"], run["seed"]) for run in expanded(base, [])] == [
        ("gcn", 0),
        ("gcn", 1),
        ("gat", 0),
        ("gat", 1),
    ]
    assert all(run["fanouts"] == (4, 3) for run in expanded(base, []))


def test_own_keys_take_the_place_of_those_of_all_runs() -> None:
    runs = expanded({"seed": [0, 1], "hidden": 8}, [{"seed": 5}, {"hidden": [16, 32], "seed": 6}])
    assert runs == [
        {"seed": 5, "hidden": 8},
        {"seed": 6, "hidden": 16},
        {"seed": 6, "hidden": 32},
    ]


def test_equal_numbers_are_one_value(tmp_path: Path) -> None:
    (tmp_path / "one.toml").write_text("[base]\nlearning-rate = [1, 0.5]\n")
    runs = sweep_in(tmp_path / "one.toml")
    assert [type(run["learning-rate"]) for run in runs] == [float, float]
