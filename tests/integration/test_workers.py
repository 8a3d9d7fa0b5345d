"""Workers that share a folder train the bits of one process, whatever is trained.

What Flower's own processes add to that is tested with a few trainings (``tests/system``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from retexo_fl.client import factory
from retexo_fl.graph import GraphPartition, open_partition
from tests.support.goals import write_goals
from tests.support.predictions import SMALL, write_small
from tests.support.runs import curves_of, model_bytes, result_of, train
from tests.support.ways import profile_keys
from tests.support.workers import PickledApp, train_in_workers

KEYS: dict[str, Any] = {"clients": 3, "hidden": 8, "rounds": 3}
#: Coordinates of features, and few bits of all that moves.
LEAN: dict[str, Any] = {
    **{"basis": "supervised", "basis_rows": "sums", "basis_bits": 8, "basis_blocks": 2},
    **{"optimizer": "lbfgs", "warm_start": True, "dropout": 0.0},
    **{"update_bits": 8, "weight_bits": 8, "row_bits": 8},
}
ONE_SHOT = profile_keys("one-shot")
SCAFFOLD = {"local_steps": 3, "local_optimizer": "sgd", "local_correction": "scaffold"}
MASKED = {"secure_aggregation": "masked"}
BALANCED = {"metric": "roc-auc", "class_weights": "balanced", "loss": "focal:2"}


def assert_same(tmp_path: Path, keys: dict[str, Any]) -> None:
    one = train(tmp_path / "inline", **keys)
    other = train_in_workers(tmp_path / "workers", **keys)
    assert model_bytes(other) == model_bytes(one)
    left, right = result_of(one), result_of(other)
    for key in ("metric", "test_accuracy", "val_accuracy", "micro_f1", "errors", "labels"):
        assert left.get(key) == right.get(key)
    for key in ("stages", "missing_rows", "client_table"):
        assert left[key] == right[key]
    for measure in ("raw", "payload"):
        for kind in ("boundary", "updates_up", "weights_down"):
            assert left["bytes"][measure][kind] == right["bytes"][measure][kind]
    assert curves_of(one) == curves_of(other)


@pytest.mark.parametrize(
    ("model", "more"),
    [
        ("sage", {}),
        ("gat", {"heads": 2}),
        ("gcn", LEAN),
        ("gcn", LEAN | MASKED),
        ("gat", {"heads": 2} | MASKED),
        ("gcn", {**LEAN, "basis_rows": "own", "second_rows": "none"} | MASKED),
        ("sage", {"second_rows": "none", "layers": 3}),
        ("gcn", {**LEAN, "basis_rows": "own", "second_rows": "class"} | MASKED),
        ("gcn", {"second_rows": "class", "layers": 3}),
        ("gcn", ONE_SHOT),
        ("gcn", SCAFFOLD),
        ("sage", BALANCED),
    ],
)
@pytest.mark.each_choice
def test_clients_that_move_between_workers_train_the_same(
    tmp_path: Path, model: str, more: dict[str, Any]
) -> None:
    write_small(tmp_path / "small.npz", nodes=60)
    assert_same(tmp_path, {**SMALL, "data_dir": tmp_path, **KEYS, "model": model, **more})


@pytest.mark.parametrize("task", ["multi-label", "regression", "links"])
def test_every_task_is_trained_the_same(tmp_path: Path, task: str) -> None:
    data = {"dataset": "regression" if task == "links" else task, "data_dir": write_goals(tmp_path)}
    assert_same(tmp_path, {**data, "task": task, **KEYS, "per_client_metrics": True})


@pytest.mark.parametrize("more", [{}, LEAN | MASKED], ids=["plain", "lean and masked"])
def test_a_worker_makes_each_client_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    """Though Ray brings the ClientApp anew with every message."""
    write_small(tmp_path / "small.npz", nodes=60)
    keys = {**SMALL, "data_dir": tmp_path, **KEYS, "model": "gcn", **more}
    opened: list[str] = []

    def open_noted(folder: Path) -> GraphPartition:
        opened.append(folder.name)
        return open_partition(folder)

    monkeypatch.setattr(factory, "open_partition", open_noted)
    one = train(tmp_path / "inline", **keys)
    other = train_in_workers(tmp_path / "workers", PickledApp, **keys)
    assert sorted(opened) == ["part-0", "part-1", "part-2"]
    assert model_bytes(other) == model_bytes(one)
