"""The agent's log on standard error."""

from __future__ import annotations

import logging

import pytest

from retexo_fl.agent.log_lines import LOGGER, line, logged_to_stderr


def test_a_line_names_its_facts() -> None:
    assert line("sent", peer=3, seconds=0.5, why="no route", note="") == (
        'sent peer=3 seconds=0.5000 why="no route" note=""'
    )


def test_a_traceback_stays_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with logged_to_stderr({"JOURNAL_STREAM": "9:1"}):
        try:
            int("lost")
        except ValueError:
            LOGGER.exception("gave up")
    (only,) = capsys.readouterr().err.splitlines()
    assert only.startswith("gave up | Traceback ")
    assert " | ValueError: invalid literal" in only


def test_time_and_level_stand_before_a_line_outside_systemd(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with logged_to_stderr({}):
        LOGGER.info("started")
    assert capsys.readouterr().err.endswith(" INFO started\n")


def test_logging_is_left_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger("retexo_fl")
    before = list(root.handlers), root.level, root.propagate
    with pytest.raises(KeyError), logged_to_stderr({}):
        raise KeyError
    assert (list(root.handlers), root.level, root.propagate) == before
    LOGGER.info("nobody asked")
    assert capsys.readouterr().err == ""
