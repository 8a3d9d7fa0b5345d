"""What a person sees before there is a table: what is being done, once it takes a while."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner

from retexo_fl.outlet import standard_error, stdout_is_terminal
from retexo_fl.progress.live_view import REFRESHES_PER_S, plain_text, write_line
from retexo_fl.units import format_duration

#: What takes less says nothing: on a terminal, where it leaves no trace, and elsewhere.
_SILENT_S: Final = 1.0
_SILENT_IN_LINES_S: Final = 3.0
#: Between lines of one step, where there is no terminal.
_LINE_EVERY_S: Final = 10.0


class Step:
    """Says what the body does, and for how long: on a terminal in a line that moves, else in lines.

    Args:
        words: What is done: ``cutting 1,797 nodes into 5 parts``.
        console: Where to write; standard error by default.
        quiet: Write nothing at all.
        silent_s: Seconds that the body may take without a word; by default fewer on a terminal.
        line_every_s: Seconds between lines.
    """

    def __init__(
        self,
        words: str,
        *,
        console: Console | None = None,
        quiet: bool = False,
        silent_s: float | None = None,
        line_every_s: float = _LINE_EVERY_S,
    ) -> None:
        self._words = plain_text(words)
        self._console = console if console is not None else standard_error()
        if silent_s is None:
            silent_s = _SILENT_S if self._console.is_terminal else _SILENT_IN_LINES_S
        self._times_s = silent_s, line_every_s
        self._has_ended = threading.Event()
        self._begun_s = time.monotonic()
        self._quiet = quiet
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        """Begin."""
        self._begun_s = time.monotonic()
        if not self._quiet:
            self._thread = threading.Thread(target=self._show, name="step", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End; an error of the body is raised again."""
        self.end()

    def end(self) -> None:
        """Say no more; may be called twice."""
        self._has_ended.set()
        if self._thread is not None:
            self._thread.join()

    def _show(self) -> None:
        silent_s, line_every_s = self._times_s
        if self._has_ended.wait(silent_s):
            return
        if self._console.is_terminal:
            spinner = Spinner("dots")
            with Live(
                get_renderable=lambda: self._moved(spinner),
                console=self._console,
                refresh_per_second=REFRESHES_PER_S,
                redirect_stdout=stdout_is_terminal(),
                transient=True,
            ):
                self._has_ended.wait()
            return
        write_line(self._console, self._words)
        while not self._has_ended.wait(line_every_s):
            write_line(self._console, self._so_far())

    def _moved(self, spinner: Spinner) -> Spinner:
        spinner.update(text=self._so_far())
        return spinner

    def _so_far(self) -> str:
        return f"{self._words}: {format_duration(time.monotonic() - self._begun_s)} so far"
