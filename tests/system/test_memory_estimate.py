"""The memory that a run is said to take is near what its process has at most."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from retexo_fl.client.run_memory import GraphSize, memory_by_phase
from retexo_fl.config import make_config

pytestmark = pytest.mark.system

#: Runs the interpreter with its arguments and prints the most memory it had, in KiB.
SPAWN = """
import os, sys
process = os.posix_spawn(sys.executable, [sys.executable, *sys.argv[1:]], os.environ)
_, status, used = os.wait4(process, 0)
print(used.ru_maxrss)
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.parametrize("model", ["sage", pytest.param("gcn", marks=pytest.mark.slow)])
def test_estimate_is_near_the_peak_of_a_real_run(model: str, tmp_path: Path) -> None:
    keys = {
        "dataset": "synthetic:nodes=20000,degree=20,features=100",
        "clients": 8,
        "layers": 3,
        "hidden": 256,
        "model": model,
    }
    options = [text for key, value in keys.items() for text in (f"--{key}", str(value))]
    out = ["--profile", "retexo", "--rounds", "1", "--quiet", "--out", str(tmp_path / "run")]
    # What a process had at most begins with what its parent had: here a small one, not pytest's.
    spawned = subprocess.run(
        [sys.executable, "-c", SPAWN, "-m", "retexo_fl", "run", *options, *out],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=500,
    )
    peak_bytes = int(spawned.stdout.splitlines()[-1]) * 1024
    config = make_config(keys)
    size = GraphSize.foreseen(config)
    assert size is not None
    estimate = max(memory_by_phase(config, size).values())
    assert 0.85 < estimate / peak_bytes < 1.4
