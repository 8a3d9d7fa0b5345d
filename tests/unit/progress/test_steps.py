"""What is said of a step: nothing of a short one, then what is done and for how long."""

from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from retexo_fl.progress.steps import Step


def written(*, terminal: bool, quiet: bool = False, silent_s: float, body_s: float) -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=80)
    with Step(
        "cutting\x1b 9 nodes", console=console, quiet=quiet, silent_s=silent_s, line_every_s=0.05
    ):
        time.sleep(body_s)
    return file.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_short_or_quiet_step_says_nothing(terminal: bool) -> None:
    assert written(terminal=terminal, silent_s=30.0, body_s=0.0) == ""
    assert written(terminal=terminal, quiet=True, silent_s=0.0, body_s=0.2) == ""


def test_long_step_is_lines_in_a_pipe() -> None:
    first, *others = written(terminal=False, silent_s=0.0, body_s=0.4).splitlines()
    assert first == "cutting? 9 nodes"
    assert len(others) >= 2
    assert all(line.startswith("cutting? 9 nodes: ") for line in others)


def test_long_step_moves_on_a_terminal_and_leaves_nothing_there() -> None:
    text = written(terminal=True, silent_s=0.0, body_s=0.6)
    assert text.count("cutting? 9 nodes: ") >= 2
    assert text.endswith("\x1b[2K")


def test_error_of_the_body_ends_it() -> None:
    step = Step("cutting", console=Console(file=io.StringIO()), silent_s=0.0)
    with pytest.raises(KeyError), step:
        raise KeyError
    step.end()
