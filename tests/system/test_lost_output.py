"""Whoever reads what a command prints may go: a training goes on, or can be resumed."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from retexo_fl.cli import run_command
from tests.support.cli import PROGRAM, environment
from tests.support.runs import model_bytes
from tests.system.test_stopping import KEYS, assert_whole, rounds_of, undisturbed, wait_for

__all__ = ["undisturbed"]

pytestmark = pytest.mark.system


@contextmanager
def training(run: Path, **streams: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Start a training that says a line for each tenth of its rounds, or paints a table."""
    command = [*PROGRAM, "run", *KEYS, "--out", str(run)]
    with subprocess.Popen(command, env=environment(), **streams) as process:
        try:
            yield process
        finally:
            process.kill()


def state_of(run: Path) -> str:
    state: str = json.loads((run / "status.json").read_text())["state"]
    return state


def closed() -> None:
    """Close what a shell does with ``<&- >&- 2>&-``."""
    for descriptor in range(3):
        os.close(descriptor)


def test_training_outlives_the_reader_of_its_pipe(undisturbed: Path, tmp_path: Path) -> None:
    """As with ``| head`` and with a ``tee`` that dies."""
    run = tmp_path / "run"
    with training(run, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        wait_for(lambda: rounds_of(run) > 2)
        process.stdout.close()
        assert process.wait(120) == 0
    assert state_of(run) == "finished"
    assert model_bytes(run) == model_bytes(undisturbed)


@pytest.mark.parametrize(
    "streams",
    [
        pytest.param({"preexec_fn": closed}, id="closed"),
        pytest.param({"stderr": "/dev/full"}, id="a full disk"),
    ],
)
def test_training_needs_no_output(
    undisturbed: Path, tmp_path: Path, streams: dict[str, Any]
) -> None:
    run = tmp_path / "run"
    opened = {
        name: os.open(there, os.O_WRONLY) if isinstance(there, str) else there
        for name, there in streams.items()
    }
    with training(run, **opened) as process:
        assert process.wait(120) == 0
    assert state_of(run) == "finished"
    assert_whole(run)
    assert model_bytes(run) == model_bytes(undisturbed)


@pytest.mark.parametrize("number", [signal.SIG_DFL, signal.SIG_IGN], ids=["plain", "nohup"])
def test_terminal_that_goes_leaves_a_run_that_can_be_resumed(
    undisturbed: Path, tmp_path: Path, number: signal.Handlers
) -> None:
    run = tmp_path / "run"
    with _in_terminal(run, lambda: signal.signal(signal.SIGHUP, number)) as (process, terminal):
        wait_for(lambda: rounds_of(run) > 2)
        os.close(terminal)
        code = process.wait(120)
    if number is signal.SIG_IGN:
        assert (code, state_of(run)) == (0, "finished")
    else:
        assert (code, state_of(run)) == (130, "interrupted")
        assert run_command(["run", "--resume", str(run), "--quiet"]) == 0
    assert_whole(run)
    assert model_bytes(run) == model_bytes(undisturbed)


@contextmanager
def _in_terminal(
    run: Path, before: Callable[[], object]
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Start a training in a terminal of its own, whose other end is yielded with it."""
    ours, theirs = pty.openpty()

    def begin() -> None:
        before()
        os.login_tty(theirs)

    with training(run, preexec_fn=begin, pass_fds=(theirs,)) as process:
        os.close(theirs)
        yield process, ours
