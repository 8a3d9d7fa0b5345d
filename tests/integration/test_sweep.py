"""Sweeps: many trainings as one table, which goes on where it was stopped."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch

import retexo_fl
from retexo_fl.errors import ConfigurationError, InputError
from retexo_fl.layers.sage import SageLayer
from tests.support.cli import PROGRAM, CommandLine, environment
from tests.support.runs import model_bytes, result_of

KEYS: dict[str, Any] = {"clients": 2, "hidden": 8, "rounds": 2}
SLOW = '[base]\nclients = 2\nhidden = 8\nprofile = "retexo"\nrounds = 350\nseed = [0, 1]\n'


@pytest.fixture
def retexo(capfd: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capfd)


def table_of(out: Path) -> list[dict[str, str]]:
    with (out / "sweep.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.usefixtures("forked_runs")
def test_a_run_that_fails_does_not_end_the_others(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    keys = {**KEYS, "algorithm": ["lazy", "central", "drop"]}
    rows = retexo_fl.sweep(out=tmp_path / "sweep", jobs=2, **keys)
    assert [row.keys["algorithm"] for row in rows] == ["lazy", "central", "drop"]
    lazy, central, drop = rows
    assert central.error.startswith("clients: ")
    assert (central.result, central.path.exists()) == (None, False)
    alone = retexo_fl.run(out=tmp_path / "run", quiet=True, **{**keys, "algorithm": "lazy"})
    assert model_bytes(lazy.path) == model_bytes(alone.path)
    assert lazy.result is not None
    assert lazy.result.test_accuracy == alone.result.test_accuracy
    assert lazy.cells()["validation"] == alone.result.val_accuracy
    told = capfd.readouterr().err
    assert "algorithm central: failed: clients: " in told
    assert f"algorithm lazy: accuracy, validation {alone.result.val_accuracy:.4f}, test" in told
    assert [row["state"] for row in table_of(tmp_path / "sweep")] == [
        *("finished", "failed", "finished")
    ]
    # Called again, and for one more: what has finished is not trained again.
    before = [(row.path, (row.path / "result.json").stat().st_mtime_ns) for row in (lazy, drop)]
    more = [{"algorithm": name} for name in ("standard", "drop", "lazy")]
    again = retexo_fl.sweep(more, out=tmp_path / "sweep", quiet=True, **KEYS)
    assert [(row.path, (row.path / "result.json").stat().st_mtime_ns) for row in again[:0:-1]] == (
        before
    )
    assert [row.error for row in again] == ["", "", ""]
    assert len(table_of(tmp_path / "sweep")) == 3


def until(happens: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Wait for something that a sweep's processes do."""
    deadline = time.monotonic() + 100
    while not happens():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def has_checkpoint(run: Path) -> bool:
    return (run / "checkpoint.safetensors").exists()


@pytest.mark.system
def test_what_was_killed_or_interrupted_is_resumed(tmp_path: Path) -> None:
    (tmp_path / "SWEEP.toml").write_text(SLOW)
    command = [*PROGRAM, "sweep", "SWEEP.toml", "--out", "sweep"]

    def start(*more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*command, *more],
            cwd=tmp_path,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    out = tmp_path / "sweep"
    process = start("--jobs", "2")
    until(lambda: sum(map(has_checkpoint, out.glob("seed-*"))) == 2, process)
    (first,) = out.glob("seed-0-*")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    victim = next(
        pid for pid in children if str(first).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    )
    os.kill(int(victim), signal.SIGKILL)
    until((out / "sweep.csv").exists, process)
    assert table_of(out)[0]["error"] == "ended by SIGKILL"
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=500)
    assert process.returncode == 130
    assert told.splitlines()[-1].startswith("retexo: interrupted; 1 of 2 runs have ended, the same")
    assert not list(out.glob("*/result.json"))
    process = start("--json")
    stdout, told = process.communicate(timeout=500)
    assert process.returncode == 0, told
    for seed, row in enumerate(json.loads(stdout)):
        run = Path(row["run"])
        assert (row["seed"], result_of(run)["attempts"]) == (seed, 2)
        assert row["test"] == result_of(run)["test_accuracy"]
    alone = retexo_fl.run(
        clients=2, hidden=8, profile="retexo", rounds=350, out=tmp_path / "run", quiet=True
    )
    assert model_bytes(first) == model_bytes(alone.path)


@pytest.mark.system
def test_the_command_shows_in_what_runs_differ(tmp_path: Path, retexo: CommandLine) -> None:
    file = tmp_path / "SWEEP.toml"
    file.write_text(
        '[base]\nclients = 2\nhidden = 8\nrounds = 2\n\n[[run]]\nmodel = "gcn"\n\n'
        '[[run]]\nalgorithm = "central"\nseed = 3\n'
    )
    ended = retexo("sweep", file, "--out", tmp_path / "sweep", "--quiet")
    assert ended.code == 1
    assert ended.err == ""
    lines = [line.split() for line in ended.out.splitlines()]
    figures = ["metric", "validation", "test", "payload", "time"]
    assert lines[0] == ["run", "model", "algorithm", "seed", *figures]
    assert lines[1][:4] == ["1", "gcn", "-", "-"]
    assert lines[2][:4] == ["2", "-", "central", "3"]
    assert "run 2: clients: " in ended.out


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "expected a table"),
        ("[bas]\nrounds = 1\n", "expected a table .*; got 'bas'"),
        ("run = 3\n", "expected a table"),
        ("[base]\nhiden = 1\n", "hiden: unknown configuration key"),
        ("[base]\nrounds = [1, 0]\n", "rounds: got 0; expected"),
        ('[base]\nprofile = "best"\n', "profile: got 'best'"),
        ('[base]\nout = "runs"\n', "out: is the sweep's to choose"),
        ("[base]\nseed = [1, 1]\n", "run 2 is run 1 again"),
    ],
)
def test_bad_sweeps_are_refused_whole(
    tmp_path: Path, retexo: CommandLine, text: str, told: str
) -> None:
    file = tmp_path / "SWEEP.toml"
    file.write_text(text)
    sentence = retexo.refused("sweep", file, "--out", tmp_path / "sweep")
    assert re.search(told, sentence), sentence
    assert not (tmp_path / "sweep").exists()


def test_python_refuses_what_other_processes_cannot_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = type("OwnLayer", (SageLayer,), {"__module__": "__main__"})
    monkeypatch.setattr(sys.modules["__main__"], "OwnLayer", own, raising=False)
    with pytest.raises(ConfigurationError, match="model: OwnLayer is known to this process"):
        retexo_fl.sweep(model=own, out=tmp_path / "sweep")
    with pytest.raises(ConfigurationError, match="jobs: got 0"):
        retexo_fl.sweep(out=tmp_path / "sweep", jobs=0)


def as_frames() -> dict[str, Any]:
    """Return the graph as tables of pandas, whose nodes have names."""
    data = as_data(moved=0)
    ends = data.edge_index.T.tolist()
    keys = [f"n{node}" for node in range(len(data.y))]
    columns = {f"x_{at}": data.x[:, at].tolist() for at in range(data.x.shape[1])}
    nodes = pandas.DataFrame({"key": keys, "label": data.y.tolist(), **columns})
    edges = pandas.DataFrame([(keys[u], keys[v]) for u, v in ends], columns=["source", "target"])
    return {"nodes": nodes, "edges": edges, "features": "auto"}


def as_data(*, moved: int) -> Any:
    random = np.random.default_rng(3)
    labels = np.arange(40) % 2
    ends = np.stack([np.arange(40), (np.arange(40) + 2) % 40])
    x = (labels[:, None] + random.normal(size=(40, 4)) + moved).astype(np.float32)
    with warnings.catch_warnings():
        # PyTorch deprecates what PyG does when it is imported.
        warnings.simplefilter("ignore")
        from torch_geometric.data import Data
    return Data(
        x=torch.from_numpy(x), edge_index=torch.from_numpy(ends), y=torch.from_numpy(labels)
    )


@pytest.mark.usefixtures("forked_runs")
def test_a_graph_that_is_handed_over_trains_as_in_a_run(tmp_path: Path) -> None:
    # In other forms it is cut into the same parts (test_whole_graphs.py), which processes read.
    graph = as_frames()
    keys: dict[str, Any] = {**KEYS, "partitioner": "random", "split": "random:0.4/0.3/0.3"}
    (row,) = retexo_fl.sweep(out=tmp_path / "sweep", quiet=True, **keys, **graph)
    assert row.error == ""
    alone = retexo_fl.run(out=tmp_path / "run", quiet=True, **keys, **graph)
    assert model_bytes(row.path) == model_bytes(alone.path)
    assert row.result is not None
    assert row.result.test_accuracy == alone.result.test_accuracy


@pytest.mark.slow
def test_another_graph_has_other_runs_in_the_same_sweep(tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    keys: dict[str, Any] = {"clients": 2, "rounds": 2, "out": out, "quiet": True}

    def swept(moved: int, **more: Any) -> list[tuple[Path, int]]:
        rows = retexo_fl.sweep(graph=as_data(moved=moved), **keys, **more)
        assert [row.error for row in rows] == [""] * len(rows)
        return [(row.path, (row.path / "result.json").stat().st_mtime_ns) for row in rows]

    first = swept(0, hidden=[8, 4])
    # Which model is trained decides over no part.
    assert len([*(out / "parts").iterdir()]) == 1
    other = swept(1, hidden=8)
    assert other[0][0] not in {path for path, _ in first}
    assert swept(0, hidden=[8, 4]) == first
    assert len([*(out / "parts").iterdir()]) == 2
    # Whoever interrupts it finds the parts again, also where the folder has been moved.
    (first[0][0] / "result.json").unlink()
    moved_out = tmp_path / "moved"
    out.rename(moved_out)
    keys["out"] = moved_out
    assert (moved_out / first[0][0].name / "checkpoint.safetensors").is_file()
    again = swept(0, hidden=[8, 4])
    assert again[1][1] == first[1][1]
    assert retexo_fl.Run.open(again[0][0]).result.attempts == 2


@pytest.mark.usefixtures("forked_runs")
def test_graphs_that_cannot_be_cut_as_asked(tmp_path: Path) -> None:
    graph = {"graph": as_data(moved=0)}
    for _ in range(2):
        rows = retexo_fl.sweep(
            out=tmp_path / "sweep",
            split=["auto", "published"],
            quiet=True,
            overwrite=True,
            **KEYS,
            **graph,
        )
        assert rows[0].error == ""
        assert "published" in rows[1].error
    for wrong, told in (
        ({"graph": [1, 2, 3]}, "graph: got list; expected"),
        ({**graph, "configs": [{}, {"dataset": "digits"}]}, "dataset: cannot be given with graph"),
        ({**graph, "split": "published"}, "published"),
    ):
        with pytest.raises(InputError, match=told):
            retexo_fl.sweep(out=tmp_path / "none", quiet=True, **KEYS, **wrong)
        assert not (tmp_path / "none").exists()


def several_splits(num_splits: int, num_nodes: int = 60) -> dict[str, Any]:
    """Return a ring of nodes with several published splits, as heterophilous-graphs has them."""
    generator = np.random.default_rng(5)
    nodes = np.arange(num_nodes)
    uses = np.stack([generator.permutation(num_nodes) % 3 for _ in range(num_splits)])
    return {
        "edge_index": np.stack((nodes, (nodes + 1) % num_nodes)),
        "x": generator.normal(size=(num_nodes, 4)).astype(np.float32),
        "y": nodes % 2,
        **{f"{use}_masks": uses == n for n, use in enumerate(("train", "val", "test"))},
    }


@pytest.mark.slow
@pytest.mark.usefixtures("forked_runs")
def test_each_published_split_is_a_run(tmp_path: Path, retexo: CommandLine) -> None:
    np.savez(tmp_path / "ring.npz", **several_splits(3))
    chosen = ["--dataset", "ring", "--data-dir", str(tmp_path), "--split", "published:all"]
    chosen += ["--clients", "2", "--hidden", "8"]
    (tmp_path / "sweep.toml").write_text("[base]\nrounds = 9\nhidden = 4\nseed = [3, 4]\n")
    out = tmp_path / "sweep"
    told = retexo(
        "sweep", str(tmp_path / "sweep.toml"), *chosen, "--rounds", "1", "--out", str(out)
    )
    assert "6 runs (3 splits x 2 seeds)" in told.out
    assert " ± " in told.out
    rows = table_of(out)
    # Options win over the file.
    assert {(row["rounds"], row["hidden"]) for row in rows} == {("1", "8")}
    assert sorted({row["split"] for row in rows}) == [f"published:{n}" for n in range(3)]
    keys: dict[str, Any] = {
        "clients": 2,
        "hidden": 8,
        "rounds": 1,
        "seed": 4,
        "split": "published:2",
    }
    alone = retexo_fl.run(
        dataset="ring", data_dir=tmp_path, out=tmp_path / "run", quiet=True, **keys
    )
    (same,) = (row for row in rows if (row["split"], row["seed"]) == ("published:2", "4"))
    assert model_bytes(Path(same["run"])) == model_bytes(alone.path)
    # Again, and of a graph that is handed over: nothing is trained twice.
    again = retexo_fl.sweep(
        graph=several_splits(2), split="published:all", out=tmp_path / "given", quiet=True, **KEYS
    )
    (mean,) = again.means()
    assert (mean.runs, mean.failed, mean.splits, mean.seeds) == (2, 0, 2, 1)
    assert [row.keys["split"] for row in again] == ["published:0", "published:1"]


def test_published_all_needs_several_splits_and_a_sweep(
    tmp_path: Path, retexo: CommandLine
) -> None:
    np.savez(tmp_path / "ring.npz", **several_splits(1))
    chosen = ["--data-dir", str(tmp_path), "--split", "published:all", "--out", str(tmp_path / "o")]
    cases = {
        ("sweep", "--dataset=ring"): "split: data set 'ring' has one published split, and "
        "published:all is for several; expected published",
        ("sweep", "--dataset=digits"): "split: data set 'digits' has no published split, and "
        "published:all is for several; expected random:TRAIN/VAL/TEST, such as random:0.6/0.2/0.2",
        ("run", "--dataset=ring"): "split: published:all is a run for each split that the graph "
        "brings; expected it in a sweep (`retexo sweep` takes the same keys), or published:COLUMN",
    }
    for words, expected in cases.items():
        assert retexo.refused(*words, *chosen) == expected
        assert not (tmp_path / "o").exists()
    assert retexo.refused("sweep", "--out", str(tmp_path / "o")) == (
        "SWEEP.toml: missing; expected a file of runs, or keys as options"
    )
    with pytest.raises(ConfigurationError, match="^split: data set 'graph' has one published"):
        retexo_fl.sweep(graph=several_splits(1), split="published:all", out=tmp_path / "o")
    with pytest.raises(ConfigurationError, match="^split: cannot be given with partitions"):
        retexo_fl.sweep(partitions=tmp_path, split="published:all", out=tmp_path / "o")
    with pytest.raises(ConfigurationError, match="^split: .published. does not go with task links"):
        retexo_fl.sweep(
            graph=several_splits(2), task="links", split="published:all", out=tmp_path / "o"
        )
