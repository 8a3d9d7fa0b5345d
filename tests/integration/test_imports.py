"""What a run loads: each of these would be waited for before the first round."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

from retexo_fl.cli.imports import imports_uncollected
from tests.support.cli import environment

NOT_NEEDED = (
    "numba",
    "retexo_fl.channels.roster",
    "retexo_fl.federation.prediction_loop",
    "scipy.sparse.csgraph",
    "sklearn",
    "torch._dynamo",
)
SCRIPT = f"""
import sys
from retexo_fl.cli import run_command
keys = "--dataset synthetic:nodes=200,degree=6,features=8 --clients 2 --rounds 1 --hidden 8"
assert run_command(["run", *keys.split(), "--quiet", "--out", sys.argv[1]]) == 0
print([name for name in {NOT_NEEDED} if name in sys.modules])
"""


def test_run_loads_nothing_that_it_does_not_use(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "run")],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_collector_leaves_alone_what_was_imported() -> None:
    before = gc.get_freeze_count()
    try:
        with imports_uncollected():
            kept = [[] for _ in range(10_000)]  # type: ignore[var-annotated]
            assert not gc.isenabled()
        assert gc.isenabled()
        assert gc.get_freeze_count() >= before + len(kept)
    finally:
        gc.unfreeze()
