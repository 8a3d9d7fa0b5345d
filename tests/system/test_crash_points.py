"""A run that is killed before any one of its writes, or messages, goes on to the same weights."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.ways import profile_keys

pytestmark = pytest.mark.system

#: At every round, waited for; at every round, in the thread; as often as a user's run.
PACES = {"waited": (0.0, False), "threaded": (0.0, True), "timed": (1.0, True)}
KEYS: dict[str, Any] = {
    # Small: a run for each point, and one more that goes on.
    **{"dataset": "synthetic:nodes=120,edges=400,classes=3,features=24,words=6,signal=0.6"},
    **{"rounds": 2, "clients": 2, "hidden": 8, "model": "gcn"},
}
#: Every kind of message: a basis of sums, coded updates, weights and vectors.
LEAN: dict[str, Any] = {
    **KEYS,
    **{"basis": "supervised", "basis_rows": "sums", "basis_blocks": 2, "basis_bits": 8},
    **{"optimizer": "lbfgs", "warm_start": True, "dropout": 0.0},
    **{"update_bits": 8, "weight_bits": 4, "row_bits": 8},
}
#: No round: both exchanges, and sums of products.
ONE_SHOT: dict[str, Any] = {
    **profile_keys("one-shot"),
    **{key: KEYS[key] for key in ("dataset", "clients", "model")},
}
#: Weights and updates in few bits where clients wait for each other within a round.
TOGETHER: dict[str, Any] = {**KEYS, "algorithm": "standard", "update_bits": 8, "weight_bits": 4}
#: What is killed at every message.
ASKED = {"lean": LEAN, "one-shot": ONE_SHOT, "together": TOGETHER}
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


def killed_at_message(point: int) -> None:
    """Have the process killed when so many messages have been answered, before one more is."""
    from retexo_fl.simulation.inline_grid import InlineGrid

    pull, left = InlineGrid.pull_messages, point

    def counted(grid: InlineGrid, message_ids: Any) -> Any:
        nonlocal left
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        replies = [*pull(grid, message_ids)]
        left -= len(replies)
        return replies

    InlineGrid.pull_messages = counted  # type: ignore[method-assign,assignment]


def check_messages(keys: dict[str, Any], folder: Path) -> int:
    """Kill and resume at each kind of message, or at each; return how many messages there were."""
    from tests.support.runs import events_of, model_bytes, train

    whole = folder / "whole"
    assert child(lambda: train(whole, **keys)) == 0
    curves = [event for event in events_of(whole) if event["event"] == "round"]
    for point in range(0, MOST_POINTS, min(EVERY, keys["clients"])):
        out = folder / f"run-{point}"

        def killed(out: Path = out, point: int = point) -> None:
            killed_at_message(point)
            train(out, **keys)

        status = child(killed)
        if not os.WIFSIGNALED(status):
            assert status == 0
            return point
        again = {"resume": out} if (out / "checkpoint.safetensors").exists() else {}
        target = out if again else folder / f"again-{point}"
        assert child(lambda t=target, a=again: train(t, **keys, **a)) == 0, f"message {point}"
        assert model_bytes(target) == model_bytes(whole), f"message {point}"
        found = [event for event in events_of(target) if event["event"] == "round"]
        assert [e["val_accuracy"] for e in found] == [e["val_accuracy"] for e in curves]
    raise AssertionError("the run has more messages than that")


def check(pace: str, folder: Path) -> int:
    """Kill and resume at one point after the other; return about how many there were."""
    from retexo_fl.federation import checkpoints
    from tests.support.runs import model_bytes, result_of, train

    def train_at_pace(out: Path, **more: Any) -> None:
        checkpoints.MOST_LOST_S, in_thread = PACES[pace]  # type: ignore[misc]
        if in_thread and not checkpoints.MOST_LOST_S:
            # Due at every round, and never waited for before the next one is.
            checkpoints.CheckpointWriter.is_due = lambda _: True  # type: ignore[method-assign,assignment]
            checkpoints.MOST_LOST_S = 1e9  # type: ignore[misc]
        train(out, **KEYS, **more)

    whole = folder / "whole"
    assert child(lambda: train_at_pace(whole)) == 0
    for point in range(1 + [*PACES].index(pace) % EVERY, MOST_POINTS, EVERY):
        out = folder / f"run-{point}"

        def killed(out: Path = out, point: int = point) -> None:
            killed_before(point, out)
            train_at_pace(out)

        status = child(killed)
        if not os.WIFSIGNALED(status):
            assert status == 0
            return point - EVERY
        if not (out / "result.json").exists():
            begun = (out / "checkpoint.safetensors").exists()
            again = {"resume": out} if begun else {}
            target = out if begun else folder / f"again-{point}"
            assert child(lambda t=target, a=again: train_at_pace(t, **a)) == 0, f"point {point}"
            assert result_of(target)["stages"] == result_of(whole)["stages"]
            out = target
        assert model_bytes(out) == model_bytes(whole), f"point {point}"
    raise AssertionError("the run has more points than that")


@pytest.mark.timeout(2400)
def test_run_killed_before_any_write_ends_with_the_same_weights(tmp_path: Path) -> None:
    points = points_of([*PACES], tmp_path)
    # Status, configuration, layers and results, and each checkpoint, have several each.
    assert points["waited"] > 30
    assert points["threaded"] > 30
    assert points["timed"] > 20


@pytest.mark.timeout(2400)
def test_run_killed_at_any_message_ends_with_the_same_weights(tmp_path: Path) -> None:
    assert points_of([*ASKED], tmp_path) == {
        # For each of two clients: hello, features, their mean, two blocks, the basis, and for each
        # stage two rounds and an evaluation; rows of the first stage, and the test.
        "lean": 2 * (1 + 1 + 1 + 2 + 1 + 3 + 1 + 3 + 1),
        # Hello, features, their mean, two blocks; the basis, what is read by it, which is asked for
        # once more with the products; validation and test.
        "one-shot": 2 * (1 + 1 + 1 + 2 + 2 + 2 + 2),
        # Hello, publish, collect, two rounds, an evaluation, the test.
        "together": 2 * (1 + 1 + 1 + 2 + 1 + 1),
    }


def points_of(names: Sequence[str], folder: Path) -> dict[str, int]:
    """Return how many points of each were looked at, in a process of its own."""
    import subprocess

    command = "from tests.system.test_crash_points import main; main()"
    found = subprocess.run(
        [sys.executable, "-c", command, str(folder), *names],
        check=False,
        capture_output=True,
        text=True,
        timeout=2000,
        cwd=Path(__file__).parents[2],
    )
    assert found.returncode == 0, found.stderr
    points: dict[str, int] = json.loads(found.stdout.splitlines()[-1])
    return points


def main() -> None:
    """Check the paces, or runs' messages, that the command line names after a folder."""
    # In this process nothing of ours has a thread, so that it may be forked.
    import retexo_fl.client.factory
    import retexo_fl.simulation.inline_engine  # noqa: F401

    points: dict[str, int] = {}
    for name in sys.argv[2:]:
        folder = Path(tempfile.mkdtemp(dir=sys.argv[1]))
        points[name] = check_messages(ASKED[name], folder) if name in ASKED else check(name, folder)
    print(json.dumps(points))  # noqa: T201
