"""What a person watching an inference sees: one row per exchange, and one for the predictions."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from rich.console import Console, Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from retexo_fl.progress.live_view import LiveView, plain_text
from retexo_fl.run_log.events import (
    Answered,
    Event,
    ExchangeClosed,
    Moved,
    Predicted,
    PredictionStarted,
)
from retexo_fl.units import format_bytes, format_count, format_counted, format_duration

_STYLES: Final = {"working": "cyan", "done": "green"}


@dataclass(slots=True)
class _Row:
    name: str
    state: str = "waiting"
    answers: int = 0
    note: str = ""


class PredictionTable(LiveView):
    """Shows an inference from the events of its loop; in a pipe, a line for each exchange.

    Args:
        partitions: Name of the parts, for the head line.
        model: Name of the layer.
        engine: Name of the engine.
        console: Where to write; standard error by default.
        quiet: Write nothing at all.
    """

    def __init__(
        self,
        *,
        partitions: str,
        model: str,
        engine: str,
        console: Console | None = None,
        quiet: bool = False,
    ) -> None:
        super().__init__(console=console, quiet=quiet)
        self._names = tuple(plain_text(name) for name in (partitions, model, engine))
        self._rows: list[_Row] = []
        self._clients = 0
        self._moved_bytes = 0
        self._end = ""
        self._begun = time.monotonic()

    def handle(self, event: Event) -> None:
        """Take the next event of the inference."""
        line = None
        if isinstance(event, Moved):
            self._moved_bytes = event.bytes_payload
        if isinstance(event, PredictionStarted):
            line = self._start(event)
        elif isinstance(event, Answered) and self._rows:
            row = self._rows[-1 if event.step == "predict" else event.stage]
            row.answers = event.answers
        elif isinstance(event, ExchangeClosed) and self._rows:
            line = self._close_exchange(event)
        elif isinstance(event, Predicted) and self._rows:
            line = self._finish(event)
        if self.wants_lines:
            self.write_line(line)

    def _start(self, event: PredictionStarted) -> str:
        self._clients = event.clients
        exchanges = (_Row(f"exchange {stage}") for stage in range(event.stages))
        self._rows = [*exchanges, _Row("predict")]
        self._rows[0].state = "working"
        return self._head()

    def _close_exchange(self, event: ExchangeClosed) -> str:
        lost = f", {format_count(event.missing)} missing" if event.missing else ""
        row = self._rows[event.stage]
        row.state, row.answers = "done", self._clients
        row.note = f"{format_counted(event.vectors, 'vector')}{lost}"
        self._rows[event.stage + 1].state = "working"
        moved = format_bytes(self._moved_bytes)
        return f"exchange {event.stage}: closed, {row.note}, {moved} moved"

    def _finish(self, event: Predicted) -> str:
        row = self._rows[-1]
        row.state, row.answers = "done", self._clients
        row.note = format_counted(event.nodes, "node")
        self._end = f"done: {row.note} predicted, {self._so_far()}"
        return self._end

    def stop(self) -> None:
        """Show an inference that has stopped."""
        self._end = self._end or f"{self._so_far()}, stopped"

    def picture(self) -> Group:
        """Return what a terminal shows."""
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
        for name, width in (("step", 12), ("state", 8)):
            table.add_column(name, width=width, no_wrap=True)
        table.add_column("clients", width=15, no_wrap=True, justify="right")
        table.add_column("", width=8, no_wrap=True)
        table.add_column("", no_wrap=True, overflow="ellipsis")
        for row in self._rows:
            table.add_row(*self._cells(row))
        head, foot = Text(self._head(), style="bold"), Text(self._end or self._so_far())
        return Group(head, Text(), table, Text(), foot)

    def _cells(self, row: _Row) -> list[Text | ProgressBar]:
        waiting = row.state == "waiting"
        bar = ProgressBar(
            total=max(self._clients, 1),
            completed=row.answers,
            width=8,
            complete_style="cyan",
            finished_style="green",
        )
        return [
            Text(row.name, style="dim" if waiting else ""),
            Text(row.state, style=_STYLES.get(row.state, "dim")),
            Text("" if waiting else f"{row.answers}/{self._clients}"),
            Text() if waiting else bar,
            Text(row.note),
        ]

    def _head(self) -> str:
        partitions, model, engine = self._names
        clients = format_counted(self._clients, "client")
        return f"{partitions}, {model}, {clients}, engine {engine}"

    def _so_far(self) -> str:
        elapsed_s = time.monotonic() - self._begun
        return f"{format_bytes(self._moved_bytes)} moved in {format_duration(elapsed_s)}"
