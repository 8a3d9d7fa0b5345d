"""Flower's simulation, with workers in its clients' processes, trains the bits of one process.

What else is trained, without Flower's processes: ``tests/integration/test_workers.py``.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import retexo_fl
from retexo_fl.device_names import processes_for
from retexo_fl.graph import load_dataset
from tests.support.data import cora_dir
from tests.support.runs import curves_of, model_bytes, result_of

pytestmark = [pytest.mark.system]


def test_both_engines_train_a_graph_of_python_by_the_default_profile(tmp_path: Path) -> None:
    """The profile, with its few bits and coordinates, is fitted to the graph before they start.

    On two workers, which start inside of Ray's; each of its processes makes a client once.
    """
    seen: list[tuple[int, int]] = []

    class Rounds:
        def on_round(self, event: retexo_fl.RoundClosed) -> None:
            seen.append((event.stage, event.round))

    keys: dict[str, Any] = {"clients": 3, "hidden": 32, "rounds": 3, "quiet": True}
    keys |= {"model": "gcn", "partitioner": "louvain", "secure-aggregation": "masked"}
    keys |= {"graph": load_dataset("cora", data_dir=cora_dir()), "balance": "equal"}
    inline = retexo_fl.run(out=tmp_path / "inline", devices="cpu:1", **keys)
    keys |= {"devices": "cpu:2", "engine": "flower", "callbacks": [Rounds()]}
    flower = retexo_fl.run(out=tmp_path / "flower", **keys)
    assert_same(inline.path, flower.path)
    assert flower.result.profile == inline.result.profile is not None
    assert seen == [(stage, number) for stage in range(2) for number in (1, 2, 3)]
    trained = tomllib.loads((flower.path / "config.toml").read_text())
    assert (trained["basis"], trained["optimizer"]) == ("supervised", "lbfgs")
    assert all(trained[key] < 32 for key in ("update-bits", "weight-bits", "row-bits"))
    # A client object looks for its devices once, and says so.
    log = (flower.path / "devices.log").read_text()
    made = Counter(re.findall(r'devices client=(\d+) found="training on cpu:2"', log))
    assert made.keys() == {"0", "1", "2"}
    assert max(made.values()) <= processes_for(3)


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
