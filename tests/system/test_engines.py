"""Flower's simulation and the in-process engine train the same bits.

What else is trained, without Flower's processes: ``tests/integration/test_workers.py``.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import retexo_fl
from retexo_fl.devices.names import processes_for
from retexo_fl.graph import load_dataset
from tests.support.data import cora_dir
from tests.support.runs import curves_of, model_bytes, result_of

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]


def run(out: Path, *options: str) -> Path:
    command = [sys.executable, "-m", "retexo_fl", "run", "--quiet", "--out", str(out), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return out


#: Coordinates of features, few bits of all that moves, and masks.
LEAN = (
    *("--secure-aggregation", "masked"),
    *(
        "--basis",
        "supervised",
        "--basis-rows",
        "sums",
        "--basis-bits",
        "8",
        "--optimizer",
        "lbfgs",
        "--warm-start",
        "true",
    ),
    *("--update-bits", "8", "--weight-bits", "8", "--row-bits", "8", "--dropout", "0"),
)


def test_both_engines_leave_the_same_model_and_the_same_account(tmp_path: Path) -> None:
    options = [
        *("--dataset", "cora", "--data-dir", str(cora_dir()), "--clients", "3"),
        *("--model", "gcn", *LEAN, "--hidden", "32", "--rounds", "5", "--partitioner", "louvain"),
    ]
    inline = run(tmp_path / "inline", *options)
    flower = run(tmp_path / "flower", *options, "--engine", "flower")
    assert_same(inline, flower)


def test_both_engines_train_a_graph_of_python_by_the_default_profile(tmp_path: Path) -> None:
    """The profile is fitted to the graph before either engine starts."""
    seen: list[tuple[int, int]] = []

    class Rounds:
        def on_round(self, event: retexo_fl.RoundClosed) -> None:
            seen.append((event.stage, event.round))

    keys: dict[str, Any] = {"clients": 3, "hidden": 32, "rounds": 3, "quiet": True}
    keys["graph"] = load_dataset("cora", data_dir=cora_dir())
    inline = retexo_fl.run(out=tmp_path / "inline", **keys)
    flower = retexo_fl.run(out=tmp_path / "flower", engine="flower", callbacks=[Rounds()], **keys)
    assert_same(inline.path, flower.path)
    assert flower.result.profile == inline.result.profile is not None
    assert seen == [(stage, number) for stage in range(2) for number in (1, 2, 3)]


def test_a_worker_of_flower_makes_each_client_once(tmp_path: Path) -> None:
    options = ["--clients", "6", "--rounds", "3", "--hidden", "8", "--devices", "cpu:1"]
    out = run(tmp_path / "flower", *options, "--engine", "flower")
    # A client object looks for its devices once, and says so.
    log = (out / "devices.log").read_text()
    made = Counter(re.findall(r"devices client=(\d+) found", log))
    assert {int(client) for client in made} == {*range(6)}
    assert max(made.values()) <= processes_for(6)


def assert_same(inline: Path, flower: Path) -> None:
    """Compare what was trained, and all that is said of it."""
    assert model_bytes(flower) == model_bytes(inline)
    one, other = result_of(inline), result_of(flower)
    for key in ("test_accuracy", "val_accuracy", "micro_f1", "stages", "missing_rows"):
        assert one[key] == other[key]
    for measure in ("raw", "payload"):
        for kind in ("boundary", "updates_up", "weights_down"):
            assert one["bytes"][measure][kind] == other["bytes"][measure][kind]
    assert curves_of(flower) == curves_of(inline)
