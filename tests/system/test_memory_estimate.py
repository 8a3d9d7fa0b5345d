"""The memory that a run is said to take is near what its process has at most."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from retexo_fl.agent.run_memory import GraphSize, memory_by_phase
from retexo_fl.config import make_config

pytestmark = pytest.mark.system


@pytest.mark.timeout(300)
@pytest.mark.parametrize("model", ["sage", "gcn"])
def test_estimate_is_near_the_peak_of_a_real_run(model: str, tmp_path: Path) -> None:
    keys = {
        "dataset": "synthetic:nodes=20000,degree=20,features=100",
        "clients": 8,
        "layers": 3,
        "hidden": 256,
        "model": model,
    }
    options = [text for key, value in keys.items() for text in (f"--{key}", str(value))]
    out = ["--rounds", "1", "--quiet", "--out", str(tmp_path / "run")]
    process = os.posix_spawn(
        sys.executable,
        [sys.executable, "-m", "retexo_fl", "run", *options, *out],
        {**os.environ, "OMP_NUM_THREADS": "1"},
    )
    _, status, used = os.wait4(process, 0)
    assert status == 0
    config = make_config(keys)
    size = GraphSize.foreseen(config)
    assert size is not None
    estimate = max(memory_by_phase(config, size).values())
    assert 0.85 < estimate / (used.ru_maxrss * 1024) < 1.4
