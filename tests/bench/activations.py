"""Memory and time of end-to-end training whose activations are recomputed against kept ones."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from retexo_fl.client.preparation import make_parts
from retexo_fl.config import make_config
from retexo_fl.simulation.inline_engine import run_inline
from tests.bench.measure import LEAST_REPEATS, Spread
from tests.bench.outcome import Outcome, Row

_CASES = ("keep", "recompute")
_KILOBYTE = 1024
#: Longest time that one training may take.
_TIMEOUT_S = 600.0


def run(quick: bool, data_dir: Path | None) -> Outcome:
    """Train in a process of its own each time, in turn: peaks of memory do not go down again."""
    del data_dir
    size = "nodes=200,edges=800" if quick else "nodes=40000,edges=400000"
    repeats = 2 if quick else LEAST_REPEATS
    found: dict[str, list[tuple[float, float]]] = {case: [] for case in _CASES}
    for turn in range(repeats):
        for case in _CASES if turn % 2 == 0 else _CASES[::-1]:
            found[case].append(_trained(case, size) if quick else _measured(case, size))
    keep, recompute = (found[case] for case in _CASES)
    pairs = list(zip(keep, recompute, strict=True))
    return Outcome(
        name="activations",
        setting={"graph": size, "model": "gat", "layers": 4, "hidden": 128, "rounds": 2},
        ratios=[
            _row("peak memory beyond the data: kept / recomputed", [a[0] / b[0] for a, b in pairs]),
            _row("CPU time of training: recomputed / kept", [b[1] / a[1] for a, b in pairs]),
        ],
        times=[
            _row(f"peak memory beyond the data, {case}", [one[0] / 1e6 for one in values], "MB")
            for case, values in found.items()
        ],
    )


def _row(metric: str, samples: list[float], unit: str = "x") -> Row:
    return Row(metric=metric, unit=unit, spread=Spread.of(samples))


def _measured(activations: str, size: str) -> tuple[float, float]:
    """Return peak bytes beyond the parts, and CPU seconds, of a training in a new process."""
    command = [sys.executable, "-m", "tests.bench.activations", activations, size]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_TIMEOUT_S)
    peak_bytes, seconds = done.stdout.split()
    return float(peak_bytes), float(seconds)


def _trained(activations: str, size: str) -> tuple[float, float]:
    """Return what :func:`_measured` does, of this process, whose peak may lie behind it."""
    with tempfile.TemporaryDirectory(prefix="retexo-bench-") as folder:
        config = make_config(
            {
                **{"dataset": f"synthetic:{size},features=64", "clients": 1, "rounds": 2},
                **{"algorithm": "central", "model": "gat", "layers": 4, "hidden": 128},
                **{"activations": activations, "out": str(Path(folder) / "run")},
            }
        )
        parts = make_parts(config, quiet=True)
        before, begun = _peak_bytes(), time.process_time()
        run_inline(config, parts)
        return max(1, _peak_bytes() - before), time.process_time() - begun


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KILOBYTE


if __name__ == "__main__":
    print(*_trained(*sys.argv[1:]))
