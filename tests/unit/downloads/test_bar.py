"""What is shown of a download, on a terminal and in a pipe."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from rich.console import Console

from retexo_fl.downloads.bar import DownloadBar


def shown(body: Callable[[DownloadBar], None], *, terminal: bool, quiet: bool = False) -> str:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=terminal, width=80, color_system=None)
    try:
        with DownloadBar("cora: downloading 2 files", quiet=quiet, console=console) as bars:
            body(bars)
    except KeyboardInterrupt:
        pass
    return screen.getvalue()


def two_files(bars: DownloadBar) -> None:
    first = bars.file("[a]")
    first(1000, 4000)
    first.end(4000)
    second = bars.file("b")
    second(10, None)
    second.end(1000)


def test_a_pipe_gets_two_plain_lines() -> None:
    assert shown(two_files, terminal=False) == (
        "cora: downloading 2 files\n  5.0 kB, SHA-256 as expected\n"
    )


def test_a_terminal_gets_a_bar_for_each_file() -> None:
    text = shown(two_files, terminal=True)
    assert "[a]" in text
    assert "4.0/4.0 kB" in text
    assert text.endswith("  5.0 kB, SHA-256 as expected\n")


def test_quiet_shows_nothing() -> None:
    assert shown(two_files, terminal=True, quiet=True) == ""
    assert shown(two_files, terminal=False, quiet=True) == ""


@pytest.mark.parametrize("terminal", [False, True])
def test_a_download_that_was_stopped_is_not_called_whole(terminal: bool) -> None:
    def stop(bars: DownloadBar) -> None:
        bars.file("a")(10, 100)
        raise KeyboardInterrupt

    assert "as expected" not in shown(stop, terminal=terminal)
