"""Trainings that select and report by a metric, which is told everywhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.cli import CommandLine
from tests.support.played_devices import play_devices
from tests.support.rare import RARE, write_rare
from tests.support.runs import (
    events_of,
    largest_difference,
    ledger_of,
    model_bytes,
    page_of,
    result_of,
    stop_after,
    train,
)

METRICS = ("balanced-accuracy", "macro-f1", "f1:1", "recall:1", "precision:1")
RANKINGS = ("roc-auc", "average-precision")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rare(tmp_path_factory.mktemp("rare"))


@pytest.mark.parametrize(("metric", "best"), [("log-loss", min), ("roc-auc", max)])
def test_the_metric_selects_the_best_round(
    tmp_path: Path, folder: Path, metric: str, best: Any
) -> None:
    keys = {**RARE, "learning_rate": 0.3, "rounds": 12}
    run = train(tmp_path / "run", clients=2, data_dir=folder, metric=metric, **keys)
    for stage in result_of(run)["stages"]:
        rounds = [e for e in events_of(run) if e["event"] == "round"]
        values = [e["val_metric"] for e in rounds if e["stage"] == stage["layer"]]
        assert len({*values}) > 3
        assert stage["metric"]["value"] == best(values) == values[stage["best_round"] - 1]
        end = next(
            e for e in events_of(run) if e["event"] == "stage_end" and e["stage"] == stage["layer"]
        )
        assert end["val_metric"] == best(values)


def test_a_resumed_training_selects_as_an_undisturbed_one(tmp_path: Path, folder: Path) -> None:
    keys = {**RARE, "clients": 2, "data_dir": folder, "metric": "log-loss"}
    whole = train(tmp_path / "whole", **keys)

    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(out, stop_after(5), **keys)
    train(out, **keys, resume=out)
    assert model_bytes(out) == model_bytes(whole)
    for key in ("metric", "stages", "confusion"):
        assert result_of(out)[key] == result_of(whole)[key]


@pytest.mark.devices
def test_several_devices_count_as_one(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play_devices(monkeypatch)
    keys = {**RARE, "clients": 2, "data_dir": folder, "metric": "roc-auc", "rounds": 2}
    one = train(tmp_path / "one", **keys)
    two = train(tmp_path / "two", devices="cpu:2", **keys)
    assert largest_difference(one, two) < 1e-9
    found, expected = result_of(two), result_of(one)
    assert found["metric"]["value"] == pytest.approx(expected["metric"]["value"], rel=1e-9)
    assert found["confusion"] == expected["confusion"]


@pytest.mark.parametrize("algorithm", ["standard", "drop", "central"])
def test_baselines_are_judged_alike(tmp_path: Path, folder: Path, algorithm: str) -> None:
    clients = 1 if algorithm == "central" else 3
    keys = {**RARE, "data_dir": folder, "algorithm": algorithm, "metric": "average-precision"}
    run = train(tmp_path / "run", clients=clients, **keys)
    found = result_of(run)
    assert 0 < found["metric"]["value"] <= 1
    assert np.sum(found["confusion"]) == sum(row["test"] for row in found["client_table"])
    right = np.trace(np.array(found["confusion"])) / np.sum(found["confusion"])
    assert right == pytest.approx(found["test_accuracy"])


def test_sums_of_a_metric_move_no_weights_and_no_vectors(tmp_path: Path, folder: Path) -> None:
    keys = {**RARE, "clients": 3, "data_dir": folder}
    totals = {}
    for metric in ("accuracy", "roc-auc"):
        run = train(tmp_path / metric, metric=metric, **keys)
        kinds = ("boundary", "weights_down", "updates_up")
        totals[metric] = {kind: ledger_of(run).sum(kind=kind).raw for kind in kinds}
    assert totals["accuracy"] == totals["roc-auc"]


def test_no_client_tells_its_own_figure_unless_it_is_asked(tmp_path: Path, folder: Path) -> None:
    keys = {**RARE, "clients": 3, "data_dir": folder, "metric": "recall:1"}
    silent = train(tmp_path / "silent", **keys)
    assert all("test_metric" not in row for row in result_of(silent)["client_table"])
    assert "each client's own nodes" not in page_of(silent)
    told = train(tmp_path / "told", per_client_metrics=True, **keys)
    assert model_bytes(told) == model_bytes(silent)
    own = [row["test_metric"] for row in result_of(told)["client_table"]]
    assert len(own) == 3
    page = page_of(told)
    shown = (f"{value:.4f}" for value in (min(own), max(own), sorted(own)[1]))
    assert "own nodes: from {} to {}, median {}, of 3 clients".format(*shown) in page


def test_accuracy_of_each_client_is_of_its_own_nodes(tmp_path: Path, folder: Path) -> None:
    keys = {**RARE, "clients": 3, "data_dir": folder, "per_client_metrics": True}
    found = result_of(train(tmp_path / "run", **keys))
    right = sum(row["test_metric"] * row["test"] for row in found["client_table"])
    nodes = sum(row["test"] for row in found["client_table"])
    assert right / nodes == pytest.approx(found["test_accuracy"])


def test_the_report_shows_the_metric_and_every_class(tmp_path: Path, folder: Path) -> None:
    keys = {**RARE, "clients": 2, "data_dir": folder, "metric": "f1:1"}
    run = train(tmp_path / "run", **keys)
    page, found = page_of(run), result_of(run)
    assert "<dt>Test f1:1</dt>" in page
    assert f"<b>{found['metric']['value']:.4f}</b>" in page
    assert "micro-F1" not in page
    assert "F1:1 against bytes" in page
    matrix = np.array(found["confusion"])
    for c in range(2):
        recall = matrix[c, c] / matrix[c].sum()
        assert f'data-value="{recall}">{recall:.4f}' in page


def test_the_command_tells_the_metric_live_and_last(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, folder: Path
) -> None:
    retexo = CommandLine(capfd)
    options = ("--dataset", "rare", "--data-dir", folder, "--rounds", "3", "--hidden", "8")
    ended = retexo("run", *options, "--metric", "roc-auc", "--out", tmp_path / "run")
    assert ended.code == 0, ended.err
    assert "metric roc-auc" in ended.err
    assert re.search(r"stage 0: round 3/3.*validation 0\.\d{4}, best 0\.\d{4}", ended.err)
    value = result_of(tmp_path / "run")["metric"]["value"]
    assert f"done: test roc-auc {value:.4f} (accuracy " in ended.err
    assert ended.out.splitlines()[0] == f"test roc-auc    {value:.4f}"


@pytest.mark.parametrize(
    ("metric", "told"),
    [
        ("f1:2", "metric: f1:2: there is no class 2; expected one from 0 to 1"),
        ("recall:9", "metric: recall:9: there is no class 9; expected one from 0 to 1"),
    ],
)
def test_a_class_that_is_none_is_refused_before_anything_is_written(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, folder: Path, metric: str, told: str
) -> None:
    retexo = CommandLine(capfd)
    options = ("--dataset", "rare", "--data-dir", folder, "--quiet", "--metric", metric)
    assert retexo.refused("run", *options, "--out", tmp_path / "new") == told
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("metric", ["f1", "f1:", "hits:few", "auc", "roc-auc:1"])
def test_a_name_that_is_no_metric_is_refused(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, metric: str
) -> None:
    told = CommandLine(capfd).refused("run", "--metric", metric, "--out", tmp_path / "new")
    assert told.startswith(
        f"metric: got {metric!r}; expected one of auto, accuracy, balanced-accuracy,"
    )
    assert not (tmp_path / "new").exists()
