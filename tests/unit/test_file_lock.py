"""One process at a time works on a run."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from retexo_fl.errors import RunDirectoryError
from retexo_fl.file_lock import lock_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.touch()
    return path


def test_a_run_that_is_held_is_refused(run: Path) -> None:
    with lock_run(run), pytest.raises(RunDirectoryError, match="another process is using the run"):
        lock_run(run)


def test_a_run_is_free_when_it_has_been_let_go(run: Path) -> None:
    lock_run(run).close()
    lock_run(run).close()


def test_a_holder_that_lets_go_in_time_is_waited_for(run: Path) -> None:
    held = lock_run(run)
    threading.Timer(0.2, held.close).start()
    lock_run(run, within_s=30).close()
    assert held.closed


def test_waiting_has_an_end(run: Path) -> None:
    with lock_run(run), pytest.raises(RunDirectoryError, match="expected none"):
        lock_run(run, within_s=0.1)
