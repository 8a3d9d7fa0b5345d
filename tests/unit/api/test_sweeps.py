from __future__ import annotations

import csv
import errno
import os
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import retexo_fl
from retexo_fl.api import sweeps
from retexo_fl.api.sweep_graph import SweepGraph
from retexo_fl.api.sweep_rows import SweepRow
from retexo_fl.api.sweeps import expanded, sweep_in
from retexo_fl.errors import ConfigurationError, Interrupted
from retexo_fl.file_lock import lock_run

#: Takes the place of Python: notes what it is asked for, and ends as a run that failed does.
PROGRAM = """#!/bin/sh
trap 'echo stopped >> {log}; exit 130' INT
echo "start $*" >> {log}
sleep 0.2
echo end >> {log}
echo "retexo: a warning" >&2
echo "retexo: error: no luck" >&2
exit 2
"""


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


def test_a_row_shows_the_metric_that_was_chosen(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"clients": 2, "hidden": 4, "rounds": 2, "quiet": True}
    run = retexo_fl.run(out=tmp_path / "run", metric="macro-f1", **keys)
    cells = SweepRow(keys={"hidden": 4}, path=run.path, result=run.result).cells()
    metric, last = run.result.metric, run.result.stages[-1].metric
    assert metric is not None
    assert last is not None
    assert (cells["metric"], cells["test"]) == ("macro-f1", metric.value)
    assert cells["validation"] == last.value
    assert metric.value != run.result.test_accuracy
    assert last.value != run.result.val_accuracy
    assert cells["payload_bytes"] == run.result.volumes["payload"]["total"]
    assert cells["state"] == "finished"


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where each process of a sweep notes when it begins and ends."""
    program, log = tmp_path / "python", tmp_path / "log"
    program.write_text(PROGRAM.format(log=log))
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    return log


def started(log: Path) -> list[str]:
    return [line for line in log.read_text().splitlines() if line.startswith("start ")]


@pytest.mark.parametrize("jobs", [1, 2])
def test_so_many_runs_are_under_way_at_once(tmp_path: Path, log: Path, jobs: int) -> None:
    rows = retexo_fl.sweep(seed=range(4), out=tmp_path / "sweep", jobs=jobs, quiet=True)
    running, most = 0, 0
    for line in log.read_text().splitlines():
        running += 1 if line.startswith("start") else -1
        most = max(most, running)
    assert most == jobs
    assert Counter(row.error for row in rows) == {"no luck": 4}
    assert [row.keys["seed"] for row in rows] == [0, 1, 2, 3]
    with (tmp_path / "sweep" / "sweep.csv").open(newline="") as file:
        assert [line["seed"] for line in csv.DictReader(file)] == ["0", "1", "2", "3"]


def test_a_run_with_a_checkpoint_goes_on_and_another_begins_anew(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "sweep"
    first, second = retexo_fl.sweep(seed=range(2), out=out, quiet=True)
    for row in (first, second):
        row.path.mkdir()
        (row.path / "config.toml").write_text("seed = 0\n")
    (first.path / "checkpoint.safetensors").touch()
    (second.path / "of-the-last-time").touch()
    log.unlink()
    retexo_fl.sweep(seed=range(2), out=out, quiet=True)
    resumed, begun = started(log)
    assert resumed.endswith(f"run --quiet --resume={first.path}")
    assert begun.endswith(f"run --quiet --seed=1 --out={second.path}")
    # What an ended run without a checkpoint has left is in the way of a new one.
    assert first.path.is_dir()
    assert not second.path.exists()

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    # What cannot be removed is for that run to tell, and no end of the others.
    second.path.mkdir()
    (second.path / "config.toml").write_text("seed = 1\n")
    with monkeypatch.context() as patched:
        patched.setattr(os, "rmdir", refuse)
        rows = retexo_fl.sweep(seed=range(2), out=out, quiet=True)
    assert [row.error for row in rows] == ["no luck"] * 2


def test_a_run_that_another_process_trains_is_left_alone(tmp_path: Path, log: Path) -> None:
    out = tmp_path / "sweep"
    (row,) = retexo_fl.sweep(seed=[3], out=out, quiet=True)
    row.path.mkdir()
    (row.path / "config.toml").write_text("seed = 3\n")
    log.write_text("")
    with lock_run(row.path / "config.toml"):
        (again,) = retexo_fl.sweep(seed=[3], out=out, quiet=True)
    assert "another process is using the run" in again.error
    assert (row.path / "config.toml").is_file()
    assert started(log) == []


def test_a_sweep_begins_anew_once_a_run_of_the_new_one_has_begun(tmp_path: Path, log: Path) -> None:
    out, program = tmp_path / "sweep", tmp_path / "python"
    (row,) = retexo_fl.sweep(seed=[3], out=out, quiet=True)
    row.path.mkdir()
    (row.path / "config.toml").write_text("seed = 3\n")
    (row.path / "status.json").write_text('{"state": "finished", "error": null}')
    table = (out / "sweep.csv").read_bytes()
    # None of the new runs begins.
    (again,) = retexo_fl.sweep(seed=[4], out=out, overwrite=True, quiet=True)
    assert again.error == "no luck"
    assert (out / "sweep.csv").read_bytes() == table
    assert row.path.is_dir()
    assert not again.path.exists()
    # One does; here it fails later.
    begin = (
        'for place; do :; done\nplace="${place#--out=}"; mkdir "$place"; touch "$place/config.toml"'
    )
    program.write_text(PROGRAM.format(log=log).replace("sleep", f"{begin}\nsleep"))
    (again,) = retexo_fl.sweep(seed=[4], out=out, overwrite=True, quiet=True)
    assert again.path.is_dir()
    assert {path.name for path in out.iterdir()} == {again.path.name, "sweep.csv"}
    assert {path.name for path in tmp_path.iterdir()} == {"sweep", "python", "log"}


def test_a_directory_is_found_again_by_its_keys_alone(tmp_path: Path, log: Path) -> None:
    out = tmp_path / "sweep"
    (row,) = retexo_fl.sweep([{"seed": 3, "hidden": 8}], out=out, quiet=True)
    row.path.mkdir()
    # In another order, and beside a run from which it now differs in a key.
    more = [{"hidden": 8, "seed": 3}, {"hidden": 8, "seed": 4}]
    first, second = retexo_fl.sweep(more, out=out, quiet=True)
    assert first.path == row.path != second.path
    assert second.path.name.startswith("seed-4-")
    assert len(started(log)) == 3


@pytest.mark.parametrize("key", ["out", "resume"])
def test_where_runs_are_is_the_sweeps_to_choose(tmp_path: Path, key: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{key}: is the sweep's to choose"):
        retexo_fl.sweep([{key: "runs"}], out=tmp_path / "sweep")
    assert not (tmp_path / "sweep").exists()


def test_what_is_under_way_is_told_of_an_interruption(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: float) -> None:
        if log.exists() and len(started(log)) == 2:
            raise KeyboardInterrupt

    clock = SimpleNamespace(sleep=interrupted, monotonic=time.monotonic)
    monkeypatch.setattr(sweeps, "time", clock)
    with pytest.raises(Interrupted, match="^interrupted; 0 of 3 runs have ended, the same sweep"):
        retexo_fl.sweep(seed=range(3), out=tmp_path / "sweep", jobs=2, quiet=True)
    assert log.read_text().splitlines().count("stopped") == 2


def test_runs_read_the_parts_that_their_keys_ask_for(tmp_path: Path) -> None:
    ring = np.stack([np.arange(30), (np.arange(30) + 2) % 30])
    x = np.random.default_rng(0).normal(size=(30, 3))
    graph = SweepGraph({"edge_index": ring, "x": x, "y": np.arange(30) % 2}, quiet=True)
    runs: list[dict[str, Any]] = [
        {"clients": 2},
        {"clients": 3},
        {"clients": 2, "seed": 1},
        {"clients": 2, "hidden": 8, "split": "auto"},
    ]
    read = graph.readings(runs, tmp_path)
    given = [keys for keys in read if isinstance(keys, dict)]
    folders = [str(keys.pop("partitions")) for keys in given]
    assert folders[3] == folders[0]
    assert len({*folders}) == len([*(tmp_path / "parts").iterdir()]) == 3
    assert [len([*Path(folder).glob("part-*")]) for folder in folders] == [2, 3, 2, 2]
    assert given == [*runs[:3], {"clients": 2, "hidden": 8}]
