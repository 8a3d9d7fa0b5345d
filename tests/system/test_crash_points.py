"""A run that is killed before any one of its writes goes on to the undisturbed weights."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.system

#: At every round, waited for; at every round, in the thread; as often as a user's run.
PACES = {"waited": (0.0, False), "threaded": (0.0, True), "timed": (1.0, True)}
KEYS: dict[str, Any] = {"rounds": 2, "clients": 2, "hidden": 8, "model": "gcn"}
MOST_POINTS = 400
#: Of a run's writes, CI looks at every twelfth, each pace at others; by hand 1 looks at all.
EVERY = int(os.environ.get("RETEXO_CRASH_EVERY", "12"))


def child(task: Any) -> int:
    """Run a task in a fork of this process, which has loaded everything; return its status."""
    process = os.fork()
    if process == 0:
        code = 1
        try:
            task()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(process, 0)[1]


def killed_before(point: int, folder: Path) -> None:
    """Have the process killed before so many of its opens, renames and waits for the disk."""
    left = point

    def step(place: object) -> None:
        nonlocal left
        if str(place).startswith(str(folder)):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event in {"open", "os.rename", "os.truncate", "os.mkdir"}:
            step(arguments[0])

    force = os.fsync

    def fsync(descriptor: int) -> None:
        step(Path(f"/proc/self/fd/{descriptor}").readlink())
        force(descriptor)

    os.fsync = fsync  # type: ignore[assignment]
    sys.addaudithook(watch)


def check(pace: str, folder: Path) -> int:
    """Kill and resume at one point after the other; return about how many there were."""
    from retexo_fl.federation import checkpoint_writer
    from tests.support.runs import model_bytes, result_of, train

    checkpoint_writer.MOST_LOST_S, in_thread = PACES[pace]  # type: ignore[misc]
    if in_thread and not checkpoint_writer.MOST_LOST_S:
        # Due at every round, and never waited for before the next one is.
        checkpoint_writer.CheckpointWriter.is_due = lambda _: True  # type: ignore[method-assign,assignment]
        checkpoint_writer.MOST_LOST_S = 1e9  # type: ignore[misc]
    whole = folder / "whole"
    assert child(lambda: train(whole, **KEYS)) == 0
    for point in range(1 + [*PACES].index(pace) % EVERY, MOST_POINTS, EVERY):
        out = folder / f"run-{point}"

        def killed(out: Path = out, point: int = point) -> None:
            killed_before(point, out)
            train(out, **KEYS)

        status = child(killed)
        if not os.WIFSIGNALED(status):
            assert status == 0
            return point - EVERY
        if not (out / "result.json").exists():
            begun = (out / "checkpoint.safetensors").exists()
            again = {"resume": out} if begun else {}
            target = out if begun else folder / f"again-{point}"
            assert child(lambda t=target, a=again: train(t, **KEYS, **a)) == 0, f"point {point}"
            assert result_of(target)["stages"] == result_of(whole)["stages"]
            out = target
        assert model_bytes(out) == model_bytes(whole), f"point {point}"
    raise AssertionError("the run has more points than that")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("pace", list(PACES))
def test_run_killed_before_any_write_ends_with_the_same_weights(pace: str, tmp_path: Path) -> None:
    import subprocess

    command = "from tests.system.test_crash_points import main; main()"
    found = subprocess.run(
        [sys.executable, "-c", command, pace, str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        timeout=800,
        cwd=Path(__file__).parents[2],
    )
    assert found.returncode == 0, found.stderr
    points = int(found.stdout.split()[-1])
    # Status, configuration, layers and results, and each checkpoint, have several each.
    assert points > (20 if pace == "timed" else 30)


def main() -> None:
    """Check the pace and the folder that the command line names."""
    # In this process nothing of ours has a thread, so that it may be forked.
    import retexo_fl.client.factory
    import retexo_fl.simulation.inline_engine  # noqa: F401

    folder = Path(tempfile.mkdtemp(dir=sys.argv[2]))
    print(check(sys.argv[1], folder))  # noqa: T201
