"""The agent's log on standard error."""

from __future__ import annotations

import logging
import re
from contextlib import nullcontext
from pathlib import Path

import pytest

from retexo_fl.client.log_lines import (
    DEVICES_NAME,
    LOGGER,
    DeviceLog,
    line,
    logged_to_stderr,
    shown,
)
from retexo_fl.replacing import Kind, Replacement


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


def test_what_others_say_is_cut_and_printable(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown("a \n\x1b[2J b") == "a ?[2J b"
    assert len(shown("x" * 10**6)) == 200
    with logged_to_stderr({"JOURNAL_STREAM": "9:1"}):
        LOGGER.error("gave up", exc_info=ValueError("\x1b[2J" + "x" * 10**6))
    (only,) = capsys.readouterr().err.splitlines()
    assert only.isprintable()
    assert len(only) < 25_000


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


def test_what_is_said_about_devices_is_kept_in_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "devices.log"
    loggers = [
        logging.getLogger(name)
        for name in (
            "retexo_fl.additions.devices.trainers",
            "retexo_fl.additions.devices.training.balance_log",
        )
    ]
    before = [logger.level for logger in loggers]
    log = DeviceLog(tmp_path, is_new=False)
    assert not path.exists()
    for logger in loggers:
        logger.info("said by %s", logger.name)
    LOGGER.info("something else")
    log.close()
    for logger in loggers:
        logger.info("said too late")
    assert [logger.level for logger in loggers] == before
    assert [line.partition(" ")[2] for line in path.read_text().splitlines()] == [
        f"said by {logger.name}" for logger in loggers
    ]
    assert capsys.readouterr().err == ""


def test_what_is_said_of_devices_moves_with_a_run_that_replaces_another(tmp_path: Path) -> None:
    logger = logging.getLogger("retexo_fl.additions.devices.trainers")
    run = tmp_path / "run"
    run.mkdir()
    (run / DEVICES_NAME).write_text("of the old run\n")
    kind = Kind(
        name="a run",
        files=re.compile(DEVICES_NAME),
        is_one=lambda _: True,
        hold=lambda _: nullcontext(),
    )
    log = DeviceLog(run, is_new=True)
    replacement = Replacement(run, kind)
    logger.info("first")
    assert (run / DEVICES_NAME).read_text() == "of the old run\n"
    replacement.swap()
    replacement.close()
    logger.info("second")
    log.close()
    lines = (run / DEVICES_NAME).read_text().splitlines()
    assert [line.partition(" ")[2] for line in lines] == ["first", "second"]
