"""Several labels a node, and numbers: from data sets to predictions."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics as reference

from retexo_fl import Run, run
from retexo_fl.client.preparation import make_parts
from retexo_fl.errors import DatasetError
from retexo_fl.graph import load_dataset
from tests.support.cli import CommandLine
from tests.support.goals import GOALS, NODES, goal_arrays, write_goals
from tests.support.played_devices import play_devices
from tests.support.runs import (
    configured,
    events_of,
    largest_difference,
    ledger_of,
    model_bytes,
    page_of,
    result_of,
    stop_after,
    train,
)
from tests.support.ways import way

TASKS = ("multi-label", "regression")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_goals(tmp_path_factory.mktemp("goals"))


def keys_of(task: str, folder: Path, **keys: Any) -> dict[str, Any]:
    return {**GOALS, "dataset": task, "task": task, "data_dir": folder, **keys}


@pytest.mark.parametrize("task", TASKS)
def test_one_node_per_client_trains_the_weights_of_one(
    tmp_path: Path, folder: Path, task: str
) -> None:
    keys = keys_of(task, folder, rounds=2, dropout=0.3)
    whole = train(tmp_path / "whole", clients=1, **keys)
    single = train(tmp_path / "single", clients=NODES, partitioner="one-node", **keys)
    assert largest_difference(whole, single) < 1e-9


WAYS: list[dict[str, Any]] = [
    {"local_steps": 3},
    {"algorithm": "drop", "sampler": "full", "batch_nodes": 8},
    {"algorithm": "bns"},
    {"codec": "fixed", "boundary_plan": "cover", "model": "gcn"},
    {"devices": "cpu:2"},
    {"algorithm": "drop", "sampler": "neighbour", "fanouts": "3/3", "devices": "cpu:2"},
]


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("keys", [*map(way, WAYS)])
@pytest.mark.each_choice
def test_every_way_of_training_takes_every_task(
    tmp_path: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    task: str,
    keys: dict[str, Any],
) -> None:
    play_devices(monkeypatch)
    found = result_of(train(tmp_path / "run", **keys_of(task, folder, clients=3, **keys)))
    assert 0 < found["metric"]["value"] < 10
    assert all(stage["metric"]["name"] == found["metric"]["name"] for stage in found["stages"])


def test_numbers_are_learned_in_their_own_units(tmp_path: Path, folder: Path) -> None:
    run = train(tmp_path / "run", **keys_of("regression", folder, clients=3, rounds=60))
    found = result_of(run)
    spread = np.nanstd(goal_arrays()[2])
    assert found["metric"] == {"name": "rmse", "value": found["errors"]["rmse"]}
    assert found["errors"]["mae"] < found["errors"]["rmse"] < 0.8 * spread
    assert 0.3 < found["errors"]["r2"] < 1
    assert found["test_accuracy"] is None
    for stage in found["stages"]:
        rounds = [e for e in events_of(run) if e["event"] == "round"]
        values = [e["val_metric"] for e in rounds if e["stage"] == stage["layer"]]
        assert stage["metric"]["value"] == min(values)


@pytest.mark.parametrize(
    "keys",
    [
        {"dtype": "float32"},
        {"secure_aggregation": "masked"},
        {"basis": "supervised", "basis_bits": 8, "metric": "r2", "dtype": "float32"},
        {"basis": "supervised", "secure_aggregation": "masked", "metric": "mae"},
    ],
    ids=lambda keys: " ".join(map(str, keys.values())),
)
@pytest.mark.each_choice
def test_numbers_far_from_zero_or_small_train_as_near_ones(
    tmp_path: Path, keys: dict[str, Any]
) -> None:
    features, edges, numbers, _ = goal_arrays()
    # So few digits that none is lost by an offset.
    near = np.rint((numbers - 2005) * 64) / 64
    found = {}
    for name, offset, scale in (
        *(("near", 0.0, 1.0), ("far", 1e9, 1.0), ("below", -1e6, 1.0)),
        *(("small", 0.0, 2.0**-20), ("large", 0.0, 2.0**90)),
    ):
        given = offset + scale * near
        np.savez(tmp_path / f"{name}.npz", edge_index=edges, y=given, x=features)
        split = {**GOALS, "task": "regression", "data_dir": tmp_path, "clients": 3, **keys}
        run = train(tmp_path / f"run-{name}", dataset=name, **split)
        result = result_of(run)
        found[name] = {metric: value / scale for metric, value in result["errors"].items()}
        found[name]["r2"] = result["errors"]["r2"]
        if "basis_bits" in keys:
            # What crosses in few bits is not what the module computes.
            continue
        outputs = Run.open(run).model()(load_dataset(name, data_dir=tmp_path))
        assert outputs.dtype == torch.float64
        test = _test_mask(tmp_path, name)
        truth, told = given[test], outputs.numpy()[test, 0]
        for metric, score in (
            ("r2", reference.r2_score),
            ("mae", reference.mean_absolute_error),
            ("rmse", lambda y, p: reference.mean_squared_error(y, p) ** 0.5),
        ):
            assert result["errors"][metric] == pytest.approx(score(truth, told), rel=1e-5), name
    for name, errors in found.items():
        assert errors == pytest.approx(found["near"], rel=1e-3), name


def _test_mask(folder: Path, name: str) -> np.ndarray:
    (part,) = make_parts(
        configured(
            folder / "x", **GOALS, task="regression", data_dir=folder, dataset=name, clients=1
        )
    )
    order = np.argsort([int(key) for key in part.node_keys])
    found: np.ndarray = part.test_mask[order]
    return found


@pytest.mark.parametrize("door", ["npz", "csv", "Data"])
def test_numbers_that_float32_cannot_hold_are_refused(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, door: str
) -> None:
    features, edges, numbers, _ = goal_arrays()
    numbers[[4, 8]] = 1e200, -1e39
    told = "at most 3.4e+38 in size, which float32 holds, or"
    if door == "Data":
        graph = SimpleNamespace(
            x=torch.from_numpy(features),
            edge_index=torch.from_numpy(edges.astype(np.int64)),
            y=torch.from_numpy(numbers),
        )
        with pytest.raises(DatasetError, match=re.escape(told)):
            run(graph=graph, task="regression", out=tmp_path / "run")
    else:
        np.savez(tmp_path / "g.npz", edge_index=edges, y=numbers, x=features)
        given: tuple[str | Path, ...] = ("--dataset", "g", "--data-dir", tmp_path)
        if door == "csv":
            rows = [
                f"{n},{f[0]},{y}" for n, (f, y) in enumerate(zip(features, numbers, strict=True))
            ]
            rows = [row.replace("nan", "") for row in rows]
            (tmp_path / "nodes.csv").write_text("\n".join(["key,x0,label", *rows]))
            ends = "\n".join(f"{a},{b}" for a, b in edges.T.tolist())
            (tmp_path / "edges.csv").write_text(f"source,target\n{ends}\n")
            given = ("--nodes", tmp_path / "nodes.csv", "--edges", tmp_path / "edges.csv")
        errors = CommandLine(capfd).problems(
            "run", *given, "--task", "regression", "--out", tmp_path / "run"
        )
        assert all(told in line for line in errors), errors
        row = "nodes.csv: line 6: label: got '1e+200'" if door == "csv" else "row 4 is 1e+200"
        assert row in errors[0]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("task", TASKS)
def test_a_ledger_is_that_of_as_many_classes(tmp_path: Path, folder: Path, task: str) -> None:
    run = train(tmp_path / "run", **keys_of(task, folder, clients=3, codec="dense"))
    predicted, volumes = result_of(run)["plan"]["predicted_raw"], result_of(run)["bytes"]["raw"]
    for kind in ("boundary", "updates_up", "weights_down"):
        assert volumes[kind] == predicted[kind] == ledger_of(run).sum(kind=kind).raw


@pytest.mark.parametrize("task", TASKS)
def test_a_resumed_training_ends_as_an_undisturbed_one(
    tmp_path: Path, folder: Path, task: str
) -> None:
    keys = keys_of(task, folder, clients=2)
    whole = train(tmp_path / "whole", **keys)

    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(out, stop_after(2, stage=1), **keys)
    train(out, **keys, resume=out)
    assert model_bytes(out) == model_bytes(whole)
    assert result_of(out)["metric"] == result_of(whole)["metric"]


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("form", ["csv", "npz", "parquet"])
@pytest.mark.each_choice
def test_predictions_are_those_of_the_test(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, folder: Path, task: str, form: str
) -> None:
    retexo = CommandLine(capfd)
    graph = ("--dataset", task, "--data-dir", folder, "--task", task)
    cut = ("--split", GOALS["split"], "--clients", "3")
    retexo.done("partition", "make", *graph, *cut, "--out", tmp_path / "parts")
    trained = ("--task", task, "--rounds", "4", "--hidden", "8", "--dtype", "float64", "--quiet")
    parts = ("--partitions", tmp_path / "parts")
    retexo.done("run", *parts, *trained, "--out", tmp_path / "run")
    told = retexo.done("predict", tmp_path / "run", *parts, "--format", form, "--quiet")
    assert ("test accuracy" in told) is (task == "multi-label")
    found, test = _predictions(tmp_path / "parts", task, form), _test_nodes(tmp_path / "parts")
    result = result_of(tmp_path / "run")
    of_parts = json.loads((tmp_path / "parts" / "predictions.json").read_text())["metric"]
    # In the labels' own units, of the selected weights: as the run's test.
    assert of_parts["test"] == pytest.approx(result["metric"]["value"], rel=1e-9)
    if task == "regression":
        numbers = goal_arrays()[2][test]
        errors = np.array([found[node] for node in test])[:, 0] - numbers
        assert np.sqrt(np.mean(errors**2)) == pytest.approx(result["errors"]["rmse"], rel=1e-9)
        return
    labels = goal_arrays()[3][test]
    rows = np.array([found[node] for node in test])
    values = [
        reference.roc_auc_score(labels[known, label] == 1, rows[known, 3 + label])
        for label in range(3)
        if len({*labels[known := labels[:, label] >= 0, label].tolist()}) > 1
    ]
    assert result["metric"]["value"] == pytest.approx(np.mean(values), abs=1e-2)
    for label, row in enumerate(result["labels"]):
        assert row["positive"] == np.sum(labels[:, label] == 1)
        assert row["predicted"] == np.sum((rows[:, label] == 1) & (labels[:, label] >= 0))
        assert row["hits"] == np.sum((rows[:, label] == 1) & (labels[:, label] == 1))


def _predictions(parts: Path, task: str, form: str) -> dict[int, list[float]]:
    """By node, the numbers of its row."""
    found: dict[int, list[float]] = {}
    head = ["value"] if task == "regression" else ["label0", "label1", "label2", "p0", "p1", "p2"]
    for client in range(3):
        path = parts / f"predictions-{client}.{form}"
        if form == "csv":
            with path.open() as file:
                names, *rows = csv.reader(file)
            assert names == ["key", *head]
            found |= {int(row[0]): [float(text) for text in row[1:]] for row in rows}
        elif form == "parquet":
            from pyarrow import parquet

            table = parquet.read_table(path)
            assert table.column_names == ["key", *head]
            columns = [table[name].to_pylist() for name in head]
            numbers = [list(row) for row in zip(*columns, strict=True)]
            found |= dict(zip(map(int, table["key"].to_pylist()), numbers, strict=True))
        else:
            with np.load(path) as arrays:
                assert arrays["key"].dtype.kind == "S"
                values = (
                    arrays["value"][:, None]
                    if task == "regression"
                    else np.concatenate([arrays["labels"], arrays["probability"]], axis=1)
                )
                found |= dict(zip(map(int, arrays["key"]), values.tolist(), strict=True))
    assert sorted(found) == list(range(NODES))
    return found


def _test_nodes(parts: Path) -> list[int]:
    nodes = []
    for part in parts.glob("part-*"):
        keys = np.load(part / "node_keys.npy")
        nodes += [int(key) for key in keys[np.load(part / "test_mask.npy")]]
    return sorted(nodes)


@pytest.mark.parametrize("task", TASKS)
def test_the_report_shows_what_fits(tmp_path: Path, folder: Path, task: str) -> None:
    keys = keys_of(task, folder, clients=3, per_client_metrics=True)
    run = train(tmp_path / "run", **keys)
    page = page_of(run)
    assert f"<dt>Test {result_of(run)['metric']['name']}</dt>" in page
    assert ("Confusion matrix" in page) is False
    assert (">Errors</h2>" in page) is (task == "regression")
    assert (">Labels</h2>" in page) is (task == "multi-label")
    assert "of each client&#x27;s own nodes" in page or "of each client's own nodes" in page


def test_the_command_tells_the_error_of_numbers(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, folder: Path
) -> None:
    options = ("--dataset", "regression", "--data-dir", folder, "--task", "regression")
    retexo = CommandLine(capfd)
    ended = retexo("run", *options, "--rounds", "3", "--hidden", "8", "--out", tmp_path / "run")
    assert ended.code == 0, ended.err
    value = result_of(tmp_path / "run")["metric"]["value"]
    assert ended.out.splitlines()[0] == f"test rmse       {value:.4f}"
    assert "accuracy" not in ended.out + ended.err
    assert f"done: test rmse {value:.4f}, validation " in ended.err


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--task", "regression"), "task: regression does not fit the labels of data set 'digits'"),
        (("--task", "multi-label"), "task: multi-label does not fit the labels of data set"),
        (("--metric", "rmse"), "metric: rmse does not go with task classes; expected auto, accur"),
        (("--loss", "squared"), "loss: squared does not go with task classes; expected auto, cros"),
        (
            ("--task", "regression", "--metric", "roc-auc"),
            "metric: roc-auc does not go with task regression; expected auto, rmse, mae, r2, or mo",
        ),
        (
            ("--task", "multi-label", "--metric", "balanced-accuracy"),
            "metric: balanced-accuracy does not go with task multi-label; expected auto, roc-auc,",
        ),
        (
            ("--task", "regression", "--loss", "focal:2"),
            "loss: focal:2 does not go with task regression; expected auto, squared, or module:att",
        ),
        (
            ("--task", "regression", "--class-weights", "balanced"),
            "class-weights: balanced does not go with task regression; expected none",
        ),
        (
            ("--task", "edges"),
            "task: got 'edges'; expected one of classes, multi-label, regression, links",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, options: tuple[str, ...], told: str
) -> None:
    found = CommandLine(capfd).refused("run", *options, "--quiet", "--out", tmp_path / "new")
    assert found.startswith(told)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("task", "options", "told"),
    [
        (
            "multi-label",
            (),
            "multi-label.npz: y: got shape (60, 3); expected one class for each node with task",
        ),
        (
            "regression",
            ("--task", "regression", "--split", "per-client-class:0.4/0.3/0.3"),
            "split: per-client-class:0.4/0.3/0.3 does not fit the labels of data set 'regression'",
        ),
        (
            "multi-label",
            ("--task", "multi-label", "--metric", "f1:3"),
            "metric: f1:3: there is no class 3; expected one from 0 to 2",
        ),
        (
            "multi-label",
            ("--task", "multi-label", "--class-weights", "1,2"),
            "class-weights: got 2 numbers; expected 3, one for each label",
        ),
    ],
)
def test_labels_that_do_not_fit_are_refused_in_one_line(
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    folder: Path,
    task: str,
    options: tuple[str, ...],
    told: str,
) -> None:
    where = ("--dataset", task, "--data-dir", folder, "--quiet")
    found = CommandLine(capfd).refused("run", *where, *options, "--out", tmp_path / "new")
    assert found.removeprefix(f"{folder}/").startswith(told)
    assert not (tmp_path / "new").exists()
