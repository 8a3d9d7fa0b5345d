"""A picture that a terminal shows while work is under way; in a pipe, lines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Final, Self

from rich.console import Console, RenderableType
from rich.live import Live

from retexo_fl.outlet import standard_error, stdout_is_terminal

REFRESHES_PER_S: Final = 8


class LiveView(ABC):
    """A context in which a terminal shows :meth:`picture`, again and again.

    Args:
        console: Where to write; standard error by default.
        quiet: Write nothing at all.
    """

    def __init__(self, *, console: Console | None = None, quiet: bool = False) -> None:
        self._console = console if console is not None else standard_error()
        self._quiet = quiet
        self._live: Live | None = None

    @abstractmethod
    def picture(self) -> RenderableType:
        """Return what a terminal shows at this moment; called by the refreshing thread."""

    @abstractmethod
    def stop(self) -> None:
        """Note that what is shown has ended, before the last picture."""

    def __enter__(self) -> Self:
        """Start to show."""
        if not self._quiet and self._console.is_terminal:
            self._live = Live(
                get_renderable=self.picture,
                console=self._console,
                refresh_per_second=REFRESHES_PER_S,
                # What others print must not vanish from a standard output that is a file.
                redirect_stdout=stdout_is_terminal(),
            )
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the last state on the screen; an error of the body is raised again."""
        if self._live is not None:
            self.stop()
            self._live.stop()
            self._live = None

    @property
    def wants_lines(self) -> bool:
        """Whether events are written as lines: no terminal, and quiet was not asked for."""
        return not self._quiet and self._live is None

    def write_line(self, line: str | None) -> None:
        """Write a line, if it says anything, in the encoding of its reader."""
        if line:
            write_line(self._console, line)


def write_line(console: Console, line: str) -> None:
    """Write a line where there is no terminal, in the encoding of its reader."""
    encoding = getattr(console.file, "encoding", None) or "utf-8"
    console.file.write(line.encode(encoding, "backslashreplace").decode(encoding) + "\n")
    console.file.flush()


def plain_text(text: str) -> str:
    """Return a text without what would steer a terminal."""
    return "".join(char if char.isprintable() else "?" for char in text)
