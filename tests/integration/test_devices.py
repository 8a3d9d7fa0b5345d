from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

REPOSITORY = Path(__file__).resolve().parents[2]
#: Bounds how long a test may hang; nothing is asserted about it.
TIMEOUT_S = 400.0
#: Trains on two processes; says who they are, and what the loss came to.
TRAINING = """
from __future__ import annotations

import os
import sys
import threading
import time

import numpy as np
import torch

from retexo_fl.additions.devices.workers.unified import Unified
from tests.support.device_tasks import random_table, summed_loss_only


def told_and_waiting(model, batch):
    if batch.epoch == 1:
        # One write for each, so that lines of several processes stay whole.
        os.write(1, f"process {os.getpid()}\\n".encode())
        time.sleep(600)
    return summed_loss_only(model, batch)


def train(epochs):
    table = random_table(32, 4, 3, torch.float32)
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    items = np.arange(32)
    settings = {"items": items, "devices": "cpu:2", "threads": 1, "batch_size": 8}
    with Unified(model, table, told_and_waiting, timeout_s=60, **settings) as unified:
        for epoch in range(epochs):
            counts = [step.count for step in unified.epoch(epoch)]
    return counts
"""
PLAIN = f"""{TRAINING}

if __name__ == "__main__":
    os.write(1, f"trained {{train(1)}}\\n".encode())
"""
HANGING = f"""{TRAINING}

if __name__ == "__main__":
    if sys.argv[1] == "thread":
        thread = threading.Thread(target=train, args=(2,))
        thread.start()
        thread.join()
    else:
        train(2)
"""
UNGUARDED = f"{TRAINING}\ntrain(1)\n"
TRAINED = "trained [8, 8, 8, 8]\n"


def environment(**variables: str) -> Mapping[str, str]:
    return {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY), **variables}


def script(folder: Path, text: str, name: str = "training.py") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def run(
    command: Sequence[str | Path], *, env: Mapping[str, str], cwd: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run it without a terminal."""
    return subprocess.run(
        command,
        env=env,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        start_new_session=True,
    )


@contextmanager
def hanging(folder: Path, where: str) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """Run a script whose two children hang; hand out it and their process numbers."""
    command: list[str | Path] = [sys.executable, script(folder, HANGING), where]
    with subprocess.Popen(
        command,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout is not None
            children = [int(process.stdout.readline().split()[1]) for _ in range(2)]
            assert all(is_running(child) for child in children)
            yield process, children
        finally:
            process.kill()


@pytest.mark.parametrize("where", ["main", "thread"])
def test_children_end_when_their_parent_is_killed(tmp_path: Path, where: str) -> None:
    with hanging(tmp_path, where) as (process, children):
        process.send_signal(signal.SIGKILL)
        process.wait(TIMEOUT_S)
        wait_until_ended(children)


def test_interrupt_of_all_processes_ends_them(tmp_path: Path) -> None:
    with hanging(tmp_path, "main") as (process, children):
        os.killpg(process.pid, signal.SIGINT)
        assert process.stderr is not None
        assert process.stderr.read().splitlines()[-1] == "KeyboardInterrupt"
        assert process.wait(TIMEOUT_S) != 0
        wait_until_ended(children)


def test_devices_start_without_home_terminal_standard_input_and_a_folder_to_write_to(
    tmp_path: Path,
) -> None:
    nowhere = str(tmp_path / "nowhere")
    variables = environment(HOME=nowhere, TMPDIR=nowhere, PYTHONDONTWRITEBYTECODE="1")
    shell = ["/bin/sh", "-c", 'exec "$0" "$@" 0<&- 2>&-', sys.executable]
    done = run([*shell, script(tmp_path, PLAIN)], env=variables, cwd="/")
    assert (done.returncode, done.stdout) == (0, TRAINED), done.stderr


def test_script_without_guard_is_told_of_it(tmp_path: Path) -> None:
    done = run([sys.executable, script(tmp_path, UNGUARDED)], env=environment())
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("retexo_fl.errors.DeviceFailed: cpu:")
    assert last.endswith("does its work under if __name__ == '__main__'")


def is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rsplit(")", 1)[1]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state.split()[0] != "Z"


def wait_until_ended(processes: list[int]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while any(is_running(one) for one in processes):
        assert time.monotonic() < deadline, f"one of {processes} still runs"
        time.sleep(0.02)
