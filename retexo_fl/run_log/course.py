"""The course of a run, from its events: folded once, for progress, report and ``--json``."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from retexo_fl.run_log.cached_rows import CachedRows
from retexo_fl.run_log.chosen_floor import ChosenFloor
from retexo_fl.run_log.chosen_rows import ChosenRows
from retexo_fl.run_log.events import (
    BasisChosen,
    ColumnsMade,
    Event,
    ExchangeClosed,
    Finished,
    FloorCompared,
    Moved,
    RoundClosed,
    RoundsLost,
    RowsCounted,
    StageClosed,
    Started,
    TriedCandidate,
    Waiting,
)
from retexo_fl.run_log.made_columns import MadeColumns
from retexo_fl.run_log.profile import ChosenProfile
from retexo_fl.units import format_metric, format_share

#: Of a stage that is trained as nothing else.
_AS_IT_IS: Final = "as it is"
#: Rounds that the estimate of the time left looks back.
_PACE_ROUNDS: Final = 20


@dataclass(slots=True, kw_only=True)
class StageCourse:
    """One stage as its last event left it.

    Attributes:
        index: Stage, from 0.
        start_bytes: Payload bytes of the run when it began.
        state: ``waiting``, ``exchange``, ``training`` or ``done``.
        exchange: The end of its exchange.
        rounds: Its rounds by number, one that an attempt repeated as that attempt had it.
        end: Its end.
        cached: What its mini-batches have read where devices cache features; None where none does.
        moved_bytes: Payload bytes of the run at its last event, or None before the first.
        metric: By which weights are selected.
    """

    index: int
    start_bytes: int = 0
    state: str = "waiting"
    exchange: ExchangeClosed | None = None
    rounds: dict[int, RoundClosed] = field(default_factory=dict)
    end: StageClosed | None = None
    cached: CachedRows | None = None
    moved_bytes: int | None = None
    metric: str = "accuracy"
    _latest: RoundClosed | None = None
    _times_s: deque[float] = field(default_factory=lambda: deque(maxlen=_PACE_ROUNDS))

    @property
    def latest(self) -> RoundClosed | None:
        """The last round in the events."""
        return self._latest

    @property
    def trained_rounds(self) -> int:
        """How many rounds it took so far."""
        ended = self.end.rounds if self.end else None
        return len(self.points) if ended is None else ended

    @property
    def points(self) -> tuple[RoundClosed, ...]:
        """Its rounds, in order."""
        return tuple(self.rounds[number] for number in sorted(self.rounds))

    @property
    def rounds_planned(self) -> int:
        """Rounds that it may take; 0 before its first."""
        return 0 if self._latest is None else self._latest.rounds

    @property
    def best_round(self) -> int | None:
        """The round whose weights are the best so far, or None."""
        last = self.end or self._latest
        return None if last is None else last.best_round

    @property
    def best(self) -> RoundClosed | None:
        """The best round, where it is known."""
        return None if self.best_round is None else self.rounds.get(self.best_round)

    @property
    def best_value(self) -> float | None:
        """The metric of the best round on the validation nodes, or None."""
        if self.end is not None and (ended := self.value(self.end)) is not None:
            return ended
        if self._latest is None:
            return None
        last = self._latest
        return last.best_val_accuracy if self.metric == "accuracy" else last.best_val_metric

    @property
    def kept(self) -> tuple[str, ...]:
        """What is known of its kept weights beside their validation, in words.

        How many train nodes they have right, and what they were chosen among.
        """
        found = []
        if self.end is not None and self.end.train_accuracy is not None:
            found.append(f"train accuracy {format_share(self.end.train_accuracy)}")
        if self.end is not None and self.end.tried:
            others = (
                f"{one.name or _AS_IT_IS} {format_metric(self.metric, self._tried_value(one))}"
                for one in self.end.tried
                if one.name != self.end.candidate
            )
            found.append(f"{self.end.candidate or _AS_IT_IS} (else {', '.join(others)})")
        return tuple(found)

    def _tried_value(self, tried: TriedCandidate) -> float | None:
        return tried.val_accuracy if self.metric == "accuracy" else tried.val_metric

    def value(self, event: RoundClosed | StageClosed) -> float | None:
        """Return the metric of one of its events on the validation nodes, or None."""
        return event.val_accuracy if self.metric == "accuracy" else event.val_metric

    @property
    def end_bytes(self) -> int | None:
        """Payload bytes of the run when its last round was over, or its exchange; None before."""
        if self.rounds:
            return self.rounds[max(self.rounds)].bytes_payload
        return None if self.exchange is None else self.exchange.bytes_payload

    @property
    def left_s(self) -> float | None:
        """Seconds until its rounds are through, at the pace of the last ones."""
        if self.state == "done" or self._latest is None:
            return None
        pace_s = self._latest.seconds
        if len(self._times_s) > 1:
            pace_s = (self._times_s[-1] - self._times_s[0]) / (len(self._times_s) - 1)
        if pace_s is None:
            return None
        return pace_s * max(self._latest.rounds - self._latest.round, 0)

    def take(self, event: ExchangeClosed | RoundClosed | StageClosed) -> None:
        """Take its next event."""
        self.moved_bytes = event.bytes_payload
        if isinstance(event, ExchangeClosed):
            self.state, self.exchange = "training", event
        elif isinstance(event, StageClosed):
            self.state, self.end = "done", event
        else:
            self.state, self._latest, self.end = "training", event, None
            self.rounds[event.round] = event
            if event.time_s is not None:
                self._times_s.append(event.time_s)


class RunCourse:
    """The state of a run; a refreshing thread may read it while events arrive.

    Attributes:
        stages: As many as were named so far.
        clients: How many there are, or None before the start.
        attempt: The last one, by its number.
        attempts: How many have begun to train.
        metric: By which weights are selected.
        profile: Of the run; None where its keys were given without any.
        made_columns: What takes the place of features where nodes have none; else None.
        chosen_rows: Of which rows its basis is, where validation nodes chose.
        chosen_floor: What was kept at the end, likewise.
        moved_bytes: Payload bytes of the run.
        awaited: Clients that are waited for.
        absent: Clients that the last round was closed without.
        end: The end of the run.
        stopped: Whether it was stopped before its end.
        lost: Rounds whose lines a crash took: stage, first and last.
        warnings: What the user should know of labels and predictions, a line each.
        summed: Fewest and most clients that a round's masked sum was of; None without masks.
        cut: Values of masked updates that were too large for their steps.
    """

    def __init__(self) -> None:
        self.stages: list[StageCourse] = []
        self.clients: int | None = None
        self.attempt = 1
        self.attempts = 0
        self.metric = "accuracy"
        self.profile: ChosenProfile | None = None
        self.made_columns: MadeColumns | None = None
        self.chosen_rows: ChosenRows | None = None
        self.chosen_floor: ChosenFloor | None = None
        self.moved_bytes: int | None = None
        self.awaited: tuple[int, ...] = ()
        self.absent: tuple[int, ...] = ()
        self.end: Finished | None = None
        self.stopped = False
        self.lost: dict[tuple[int, int, int], None] = {}
        self.warnings: tuple[str, ...] = ()
        self.summed: tuple[int, int] | None = None
        self.cut = 0
        self._never_came: tuple[int, ...] = ()
        self._earlier_s = 0.0
        self._attempt_s = 0.0
        self._seen_at_s = time.monotonic()

    @classmethod
    def of(cls, events: Iterable[Event]) -> RunCourse:
        """Return the course of events in file order."""
        course = cls()
        for event in events:
            course.take(event)
        return course

    @property
    def finished(self) -> bool:
        """Whether the run has ended."""
        return self.end is not None

    @property
    def test_value(self) -> float | None:
        """The metric of the test, or None."""
        if self.end is None:
            return None
        return self.end.test_accuracy if self.metric == "accuracy" else self.end.test_metric

    @property
    def kept_value(self) -> float | None:
        """The metric of what is kept on validation nodes, or None."""
        if self.chosen_floor is not None and self.chosen_floor.keeps_floor:
            return self.chosen_floor.floor
        found = (stage.best_value for stage in reversed(self.stages))
        return next((value for value in found if value is not None), None)

    @property
    def missing(self) -> int:
        """Vectors that exchanges were closed without."""
        return sum((s.exchange.missing or 0) for s in self.stages if s.exchange is not None)

    @property
    def seconds(self) -> float:
        """Seconds of all attempts, until the last event of each."""
        return self._earlier_s + self._attempt_s

    @property
    def elapsed_s(self) -> float:
        """Seconds since the attempt began; runs on between events, and stops with the run."""
        idle = 0.0 if self.finished or self.stopped else time.monotonic() - self._seen_at_s
        return self._attempt_s + idle

    @property
    def begun(self) -> list[StageCourse]:
        """The stages with any event."""
        return [stage for stage in self.stages if stage.moved_bytes is not None]

    def take(self, event: Event) -> None:
        """Take the next event."""
        self._seen_at_s = time.monotonic()
        self.awaited = event.clients if isinstance(event, Waiting) else ()
        if isinstance(event, Moved):
            self.moved_bytes = event.bytes_payload
        if isinstance(event, Started):
            self._start(event)
        elif isinstance(event, Finished):
            self.end = event
            self.warnings += event.warnings
        elif isinstance(event, ColumnsMade):
            self.made_columns = event.made
        elif isinstance(event, BasisChosen):
            self.chosen_rows = event.chosen
        elif isinstance(event, FloorCompared):
            self.chosen_floor = event.chosen
        elif isinstance(event, RowsCounted):
            self._grow(event.stage + 1)
            self.stages[event.stage].cached = event.cached
        elif isinstance(event, RoundsLost):
            self.lost.update(dict.fromkeys(event.rounds))
        elif isinstance(event, ExchangeClosed | RoundClosed | StageClosed):
            self._take_of_stage(event)
        self._attempt_s = max(self._attempt_s, event.time_s or 0.0)

    def _start(self, event: Started) -> None:
        self.clients, self.attempt, self.metric = event.clients, event.attempt, event.metric
        self.profile = event.profile
        self.attempts += 1
        self.absent = self._never_came = event.absent
        self.warnings = event.warnings
        self._earlier_s, self._attempt_s = self._earlier_s + self._attempt_s, 0.0
        self._grow(event.stages)
        for stage in self.stages:
            stage.metric = event.metric
        if self.stages and event.attempt == 1:
            self.stages[0].state = "exchange"

    def _take_masked(self, event: RoundClosed) -> None:
        if event.summed is not None:
            least, most = self.summed or (event.summed, event.summed)
            self.summed = min(least, event.summed), max(most, event.summed)
            self.cut += event.cut or 0

    def _grow(self, stages: int) -> None:
        self.stages.extend(
            StageCourse(index=index, metric=self.metric)
            for index in range(len(self.stages), stages)
        )

    def _take_of_stage(self, event: ExchangeClosed | RoundClosed | StageClosed) -> None:
        self._grow(event.stage + 1)
        for earlier in self.stages[: event.stage]:
            earlier.state = "done"
        stage = self.stages[event.stage]
        if stage.moved_bytes is None:
            ends = (earlier.end_bytes for earlier in reversed(self.stages[: event.stage]))
            stage.start_bytes = next((end for end in ends if end is not None), 0)
        stage.take(event)
        if isinstance(event, RoundClosed):
            self.absent = tuple(sorted({*self._never_came, *event.absent}))
            self._take_masked(event)
        if isinstance(event, StageClosed) and event.stage + 1 < len(self.stages):
            self.stages[event.stage + 1].state = "exchange"
