"""Progress whose reader has gone, by the door of Python too."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.live import Live

import retexo_fl
from retexo_fl.outlet import Outlet, standard_error, stdout_is_terminal
from retexo_fl.progress.live_view import write_line


@contextmanager
def lost(how: str) -> Iterator[None]:
    """Have standard error be one that nobody reads, that is closed, or that is not there."""
    reading, writing = os.pipe()
    os.close(reading)
    stream = io.TextIOWrapper(io.FileIO(writing, "wb"), write_through=True)
    if how == "closed":
        stream.close()
    # In the test itself: pytest puts a stream of its own there between a fixture and its test.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", None if how == "not there" else stream)
        yield
    if not stream.closed:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, writing)
        os.close(nowhere)
        stream.close()


@pytest.mark.parametrize("how", ["unread", "closed", "not there"])
def test_lines_and_pictures_are_written_nowhere(how: str) -> None:
    with lost(how):
        write_line(standard_error(), "said")
        with Live("picture", console=standard_error(force_terminal=True), redirect_stdout=False):
            write_line(standard_error(), "said meanwhile")


@pytest.mark.parametrize("how", ["unread", "closed", "not there"])
def test_what_is_lost_is_a_stream_all_the_same(how: str) -> None:
    with lost(how):
        outlet = Outlet()
        assert outlet.write("said") == 4
        outlet.flush()
        assert not outlet.isatty()
        assert [standard_error(force_terminal=it).is_terminal for it in (True, None)] == [1, 0]
        assert outlet.encoding.lower() == "utf-8"


def test_what_is_there_gets_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = io.BytesIO()
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(buffer, "latin-1"))
    outlet = Outlet()
    assert outlet.encoding == "latin-1"
    assert outlet.write("déjà") == 4
    outlet.flush()
    assert buffer.getvalue() == "déjà".encode("latin-1")
    monkeypatch.setattr(sys, "stdout", None)
    assert not stdout_is_terminal()


@pytest.mark.parametrize("how", ["unread", "closed", "not there"])
def test_training_from_python_goes_on(tmp_path: Path, how: str) -> None:
    with lost(how):
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
