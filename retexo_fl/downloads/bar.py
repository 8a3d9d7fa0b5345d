"""What a person sees of a download: bars on a terminal, two plain lines elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn

from retexo_fl.outlet import standard_error
from retexo_fl.units import format_bytes


class DownloadBar:
    """Shows the files of one data set as they come, on standard error.

    Args:
        head: The line before the first byte.
        quiet: Show nothing at all.
        console: Where to; standard error by default.
    """

    def __init__(self, head: str, *, quiet: bool = False, console: Console | None = None) -> None:
        self._console = console or standard_error()
        self._head = head
        self._quiet = quiet
        self._bars: Progress | None = None
        self._total_bytes = 0

    def __enter__(self) -> Self:
        """Say what is about to begin."""
        self._say(self._head)
        if not self._quiet and self._console.is_terminal:
            self._bars = Progress(
                TextColumn("  {task.description}", markup=False),
                BarColumn(),
                DownloadColumn(),
                console=self._console,
            )
            self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the bars as they are; an error of the body is raised again."""
        if self._bars is not None:
            self._bars.stop()
            self._bars = None
        if error is None:
            self._say(f"  {format_bytes(self._total_bytes)}, SHA-256 as expected")

    def file(self, name: str) -> FileBar:
        """Begin a file."""
        task = None if self._bars is None else self._bars.add_task(name, total=None)
        return FileBar(self, task)

    def advanced(self, task: TaskID | None, size_bytes: int, announced: int | None) -> None:
        """Move a file's bar."""
        if self._bars is not None and task is not None:
            self._bars.update(task, completed=size_bytes, total=announced)

    def ended(self, task: TaskID | None, size_bytes: int) -> None:
        """Fill a file's bar."""
        self._total_bytes += size_bytes
        self.advanced(task, size_bytes, size_bytes)

    def _say(self, line: str) -> None:
        if not self._quiet:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)


class FileBar:
    """The bar of one file; called with the bytes that have come and those announced."""

    def __init__(self, bars: DownloadBar, task: TaskID | None) -> None:
        self._bars = bars
        self._task = task

    def __call__(self, size_bytes: int, announced: int | None) -> None:
        """Move on, or back to the beginning when an attempt failed."""
        self._bars.advanced(self._task, size_bytes, announced)

    def end(self, size_bytes: int) -> None:
        """The file is there."""
        self._bars.ended(self._task, size_bytes)
