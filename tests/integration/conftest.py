from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from retexo_fl.api import sweeps
from retexo_fl.federation import checkpoints
from tests.support.cli import CommandLine
from tests.support.forked_workers import forked_workers  # noqa: F401 - a fixture
from tests.support.nursery import ForkedRuns


@cache
def _ends_early(path: Path) -> bool:
    """Return whether a file has tests of trainings that end early: these speak of what follows."""
    words = ("checkpoint", "extend", "Interrupt", "kill", "resume", "stop_after")
    text = path.read_text(encoding="utf-8")
    return any(word in text for word in words)


@pytest.fixture(autouse=True)
def _every_round_is_on_the_disk(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupted run goes on from its last round, however fast the machine is.

    Other trainings write as they do anywhere: a sixth of a small one's time would go into it.
    """
    if _ends_early(request.path):
        monkeypatch.setattr(checkpoints, "MOST_LOST_S", 0.0)


@pytest.fixture
def retexo(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    """Run commands in a folder of the test's own; modules that need files there extend it."""
    monkeypatch.chdir(tmp_path)
    return CommandLine(capfd)


@pytest.fixture
def forked_runs(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Fork the runs of a sweep, so that none has to import all; test_sweep.py has real ones."""
    monkeypatch.setattr(sweeps, "subprocess", ForkedRuns(tmp_path_factory.mktemp("runs")))
