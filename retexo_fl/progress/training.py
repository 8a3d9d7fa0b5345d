"""What a person watching a run sees: a live table on a terminal, plain lines in a pipe."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from rich.console import Console, Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from retexo_fl.progress.live_view import LiveView, plain_text
from retexo_fl.progress.steps import Step
from retexo_fl.run_log.course import RunCourse, StageCourse
from retexo_fl.run_log.events import (
    BasisChosen,
    ColumnsMade,
    Event,
    ExchangeClosed,
    Finished,
    FloorCompared,
    RoundClosed,
    RowsCounted,
    StageClosed,
    Started,
    Waiting,
)
from retexo_fl.units import (
    UNKNOWN,
    clients_named,
    format_bytes,
    format_count,
    format_counted,
    format_duration,
    format_metric,
    format_share,
    lacks_named,
    spans,
)

if TYPE_CHECKING:
    from retexo_fl.config import RunConfig

_PLAIN_SHARES: Final = 10  # a pipe gets a line per tenth of the rounds


class LiveTable(LiveView):
    """Shows a run from its events: one row per stage on a terminal, plain lines elsewhere.

    A run that is resumed may begin in any stage and round. Used as a context manager::

        with LiveTable(dataset="digits", model="sage", engine="inline") as table:
            table.handle(Started(clients=5, stages=2))

    Args:
        dataset: Name for the head line.
        model: Name for the head line.
        engine: Name for the head line.
        masked: Whether sums are masked.
        console: Where to write; standard error by default.
        quiet: Write nothing at all.
    """

    def __init__(
        self,
        *,
        dataset: str,
        model: str,
        engine: str,
        masked: bool = False,
        console: Console | None = None,
        quiet: bool = False,
    ) -> None:
        super().__init__(console=console, quiet=quiet)
        more = ("masked sums",) * masked
        self._names = tuple(plain_text(name) for name in (dataset, model, engine, *more))
        self._course = RunCourse()
        self._beginning = Step("preparing clients", console=self._console, quiet=quiet)

    @classmethod
    def of_run(
        cls, config: RunConfig, *, console: Console | None = None, quiet: bool = False
    ) -> Self:
        """Return the table of a run; ``console`` and ``quiet`` as for the class."""
        return cls(
            dataset=config.graph_name,
            model=config.model,
            engine=config.engine,
            masked=config.secure_aggregation == "masked",
            console=console,
            quiet=quiet,
        )

    def __enter__(self) -> Self:
        """Start to show."""
        super().__enter__()
        if self.wants_lines:
            self._beginning.__enter__()
        return self

    def handle(self, event: Event) -> None:
        """Take the next event of the run."""
        if self.wants_lines:
            self._beginning.end()
        before = _tenth_so_far(event, self._course), self._course.absent
        self._course.take(event)
        if self.wants_lines:
            self.write_line(_plain_line(event, self._course, self._names, before))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the last state on the screen; an error of the body is raised again."""
        self._beginning.end()
        super().__exit__(kind, error, trace)

    def picture(self) -> Group:
        """Return what a terminal shows."""
        return _picture(self._course, self._names)

    def stop(self) -> None:
        """Show a run that has stopped."""
        self._course.stopped = True


def _picture(course: RunCourse, names: tuple[str, ...]) -> Group:
    head = Text(_head(course, names), style="bold")
    choices = (course.made_columns, course.chosen_rows, course.chosen_floor)
    chosen = [choice.sentence for choice in choices if choice is not None]
    profile = [Text(line, style="dim") for line in [*_profile_of(course), *chosen]]
    warnings = [Text(f"warning: {plain_text(line)}", style="yellow") for line in course.warnings]
    foot = Text()
    if course.finished:
        foot.append(_summary(course))
    else:
        foot.append(_foot(course), style="dim")
    short = [Text(line, style="yellow") for line in _short_of(course)]
    fits = [Text(line, style="dim") for line in _fits(course)]
    return Group(head, *profile, *warnings, Text(), _table(course), *fits, Text(), *short, foot)


def _fits(course: RunCourse) -> list[str]:
    """Return a line for each stage of which more is known than its validation, or that cached."""
    known = [
        f"stage {stage.index}: validation {format_metric(stage.metric, stage.best_value)}, "
        f"{', '.join(map(plain_text, stage.kept))}"
        for stage in course.stages
        if stage.kept
    ]
    cached = [
        f"stage {stage.index}: {stage.cached.sentence}"
        for stage in course.stages
        if stage.cached is not None
    ]
    return [*known, *cached]


def _short_of(course: RunCourse) -> list[str]:
    """Return a line on the rounds that were closed without some clients, if there are any."""
    found = []
    for stage in course.stages:
        rounds = [number for number in sorted(stage.rounds) if stage.rounds[number].absent]
        if rounds:
            named = ", ".join(
                str(first) if first == last else f"{first}-{last}" for first, last in spans(rounds)
            )
            found.append(f"stage {stage.index} round{'' if len(rounds) == 1 else 's'} {named}")
    return [f"without some clients: {'; '.join(found)}"] if found else []


def _table(course: RunCourse) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for name, width in (("stage", 5), ("state", 8)):
        table.add_column(name, width=width, no_wrap=True)
    table.add_column("round", width=9, no_wrap=True, justify="right")
    table.add_column("", width=8, no_wrap=True)
    for name, width in (("loss", 6), ("val", 7), ("best", 7), ("moved", 7), ("left", 7)):
        table.add_column(name, width=width, no_wrap=True, justify="right")
    for stage in course.stages:
        table.add_row(*_cells(stage))
    return table


_STATE_STYLES: Final = {"exchange": "yellow", "training": "cyan", "done": "green"}


def _cells(stage: StageCourse) -> list[Text | ProgressBar]:
    latest = stage.latest
    # Of a stage that lost patience the last round has no event.
    ended = None if stage.end is None else stage.end.rounds
    done = ended or (latest.round if latest else 0)
    bar: Text | ProgressBar = Text()
    if latest is not None and latest.rounds:
        bar = ProgressBar(
            total=latest.rounds,
            completed=latest.rounds if stage.state == "done" else latest.round,
            width=8,
            complete_style="cyan",
            finished_style="green",
        )
    loss = None if latest is None else latest.loss
    value = None if latest is None else stage.value(latest)
    best, moved_bytes, left_s = stage.best_value, stage.moved_bytes, stage.left_s
    return [
        Text(str(stage.index), style="dim" if stage.state == "waiting" else ""),
        Text(stage.state, style=_STATE_STYLES.get(stage.state, "dim")),
        Text("" if latest is None else f"{done}/{latest.rounds}"),
        bar,
        Text("" if loss is None else _loss(loss)),
        Text("" if value is None else format_metric(stage.metric, value)),
        Text("" if best is None else format_metric(stage.metric, best), style="bold"),
        Text("" if moved_bytes is None else format_bytes(moved_bytes)),
        Text("" if left_s is None else _short(left_s), style="dim"),
    ]


def _head(course: RunCourse, names: tuple[str, ...]) -> str:
    parts = [*names[:2]]
    if course.clients is not None:
        parts.append(format_counted(course.clients, "client"))
    parts.append(f"engine {names[2]}")
    parts.extend(names[3:])
    if course.metric != "accuracy":
        parts.append(f"metric {plain_text(course.metric)}")
    if course.attempt > 1:
        parts.append(f"attempt {course.attempt}")
    return ", ".join(parts)


def _foot(course: RunCourse) -> str:
    if course.clients is None and not course.stopped:
        return f"preparing clients: {_short(course.elapsed_s)} so far"
    text = f"{format_bytes(course.moved_bytes or 0)} moved in {_short(course.elapsed_s)}"
    if course.missing:
        text += f", {format_counted(course.missing, 'vector')} missing"
    if course.awaited:
        text += f", waits for {clients_named(course.awaited)}"
    elif course.absent:
        text += f", without {clients_named(course.absent)}"
    return text + (", stopped" if course.stopped else "")


def _summary(course: RunCourse) -> str:
    name = plain_text(course.metric)
    best = course.kept_value
    beside = ""
    if name != "accuracy" and course.end is not None and course.end.test_accuracy is not None:
        beside = f" (accuracy {format_share(course.end.test_accuracy)})"
    return (
        f"done: test {name} {format_metric(name, course.test_value)}{beside}, "
        f"validation {format_metric(name, best)}, {format_bytes(course.moved_bytes)} moved "
        f"in {format_duration(course.elapsed_s)}"
    )


def _plain_line(
    event: Event,
    course: RunCourse,
    names: tuple[str, ...],
    before: tuple[int | None, tuple[int, ...]],
) -> str | None:
    """Return the line that a pipe gets for an event; None when it gets none.

    Args:
        event: It.
        course: With the event.
        names: For the head line.
        before: The tenth of the stage's rounds, and the absent clients, before the event.
    """
    match event:
        case Started(warnings=warnings):
            return "\n".join([_head(course, names), *_profile_of(course), *_warned(warnings)])
        case Finished(warnings=warnings):
            return "\n".join([*_warned(warnings), _summary(course)])
        case Waiting():
            return _plain_wait(event)
        case ColumnsMade(made=chosen) | BasisChosen(chosen=chosen):
            line = chosen.sentence
        case FloorCompared(chosen=floor):
            line = plain_text(floor.sentence)
        case RowsCounted(stage=stage, cached=cached):
            line = f"stage {stage}: {cached.sentence}"
        case ExchangeClosed():
            line = _plain_exchange(event)
        case RoundClosed(absent=absent) if _tenth_so_far(event, course) != before[0] or (
            absent and course.absent != before[1]
        ):
            line = _plain_round(event, course)
        case StageClosed(stage=stage, best_round=best, rounds=rounds):
            where = f" after {format_counted(rounds, 'round')}" if rounds else ""
            where += "" if best is None else f", best round {best}"
            value = format_metric(course.metric, course.stages[stage].best_value)
            kept = "".join(f", {plain_text(fact)}" for fact in course.stages[stage].kept)
            line = f"stage {stage}: done{where}, validation {value}{kept}"
        case _:
            return None
    return f"{line}, {format_bytes(course.moved_bytes)} moved"


def _profile_of(course: RunCourse) -> list[str]:
    return [] if course.profile is None else [plain_text(course.profile.sentence)]


def _warned(warnings: tuple[str, ...]) -> list[str]:
    return [f"warning: {plain_text(warning)}" for warning in warnings]


def _plain_wait(event: Waiting) -> str:
    if event.lacks:
        told = lacks_named(dict(zip(event.clients, event.lacks, strict=True)))
        return f"stage {event.stage}: exchange open for {format_duration(event.open_s)}: {told}"
    what = f"round {event.round}" if event.round else event.purpose
    return f"stage {event.stage}: {what} waits for {clients_named(event.clients)}"


def _plain_exchange(event: ExchangeClosed) -> str:
    lost = f", {format_count(event.missing)} missing" if event.missing else ""
    vectors = format_counted(event.vectors, "vector")
    return f"stage {event.stage}: exchange closed, {vectors}{lost}"


def _plain_round(event: RoundClosed, course: RunCourse) -> str:
    stage = course.stages[event.stage]
    left = "" if not stage.left_s else f", {_short(stage.left_s)} left"
    value, best = (
        format_metric(stage.metric, found) for found in (stage.value(event), stage.best_value)
    )
    return (
        f"stage {event.stage}: round {event.round}/{event.rounds}{left}, "
        f"loss {UNKNOWN if event.loss is None else _loss(event.loss)}, "
        f"validation {value}, best {best}"
        + (f", without {clients_named(course.absent)}" if course.absent else "")
    )


def _tenth_so_far(event: Event, course: RunCourse) -> int | None:
    """Return which tenth of its rounds the event's stage has reached; None before the first."""
    if not isinstance(event, RoundClosed) or event.stage >= len(course.stages):
        return None
    latest = course.stages[event.stage].latest
    return None if latest is None else _tenth(latest.round, latest.rounds)


def _tenth(number: int, rounds: int) -> int:
    return _PLAIN_SHARES * number // max(rounds, 1)


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
