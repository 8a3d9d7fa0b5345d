"""What a person watching a run sees: a live table on a terminal, plain lines in a pipe."""

from __future__ import annotations

from typing import Final

from rich.console import Console, Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from retexo_fl.live_view import LiveView, plain_text
from retexo_fl.progress_state import (
    Event,
    RunCourse,
    StageRow,
    clients_named,
    integer,
    lacks_named,
    number,
)
from retexo_fl.units import (
    UNKNOWN,
    format_bytes,
    format_count,
    format_counted,
    format_duration,
    format_share,
)

_PLAIN_SHARES: Final = 10  # a pipe gets a line per tenth of the rounds


class LiveTable(LiveView):
    """Shows a run from its events: one row per stage on a terminal, plain lines elsewhere.

    A run that is resumed may begin in any stage and round. Used as a context manager::

        with LiveTable(dataset="digits", model="sage", engine="inline") as table:
            table.handle({"event": "start", "time_s": 0.0, "attempt": 1, "clients": 5, "stages": 2})

    Args:
        dataset: Name for the head line.
        model: Name for the head line.
        engine: Name for the head line.
        console: Where to write; standard error by default.
        quiet: Write nothing at all.
    """

    def __init__(
        self,
        *,
        dataset: str,
        model: str,
        engine: str,
        console: Console | None = None,
        quiet: bool = False,
    ) -> None:
        super().__init__(console=console, quiet=quiet)
        self._names = tuple(plain_text(name) for name in (dataset, model, engine))
        self._course = RunCourse()

    def handle(self, event: Event) -> None:
        """Take the next event of the run, as ``metrics.jsonl`` holds it.

        Args:
            event: Fields by name; ``event`` is ``start``, ``exchange``, ``round``, ``stage_end``,
                ``waiting`` or ``finish``. Another kind is passed over.
        """
        before = _tenth_so_far(event, self._course)
        self._course.take(event)
        if self.wants_lines:
            self.write_line(_plain_line(event, self._course, self._names, before=before))

    def picture(self) -> Group:
        """Return what a terminal shows."""
        return _picture(self._course, self._names)

    def stop(self) -> None:
        """Show a run that does not go on."""
        self._course.stopped = True


def _picture(course: RunCourse, names: tuple[str, ...]) -> Group:
    head = Text(_head(course, names), style="bold", no_wrap=True, overflow="ellipsis")
    foot = Text(no_wrap=True, overflow="ellipsis")
    if course.finished:
        foot.append(_summary(course))
    else:
        foot.append(_foot(course), style="dim")
    return Group(head, Text(), _table(course), Text(), foot)


def _table(course: RunCourse) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for name, width in (("stage", 5), ("state", 8)):
        table.add_column(name, width=width, no_wrap=True)
    table.add_column("round", width=9, no_wrap=True, justify="right")
    table.add_column("", width=8, no_wrap=True)
    for name, width in (("loss", 6), ("val", 7), ("best", 7), ("moved", 7), ("left", 7)):
        table.add_column(name, width=width, no_wrap=True, justify="right")
    for index, row in enumerate(course.rows):
        table.add_row(*_cells(index, row))
    return table


_STATE_STYLES: Final = {"exchange": "yellow", "training": "cyan", "done": "green"}


def _cells(index: int, row: StageRow) -> list[Text | ProgressBar]:
    known = row.round is not None and row.rounds is not None
    bar: Text | ProgressBar = Text()
    if row.rounds:
        through = row.rounds if row.state == "done" else row.round
        bar = ProgressBar(
            total=row.rounds,
            completed=through or 0,
            width=8,
            complete_style="cyan",
            finished_style="green",
        )
    waiting = row.state == "waiting"
    return [
        Text(str(index), style="dim" if waiting else ""),
        Text(row.state, style=_STATE_STYLES.get(row.state, "dim")),
        Text(f"{row.round}/{row.rounds}" if known else ""),
        bar,
        Text("" if row.loss is None else _loss(row.loss)),
        Text("" if row.accuracy is None else format_share(row.accuracy)),
        Text("" if row.best is None else format_share(row.best), style="bold"),
        Text("" if row.moved_bytes is None else format_bytes(row.moved_bytes)),
        Text("" if row.left_s is None else _short(row.left_s), style="dim"),
    ]


def _head(course: RunCourse, names: tuple[str, ...]) -> str:
    parts = [*names[:2]]
    if course.clients is not None:
        parts.append(format_counted(course.clients, "client"))
    parts.append(f"engine {names[2]}")
    if course.attempt > 1:
        parts.append(f"attempt {course.attempt}")
    return ", ".join(parts)


def _foot(course: RunCourse) -> str:
    text = f"{format_bytes(course.moved_bytes or 0)} moved in {_short(course.elapsed_s)}"
    if course.missing:
        text += f", {format_counted(course.missing, 'vector')} missing"
    if course.awaited:
        text += f", waits for {clients_named(course.awaited)}"
    elif course.absent:
        text += f", without {clients_named(course.absent)}"
    return text + (", stopped" if course.stopped else "")


def _summary(course: RunCourse) -> str:
    best = next((row.best for row in reversed(course.rows) if row.best is not None), None)
    return (
        f"done: test accuracy {format_share(course.test_accuracy)}, "
        f"validation {format_share(best)}, {format_bytes(course.moved_bytes)} moved "
        f"in {format_duration(course.elapsed_s)}"
    )


def _plain_line(
    event: Event, course: RunCourse, names: tuple[str, ...], *, before: int | None
) -> str | None:
    """Return the line that a pipe gets for an event; None when it gets none."""
    name, stage = event.get("event"), integer(event, "stage")
    line = None
    if name == "start":
        line = _head(course, names)
    elif name == "finish":
        line = _summary(course)
    elif name == "waiting" and stage is not None:
        return _plain_wait(event, stage, course.awaited)
    elif name == "exchange" and stage is not None:
        line = _plain_exchange(event, stage)
    elif name == "round" and stage is not None and _tenth_so_far(event, course) != before:
        line = _plain_round(stage, course.rows[stage], course.absent)
    elif name == "stage_end" and stage is not None:
        best = integer(event, "best_round")
        where = "" if best is None else f", best round {best}"
        line = f"stage {stage}: done{where}, validation {format_share(course.rows[stage].best)}"
    if line is None or name in {"start", "finish"}:
        return line
    return f"{line}, {format_bytes(course.moved_bytes)} moved"


def _plain_wait(event: Event, stage: int, awaited: tuple[int, ...]) -> str:
    lacks, open_s = event.get("lacks"), number(event, "open_s")
    if isinstance(lacks, list):
        told = lacks_named(dict(zip(awaited, lacks, strict=True)))
        return f"stage {stage}: exchange open for {format_duration(open_s)}: {told}"
    round_number = integer(event, "round")
    what = f"round {round_number}" if round_number else str(event.get("purpose"))
    return f"stage {stage}: {what} waits for {clients_named(awaited)}"


def _plain_exchange(event: Event, stage: int) -> str:
    missing = integer(event, "missing")
    lost = f", {format_count(missing)} missing" if missing else ""
    vectors = format_counted(integer(event, "vectors"), "vector")
    return f"stage {stage}: exchange closed, {vectors}{lost}"


def _plain_round(stage: int, row: StageRow, absent: tuple[int, ...]) -> str:
    left = "" if not row.left_s else f", {_short(row.left_s)} left"
    return (
        f"stage {stage}: round {row.round}/{row.rounds}{left}, "
        f"loss {UNKNOWN if row.loss is None else _loss(row.loss)}, "
        f"validation {format_share(row.accuracy)}, best {format_share(row.best)}"
        + (f", without {clients_named(absent)}" if absent else "")
    )


def _tenth_so_far(event: Event, course: RunCourse) -> int | None:
    """Return which tenth of its rounds the event's stage has reached; None before the first."""
    stage = integer(event, "stage")
    row = course.rows[stage] if stage is not None and stage < len(course.rows) else None
    return None if row is None or row.round is None else _tenth(row.round, row.rounds)


def _tenth(number: int, rounds: int | None) -> int:
    return _PLAIN_SHARES * number // max(rounds or 1, 1)


def _loss(loss: float) -> str:
    """Return a loss in at most six characters."""
    if abs(loss) < 999.95:
        return f"{loss:.4f}"[:6].rstrip(".")
    return f"{loss:.0e}".replace("e+0", "e").replace("e+", "e")


def _short(seconds: float) -> str:
    """Return a duration in at most seven characters, whole seconds."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, seconds_left = divmod(whole, 60)
    hours, minutes_left = divmod(minutes, 60)
    if hours == 0:
        return f"{minutes}:{seconds_left:02d}"
    if hours < 100:
        return f"{hours}h{minutes_left:02d}m"
    return f"{hours // 24} d"
