"""Runs that are killed at random moments and resumed end with the undisturbed weights."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest

from retexo_fl.cli import run_command
from tests.support.cli import environment
from tests.support.nursery import BornCommand, bear_command
from tests.support.runs import model_bytes, result_of

pytestmark = pytest.mark.system

KEYS = ["--profile", "retexo", "--rounds", "40", "--clients", "3", "--hidden", "32", "--quiet"]
START_TIMEOUT_S, RUN_TIMEOUT_S = 60.0, 120.0


def retexo(folder: Path, *arguments: str) -> BornCommand:
    return bear_command(arguments, env=environment(), folder=folder)


def finish(process: BornCommand) -> None:
    _, errors = process.communicate(timeout=RUN_TIMEOUT_S)
    assert process.returncode == 0, errors


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def kill_after(process: BornCommand, metrics: Path, events: int, delay_s: float) -> None:
    """SIGKILL once so many events were written since now, and a moment later."""
    goal = lines(metrics) + events
    deadline = time.monotonic() + START_TIMEOUT_S
    while lines(metrics) < goal and process.poll() is None:
        assert time.monotonic() < deadline, "the run does not move"
        time.sleep(0.001)
    time.sleep(delay_s)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=RUN_TIMEOUT_S)


@pytest.mark.parametrize(
    "options",
    [
        ("--model", "sage"),
        ("--local-steps", "3", "--local-optimizer", "sgd", "--local-correction", "scaffold"),
    ],
    ids=lambda options: options[-1],
)
def test_run_killed_twice_ends_with_the_undisturbed_weights(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert run_command(["run", *KEYS, *options, "--out", str(whole)]) == 0
    moments = random.Random(options[-1])
    process = retexo(tmp_path, "run", *KEYS, *options, "--out", str(broken))
    kills = 0
    while kills < 2:
        # 4 to 40 events of about 84: two kills fall anywhere in both stages.
        kill_after(process, broken / "metrics.jsonl", moments.randint(4, 40), moments.random() / 50)
        assert process.returncode == -signal.SIGKILL, "the run ended before it was killed"
        kills += 1
        process = retexo(tmp_path, "run", "--resume", str(broken), "--quiet")
    finish(process)
    assert model_bytes(broken) == model_bytes(whole)
    result, undisturbed = result_of(broken), result_of(whole)
    assert result["attempts"] == kills + 1
    for key in ("test_accuracy", "val_accuracy", "stages"):
        assert result[key] == undisturbed[key]
