"""What ``metrics.jsonl`` says: the course of a run, stage by stage, over all its attempts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from retexo_fl.report.fields import Fields


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPoint:
    """One round: the values of its weights and the payload bytes that the run had moved by then."""

    round: int
    loss: float | None
    val_loss: float | None
    val_accuracy: float | None
    payload_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCourse:
    """One stage.

    Attributes:
        index: Stage, from 0.
        rounds_planned: Rounds that the stage may take.
        points: Its rounds, in order.
        best_round: The round whose weights were kept, or None.
        start_bytes: Payload bytes of the run when the stage began.
        exchange_end_bytes: The same when its exchange was closed, or None.
        vectors: Vectors that its exchange carried, or None.
        missing: Vectors that its exchange missed, or None.
        error_bound: How far its exchange's rounding may have moved a value, or None.
        ended: Whether the stage is complete.
    """

    index: int
    rounds_planned: int
    points: tuple[RoundPoint, ...]
    best_round: int | None
    start_bytes: int
    exchange_end_bytes: int | None
    vectors: int | None
    missing: int | None
    error_bound: float | None
    ended: bool

    @property
    def best(self) -> RoundPoint | None:
        """The point of the best round, where it is known."""
        return next((point for point in self.points if point.round == self.best_round), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class LostRounds:
    """Rounds of one stage whose lines a crash took from ``metrics.jsonl``."""

    stage: int
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The course of a run; ``seconds`` adds up its attempts, ``lost`` is of all of them."""

    stages: tuple[StageCourse, ...] = ()
    stages_planned: int | None = None
    clients: int | None = None
    attempts: int = 0
    seconds: float = 0.0
    payload_bytes: int = 0
    finished: bool = False
    lost: tuple[LostRounds, ...] = ()


@dataclass(slots=True)
class _Draft:
    rounds_planned: int = 0
    points: dict[int, RoundPoint] = field(default_factory=dict)
    best_round: int | None = None
    exchange_end_bytes: int | None = None
    vectors: int | None = None
    missing: int | None = None
    error_bound: float | None = None
    ended: bool = False


class _Reader:
    """Folds events into drafts; a round that a later attempt repeats replaces the earlier one."""

    def __init__(self) -> None:
        self.drafts: dict[int, _Draft] = {}
        self.stages_planned: int | None = None
        self.clients: int | None = None
        self.attempts = 0
        self.earlier_s = 0.0
        self.attempt_s = 0.0
        self.payload_bytes = 0
        self.finished = False
        self.lost: dict[LostRounds, None] = {}

    def add(self, event: Fields) -> None:
        handlers = {
            "start": self._start,
            "exchange": self._exchange,
            "round": self._round,
            "stage_end": self._stage_end,
            "finish": self._finish,
            "history_lost": self._lost,
        }
        handler = handlers.get(event.text("event"))
        if handler is not None:
            handler(event)
            self.attempt_s = max(self.attempt_s, event.number_or_none("time_s") or 0.0)

    def _start(self, event: Fields) -> None:
        self.clients = event.integer("clients")
        self.stages_planned = event.integer("stages")
        self.attempts += 1
        self.earlier_s, self.attempt_s = self.earlier_s + self.attempt_s, 0.0

    def _exchange(self, event: Fields) -> None:
        draft = self._draft(event)
        draft.vectors = event.integer_or_none("vectors")
        draft.missing = event.integer_or_none("missing")
        if "error_bound" in event.values:
            draft.error_bound = event.number_or_none("error_bound")
        draft.exchange_end_bytes = self._moved(event)

    def _round(self, event: Fields) -> None:
        draft = self._draft(event)
        point = RoundPoint(
            round=event.integer("round"),
            loss=event.number_or_none("loss"),
            val_loss=event.number_or_none("val_loss"),
            val_accuracy=event.number_or_none("val_accuracy"),
            payload_bytes=self._moved(event),
        )
        draft.points[point.round] = point
        draft.rounds_planned = event.integer("rounds")
        draft.best_round = event.integer_or_none("best_round")

    def _stage_end(self, event: Fields) -> None:
        draft = self._draft(event)
        draft.best_round = event.integer_or_none("best_round")
        draft.ended = True
        self._moved(event)

    def _finish(self, event: Fields) -> None:
        self.finished = True
        self._moved(event)

    def _lost(self, event: Fields) -> None:
        for stage, first, last in event.triples("rounds"):
            self.lost[LostRounds(stage=stage, first=first, last=last)] = None

    def _draft(self, event: Fields) -> _Draft:
        return self.drafts.setdefault(event.integer("stage"), _Draft())

    def _moved(self, event: Fields) -> int:
        self.payload_bytes = event.integer("bytes_payload")
        return self.payload_bytes


def read_history(events: Iterable[Fields]) -> History:
    """Fold the events of ``metrics.jsonl``, in file order, into the course of the run.

    Args:
        events: Objects with the key ``event``; those of an unknown kind are passed over.

    Returns:
        The course, with rounds in order and without repetitions.

    Raises:
        RunDirectoryError: A key is absent or of the wrong kind.
    """
    reader = _Reader()
    for event in events:
        reader.add(event)
    return History(
        stages=_stages(reader.drafts),
        stages_planned=reader.stages_planned,
        clients=reader.clients,
        attempts=reader.attempts,
        seconds=reader.earlier_s + reader.attempt_s,
        payload_bytes=reader.payload_bytes,
        finished=reader.finished,
        lost=tuple(reader.lost),
    )


def _stages(drafts: dict[int, _Draft]) -> tuple[StageCourse, ...]:
    stages: list[StageCourse] = []
    moved_bytes = 0
    for index, draft in sorted(drafts.items()):
        points = tuple(point for _, point in sorted(draft.points.items()))
        stages.append(
            StageCourse(
                index=index,
                rounds_planned=draft.rounds_planned,
                points=points,
                best_round=draft.best_round,
                start_bytes=moved_bytes,
                exchange_end_bytes=draft.exchange_end_bytes,
                vectors=draft.vectors,
                missing=draft.missing,
                error_bound=draft.error_bound,
                ended=draft.ended,
            )
        )
        if points:
            moved_bytes = points[-1].payload_bytes
        elif draft.exchange_end_bytes is not None:
            moved_bytes = draft.exchange_end_bytes
    return tuple(stages)
