"""The state of a run as its events tell it, for those who show it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from retexo_fl.units import format_counted

_PACE_ROUNDS: Final = 20  # rounds that the estimate of the time left looks back
_MOST_NAMED: Final = 10  # clients that a line names

Event = Mapping[str, object]


@dataclass(slots=True)
class StageRow:
    """One stage as its last event left it.

    Attributes:
        state: ``waiting``, ``exchange``, ``training`` or ``done``.
        round: Last round, or None before the first that was seen.
        rounds: Rounds that it may take.
        loss: Training loss of the last round.
        accuracy: Validation accuracy of the last round.
        best: Validation accuracy of the best round.
        moved_bytes: Payload that the run had moved by its last event.
        round_s: Seconds that the last round took.
        times_s: When its last rounds ended.
    """

    state: str = "waiting"
    round: int | None = None
    rounds: int | None = None
    loss: float | None = None
    accuracy: float | None = None
    best: float | None = None
    moved_bytes: int | None = None
    round_s: float | None = None
    times_s: deque[float] = field(default_factory=lambda: deque(maxlen=_PACE_ROUNDS))

    @property
    def left_s(self) -> float | None:
        """Seconds until its rounds are through, at the pace of the last ones."""
        if self.state == "done" or self.round is None or self.rounds is None:
            return None
        pace_s = self.round_s
        if len(self.times_s) > 1:
            pace_s = (self.times_s[-1] - self.times_s[0]) / (len(self.times_s) - 1)
        return None if pace_s is None else pace_s * max(self.rounds - self.round, 0)


class RunCourse:
    """The state of the run; the refreshing thread reads it while events arrive."""

    def __init__(self) -> None:
        self.rows: list[StageRow] = []
        self.clients: int | None = None
        self.attempt = 1
        self.moved_bytes: int | None = None
        self.test_accuracy: float | None = None
        self.missing = 0
        #: Clients that are waited for, and those that the last round was closed without.
        self.awaited: tuple[int, ...] = ()
        self.absent: tuple[int, ...] = ()
        self._never_came: tuple[int, ...] = ()
        self.finished = False
        self.stopped = False
        self._time_s = 0.0
        self._seen_at_s = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the attempt began; runs on between events, and stops with the run."""
        idle = 0.0 if self.finished or self.stopped else time.monotonic() - self._seen_at_s
        return self._time_s + idle

    def take(self, event: Event) -> None:
        """Take the next event."""
        self._time_s = number(event, "time_s") or self._time_s
        self._seen_at_s = time.monotonic()
        moved_bytes = integer(event, "bytes_payload")
        self.moved_bytes = self.moved_bytes if moved_bytes is None else moved_bytes
        name = event.get("event")
        self.awaited = integers(event, "clients") if name == "waiting" else ()
        if name == "start":
            self._never_came = integers(event, "absent")
        if name in {"start", "round"}:
            self.absent = tuple(sorted({*self._never_came, *integers(event, "absent")}))
        if name == "start":
            self._start(event)
        elif name == "finish":
            self.finished = True
            self.test_accuracy = number(event, "test_accuracy")
        elif name in {"exchange", "round", "stage_end"}:
            self._stage(str(name), event)

    def _start(self, event: Event) -> None:
        self.clients = integer(event, "clients")
        self.attempt = integer(event, "attempt") or 1
        self._grow(integer(event, "stages") or 0)
        if self.rows and self.attempt == 1:
            self.rows[0].state = "exchange"

    def _grow(self, stages: int) -> None:
        self.rows.extend(StageRow() for _ in range(stages - len(self.rows)))

    def _stage(self, name: str, event: Event) -> None:
        stage = integer(event, "stage") or 0
        self._grow(stage + 1)
        for earlier in self.rows[:stage]:
            earlier.state = "done"
        row = self.rows[stage]
        row.moved_bytes = self.moved_bytes
        if name == "round":
            _take_round(row, event)
        elif name == "stage_end":
            best = number(event, "val_accuracy")
            row.state, row.best = "done", row.best if best is None else best
            if stage + 1 < len(self.rows):
                self.rows[stage + 1].state = "exchange"
        else:
            row.state = "training"
            self.missing += integer(event, "missing") or 0


def _take_round(row: StageRow, event: Event) -> None:
    row.state = "training"
    row.round, row.rounds = integer(event, "round"), integer(event, "rounds")
    row.loss, row.accuracy = number(event, "loss"), number(event, "val_accuracy")
    row.best = number(event, "best_val_accuracy")
    row.round_s = number(event, "seconds")
    time_s = number(event, "time_s")
    if time_s is not None:
        row.times_s.append(time_s)


def number(event: Event, key: str) -> float | None:
    """Return a number of an event; None when it is absent or null."""
    value = event.get(key)
    return float(value) if isinstance(value, int | float) else None


def integer(event: Event, key: str) -> int | None:
    """Return a whole number of an event; None when it is absent or null."""
    value = event.get(key)
    return value if isinstance(value, int) else None


def integers(event: Event, key: str) -> tuple[int, ...]:
    """Return the whole numbers of an event's list; none when it is absent."""
    values = event.get(key)
    if not isinstance(values, list):
        return ()
    return tuple(value for value in values if isinstance(value, int))


def lacks_named(lacks: Mapping[int, int | None]) -> str:
    """Return what clients lack as a line says it; None stands for a client that does not answer."""
    named = [
        f"client {client} does not answer" if count is None else f"client {client} lacks {count}"
        for client, count in list(lacks.items())[:_MOST_NAMED]
    ]
    more = len(lacks) - len(named)
    return ", ".join(named) + (f", and {format_counted(more, 'client')} more" if more else "")


def clients_named(clients: tuple[int, ...]) -> str:
    """Return some clients as a line names them."""
    numbers = ", ".join(map(str, clients))
    return f"client{'' if len(clients) == 1 else 's'} {numbers}"
