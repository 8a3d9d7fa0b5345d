"""Stopping a run from outside, and a disk that fills up: nothing half written, and a way on."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from retexo_fl.cli import run_command
from retexo_fl.federation.checkpoints import read_checkpoint
from tests.support.cli import PROGRAM, environment
from tests.support.nursery import BornCommand, bear_command
from tests.support.runs import model_bytes

pytestmark = pytest.mark.system

#: Long enough to be stopped, short enough to be finished.
KEYS = ("--rounds", "80", "--hidden", "8", "--clients", "2", "--layers", "1")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    assert run_command(["run", *KEYS, "--quiet", "--out", str(run)]) == 0
    return run


@contextmanager
def started(
    folder: Path, run: Path, *more: str, before: Sequence[Any] = ()
) -> Iterator[BornCommand]:
    """Start a run in a process of its own, and end it whatever happens."""
    words = ("run", *KEYS, "--quiet", "--out", str(run), *more)
    process = bear_command(words, env=environment(), folder=folder, before=before)
    try:
        yield process
    finally:
        process.kill()


def wait_for(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


def rounds_of(run: Path) -> int:
    path = run / "metrics.jsonl"
    return path.read_text().count('"round"') if path.exists() else 0


def assert_whole(run: Path) -> None:
    """Assert that nothing in a run directory is half written."""
    assert [path for path in run.rglob("*") if ".part" in path.name] == []
    for line in (run / "metrics.jsonl").read_text().splitlines():
        json.loads(line)
    read_checkpoint(run / "checkpoint.safetensors")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_run_says_how_to_go_on_and_finishes_when_resumed(
    tmp_path: Path, undisturbed: Path, number: signal.Signals
) -> None:
    run = tmp_path / "a run"
    with started(tmp_path, run) as process:
        wait_for(lambda: rounds_of(run) > 5)
        process.send_signal(number)
        out, err = process.communicate(timeout=500)
    assert process.returncode == 130
    assert out == ""
    assert err == f"retexo: interrupted; go on with: retexo run --resume '{run}'\n"
    assert json.loads((run / "status.json").read_text()) == {"state": "interrupted", "error": None}
    assert_whole(run)
    assert not (run / "result.json").exists()
    assert run_command(["run", "--resume", str(run), "--quiet"]) == 0
    assert model_bytes(run) == model_bytes(undisturbed)


@pytest.mark.parametrize("pause_s", [0.0, 0.01])
def test_impatient_stopping_leaves_nothing_half_written(
    tmp_path: Path, undisturbed: Path, pause_s: float
) -> None:
    run = tmp_path / "run"
    with started(tmp_path, run) as process:
        wait_for(lambda: rounds_of(run) > 5)
        for _ in range(5):
            process.send_signal(signal.SIGINT)
            time.sleep(pause_s)
        _, err = process.communicate(timeout=500)
    assert process.returncode == 130
    assert err == f"retexo: interrupted; go on with: retexo run --resume {run}\n"
    assert json.loads((run / "status.json").read_text())["state"] == "interrupted"
    assert_whole(run)
    assert run_command(["run", "--resume", str(run), "--quiet"]) == 0
    assert model_bytes(run) == model_bytes(undisturbed)


def test_run_stopped_before_its_first_round_says_so(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with started(tmp_path, run, "--checkpoint-every", "1000000") as process:
        wait_for(lambda: rounds_of(run) > 0)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=500)
    assert process.returncode == 130
    assert err.count("\n") == 1
    assert re.search("; .*no checkpoint", err)


def test_background_run_ignores_what_its_shell_told_it_to_ignore(tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = " ".join((*PROGRAM, "run", *KEYS, "--quiet", "--out", f"'{run}'"))
    script = f"trap '' INT; exec {command}"
    with subprocess.Popen(["sh", "-c", script], env=environment(), text=True) as process:
        try:
            wait_for(lambda: rounds_of(run) > 5)
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=500) == 0
        finally:
            process.kill()
    assert (run / "result.json").exists()


# ---- a full disk --------------------------------------------------------------------------------


def test_file_that_cannot_grow_is_named_and_checkpoint_is_whole(tmp_path: Path) -> None:
    run = tmp_path / "run"
    # The history of many rounds outgrows the limit; the checkpoints of so small a model do not.
    small = ("--rounds", "5000", "--hidden", "2")
    with started(tmp_path, run, *small, before=("hindrances:limit_file_size", 30_000)) as process:
        _, err = process.communicate(timeout=500)
    assert process.returncode == 1
    assert err.count("\n") == 1
    assert err.startswith(f"retexo: error: {run / 'metrics.jsonl'}: ")
    assert "(File too large); " in err
    assert err.endswith(f": retexo run --resume {run}\n")
    status = json.loads((run / "status.json").read_text())
    assert status["state"] == "failed"
    assert status["error"].startswith("CheckpointError: ")
    assert [path for path in run.rglob("*") if ".part" in path.name] == []
    assert read_checkpoint(run / "checkpoint.safetensors").facts["round"] >= 1
    assert not (run / "result.json").exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mount = shutil.which("mount")
    options = ["-t", "tmpfs", "-o", "size=400k", "retexo-test", str(place)]
    if not mount or subprocess.run([mount, *options], check=False, capture_output=True).returncode:
        pytest.skip("mounting a small file system is not permitted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def test_full_disk_is_a_named_failure_and_run_goes_on_elsewhere(
    small_disk: Path, tmp_path: Path
) -> None:
    run = small_disk / "run"
    keys = ("--rounds", "40", "--hidden", "64", "--clients", "2", "--layers", "2")
    with started(tmp_path, run, *keys) as process:
        wait_for((run / "checkpoint.safetensors").exists)
        with pytest.raises(OSError, match="No space left"):
            fill(small_disk / "filler")
        _, err = process.communicate(timeout=500)
    assert process.returncode == 1
    assert err.count("\n") == 1
    assert err.startswith(f"retexo: error: {run}/")
    assert re.search(r"\(No space left on device\); .*: retexo run --resume ", err)
    assert [path for path in run.rglob("*") if ".part" in path.name] == []
    read_checkpoint(run / "checkpoint.safetensors")
    shutil.copytree(run, tmp_path / "moved")
    assert run_command(["run", "--resume", str(tmp_path / "moved"), "--quiet"]) == 0
    assert run_command(["run", *keys, "--quiet", "--out", str(tmp_path / "whole")]) == 0
    assert model_bytes(tmp_path / "moved") == model_bytes(tmp_path / "whole")
