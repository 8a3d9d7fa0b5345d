"""Flower's simulation and the in-process engine train the same bits.

What else is trained, without Flower's processes: ``tests/integration/test_workers.py``.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

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


# The first by the default profile, which is fitted to the graph before either engine starts.
@pytest.mark.parametrize(("model", "more"), [("sage", ()), ("gcn", LEAN)])
def test_both_engines_leave_the_same_model_and_the_same_account(
    tmp_path: Path, model: str, more: Sequence[str]
) -> None:
    options = [
        *("--dataset", "cora", "--data-dir", str(cora_dir()), "--clients", "3"),
        *("--model", model, *more),
        *("--hidden", "32", "--rounds", "5", "--partitioner", "louvain"),
    ]
    inline = run(tmp_path / "inline", *options)
    flower = run(tmp_path / "flower", *options, "--engine", "flower")
    assert model_bytes(flower) == model_bytes(inline)
    one, other = result_of(inline), result_of(flower)
    for key in ("test_accuracy", "val_accuracy", "micro_f1", "stages", "missing_rows"):
        assert one[key] == other[key]
    for measure in ("raw", "payload"):
        for kind in ("boundary", "updates_up", "weights_down"):
            assert one["bytes"][measure][kind] == other["bytes"][measure][kind]
    assert curves_of(flower) == curves_of(inline)
