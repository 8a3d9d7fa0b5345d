"""The agent's log: one line for each event on standard error, as ``what key=value key=value``."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Final

#: Of this agent and everything below it.
LOGGER: Final = logging.getLogger("retexo_fl.agent")


@contextmanager
def logged_to_stderr(environment: Mapping[str, str] = os.environ) -> Generator[None]:
    """Write the log of the whole library to standard error, and leave logging as it was.

    Under systemd the journal knows level and time already.
    """
    handler = logging.StreamHandler(sys.stderr)
    under_systemd = bool(environment.get("JOURNAL_STREAM"))
    handler.setFormatter(
        _OneLine(
            "%(message)s" if under_systemd else "%(asctime)s %(levelname)s %(message)s",
            datefmt="%Y-%m-%dT%H:%M:%S%z",
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


def line(what: str, **facts: object) -> str:
    """Return one line; seconds with milliseconds, texts with blanks in quotes."""
    return " ".join((what, *(f"{name}={_shown(value)}" for name, value in facts.items())))


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    text = str(value)
    return f'"{text}"' if " " in text or not text else text


class _OneLine(logging.Formatter):
    """Keeps what others log, such as tracebacks, on one line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line."""
        text = super().format(record)
        return " | ".join(part.strip() for part in text.splitlines() if part.strip())
