"""Where progress is written, by whatever door: to standard error, or nowhere once that is lost."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import IO, Final, cast

from rich.console import Console

#: A reader or terminal that is gone, and a stream that is closed, or not there.
_LOST: Final = (OSError, ValueError, AttributeError)


class Outlet:
    """Standard error as it is at the moment, whose loss is nothing that a training ends by."""

    @property
    def encoding(self) -> str:
        """Of standard error."""
        return getattr(_standard_error(), "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        """Write a text, if it can be."""
        with suppress(*_LOST):
            _standard_error().write(text)
        return len(text)

    def flush(self) -> None:
        """Have it written, if it can be."""
        with suppress(*_LOST):
            _standard_error().flush()

    def isatty(self) -> bool:
        """Return whether standard error is a terminal."""
        with suppress(*_LOST):
            return _standard_error().isatty()
        return False


def standard_error(*, force_terminal: bool | None = None) -> Console:
    """Return a console that writes to standard error, and outlives it.

    Args:
        force_terminal: See :class:`rich.console.Console`.
    """
    return Console(file=cast("IO[str]", Outlet()), force_terminal=force_terminal)


def stdout_is_terminal() -> bool:
    """Return whether standard output is there, and a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()


def _standard_error() -> IO[str]:
    # While a live picture is shown, Rich has a stream of its own there that leads to it.
    return cast("IO[str]", getattr(sys.stderr, "rich_proxied_file", sys.stderr))
