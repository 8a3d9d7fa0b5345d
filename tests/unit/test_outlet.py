"""Progress whose reader has gone, by the door of Python too."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.live import Live

import retexo_fl
from retexo_fl.outlet import standard_error
from retexo_fl.progress.live_view import write_line


@pytest.fixture(params=["pipe", "closed", "none"])
def _lost(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Standard error that nobody reads, that is closed, or that is not there."""
    reading, writing = os.pipe()
    os.close(reading)
    stream = io.TextIOWrapper(io.FileIO(writing, "wb"), write_through=True)
    if request.param == "closed":
        stream.close()
    monkeypatch.setattr(sys, "stderr", None if request.param == "none" else stream)
    yield
    # What is in its way when it is closed is not of interest.
    if not stream.closed:
        os.dup2(os.open(os.devnull, os.O_WRONLY), writing)
        stream.close()


@pytest.mark.usefixtures("_lost")
def test_lines_and_pictures_are_written_nowhere() -> None:
    write_line(standard_error(), "said")
    with Live("picture", console=standard_error(force_terminal=True), redirect_stdout=False):
        write_line(standard_error(), "said meanwhile")


@pytest.mark.usefixtures("_lost")
def test_training_from_python_goes_on(tmp_path: Path) -> None:
    run = retexo_fl.run(out=tmp_path / "run", rounds=2, hidden=8, clients=2)
    assert run.result.test_accuracy is not None


def test_lines_reach_standard_error_under_a_live_picture(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Live("picture", console=standard_error(force_terminal=True), redirect_stdout=False):
        write_line(standard_error(), "said meanwhile")
    told = capsys.readouterr().err
    assert "picture" in told
    assert "said meanwhile" in told
