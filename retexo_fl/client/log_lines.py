"""The agent's log: one line for each event on standard error, as ``what key=value key=value``."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Final

from retexo_fl.replacing import in_the_making

#: Of this agent and everything below it.
LOGGER: Final = logging.getLogger("retexo_fl.agent")
#: Of lines about devices and the balance between them, which an addition writes.
_OF_DEVICES: Final = logging.getLogger("retexo_fl.additions.devices")
#: In a run directory.
DEVICES_NAME: Final = "devices.log"
#: Of a line.
_MOST_CHARS: Final = 20_000
_DATE: Final = "%Y-%m-%dT%H:%M:%S%z"


@contextmanager
def logged_to_stderr(environment: Mapping[str, str] = os.environ) -> Generator[None]:
    """Write the log of the whole library to standard error, and leave logging as it was.

    Under systemd the journal has level and time already.
    """
    handler = logging.StreamHandler(sys.stderr)
    under_systemd = bool(environment.get("JOURNAL_STREAM"))
    handler.setFormatter(
        _OneLine(
            "%(message)s" if under_systemd else "%(asctime)s %(levelname)s %(message)s",
            datefmt=_DATE,
        )
    )
    root = logging.getLogger("retexo_fl")
    before = root.handlers, root.level, root.propagate
    root.handlers = [handler]
    root.setLevel(logging.INFO)
    root.propagate = False
    try:
        yield
    finally:
        root.handlers, level, root.propagate = before
        root.setLevel(level)
        handler.close()


class DeviceLog:
    """What the clients of this process compute on, and in which shares, in a file of the run's.

    Several processes may write to the file; it is made with its first line.

    Args:
        run: The run directory.
        is_new: One in the making is meant, where there is another run yet.
    """

    def __init__(self, run: Path, *, is_new: bool) -> None:
        self._handler = _FileOfRun(run, is_new=is_new)
        self._handler.setFormatter(_OneLine("%(asctime)s %(message)s", datefmt=_DATE))
        self._level = _OF_DEVICES.level
        _OF_DEVICES.addHandler(self._handler)
        _OF_DEVICES.setLevel(logging.INFO)

    def close(self) -> None:
        """Leave logging as it was."""
        _OF_DEVICES.removeHandler(self._handler)
        _OF_DEVICES.setLevel(self._level)
        self._handler.close()


def line(what: str, **facts: object) -> str:
    """Return one line; seconds with milliseconds, texts with blanks in quotes."""
    return " ".join((what, *(f"{name}={_shown(value)}" for name, value in facts.items())))


def shown(value: object, most: int = 200) -> str:
    """Return what another machine says, as a line may hold it: cut, and printable."""
    return _printable(" ".join(str(value)[: 4 * most].split())[:most])


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    text = str(value)
    return f'"{text}"' if " " in text or not text else text


class _FileOfRun(WatchedFileHandler):
    """A file in a run directory, which moves where it replaces another."""

    def __init__(self, run: Path, *, is_new: bool) -> None:
        super().__init__(run / DEVICES_NAME, encoding="utf-8", delay=True)
        self._run, self._is_new = run.absolute(), is_new

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line to the file where it is now."""
        # Without its folder, a run was removed.
        folder = in_the_making(self._run) if self._is_new else self._run
        if not folder.is_dir():
            return
        self.baseFilename = str(folder / DEVICES_NAME)
        super().emit(record)


class _OneLine(logging.Formatter):
    """Keeps what others log, such as tracebacks, on one line, of what a terminal can show."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line."""
        text = super().format(record)
        parts = [part.strip() for part in text[:_MOST_CHARS].splitlines() if part.strip()]
        return _printable(" | ".join(parts))
