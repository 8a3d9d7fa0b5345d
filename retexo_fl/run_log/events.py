"""What happens in a run: the lines of ``metrics.jsonl``, and what listeners are handed.

A line has the class's ``name`` under ``event``, and its fields. One with a default may be absent
from a line: earlier versions did not write it, or it has no value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar, Final

from retexo_fl.errors import RunDirectoryError
from retexo_fl.run_log.cached_rows import CachedRows
from retexo_fl.run_log.chosen_floor import ChosenFloor
from retexo_fl.run_log.chosen_rows import ChosenRows
from retexo_fl.run_log.json_form import OMITTED, read
from retexo_fl.run_log.made_columns import MadeColumns
from retexo_fl.run_log.profile import ChosenProfile

#: Stages of a run; more are damage.
_MOST_STAGES: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base of all.

    Attributes:
        name: Of the kind, in a line.
        time_s: Seconds since the attempt began; set as it is written.
    """

    name: ClassVar[str]
    time_s: float | None = field(default=None, metadata=OMITTED)


# ---- of a training ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedCandidate:
    """What a stage was trained as, and what came of it.

    Attributes:
        name: Of it; empty: the stage as it is.
        rounds: That it was trained for.
        val_accuracy: Of its best weights.
        val_metric: Likewise, of a metric other than accuracy.
        train_accuracy: Share of the train nodes that these have right.
    """

    name: str
    rounds: int
    val_accuracy: float | None
    val_metric: float | None = field(default=None, metadata=OMITTED)
    train_accuracy: float | None = field(default=None, metadata=OMITTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Started(Event):
    """An attempt begins to train.

    Attributes:
        attempt: From 1.
        clients: How many there are.
        stages: How many are trained in all.
        absent: Clients that were not there.
        metric: By which weights are selected.
        profile: Of the run; None where its keys were given without any.
        warnings: What the user should know of the labels, a line each.
    """

    name: ClassVar[str] = "start"
    attempt: int = 1
    clients: int
    stages: int
    metric: str = field(default="accuracy", metadata=OMITTED)
    profile: ChosenProfile | None = field(default=None, metadata=OMITTED)
    warnings: tuple[str, ...] = field(default=(), metadata=OMITTED)
    absent: tuple[int, ...] = field(default=(), metadata=OMITTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundsLost(Event):
    """A crash took lines of ``metrics.jsonl``: spans of rounds are (stage, first, last)."""

    name: ClassVar[str] = "history_lost"
    rounds: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting(Event):
    """Clients are waited for.

    Attributes:
        stage: Stage index.
        round: Round of the stage, 0 outside rounds.
        purpose: As in the ledger; ``exchange`` for an exchange that is open.
        clients: Who is waited for, ascending.
        lacks: By such client, how many vectors of the exchange have not arrived; None where it does
            not answer. Empty outside exchanges.
        open_s: Seconds since the exchange began.
    """

    name: ClassVar[str] = "waiting"
    stage: int
    round: int = 0
    purpose: str
    clients: tuple[int, ...]
    lacks: tuple[int | None, ...] = field(default=(), metadata=OMITTED)
    open_s: float | None = field(default=None, metadata=OMITTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved(Event):
    """Base of events with the payload bytes that the run has moved so far."""

    bytes_payload: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnsMade(Moved):
    """Columns of the edges are made, where nodes have no features."""

    name: ClassVar[str] = "columns_made"
    made: MadeColumns


@dataclass(frozen=True, slots=True, kw_only=True)
class BasisChosen(Moved):
    """A basis of the features is made, of the rows that validation nodes chose."""

    name: ClassVar[str] = "basis_chosen"
    chosen: ChosenRows


@dataclass(frozen=True, slots=True, kw_only=True)
class FloorCompared(Moved):
    """A trained model was compared with a ridge regression of the same rows."""

    name: ClassVar[str] = "floor"
    chosen: ChosenFloor


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeClosed(Moved):
    """An exchange before a stage is over.

    Attributes:
        stage: Stage index.
        vectors: Vectors that clients sent.
        missing: Vectors that it was closed without.
        error_bound: How far rounding may have moved a value, under ``codec = fixed``.
    """

    name: ClassVar[str] = "exchange"
    stage: int
    vectors: int | None
    missing: int | None
    error_bound: float | None = field(default=None, metadata=OMITTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundClosed(Moved):
    """The weights of a round, w(round), are validated.

    That is so when the next round ends, whose answers validate the weights that it was sent; after
    the last round of a stage a question of its own does. ``bytes_payload``, ``seconds`` and
    ``waited_s`` are as of then: between the lines of rounds r - 1 and r lies round r + 1. What the
    round's own answers say (``loss``, ``absent``, ``summed``, ``cut``) is of the round itself.

    Attributes:
        stage: Stage index.
        round: From 1.
        rounds: Rounds that the stage may take.
        loss: Mean training loss.
        absent: Clients whose answers it was closed without.
        summed: Where sums are masked, how many clients' updates the sum was of.
        cut: How many of their values were too large for the grid, and cut.
        val_loss: Mean loss of w(round) on the validation nodes; None without any.
        val_accuracy: Likewise.
        val_metric: Likewise, of a metric other than accuracy.
        train_accuracy: Share of the train nodes that w(round) has right, with dropout; of the last
            round of a stage that w(round - 1) has. None where it is not counted.
        candidate: As what the stage is trained; empty: as it is.
        best_round: r of the best w(r) so far.
        best_val_accuracy: Its accuracy.
        best_val_metric: Its metric, where that is another.
        seconds: From the end of the round to its validation: the duration of the next round. None
            for the last round of a stage.
        waited_s: Of these, waiting for clients.
    """

    name: ClassVar[str] = "round"
    stage: int
    round: int
    rounds: int
    loss: float | None
    absent: tuple[int, ...] = field(default=(), metadata=OMITTED)
    summed: int | None = field(default=None, metadata=OMITTED)
    cut: int | None = field(default=None, metadata=OMITTED)
    val_loss: float | None
    val_accuracy: float | None
    val_metric: float | None = field(default=None, metadata=OMITTED)
    train_accuracy: float | None = field(default=None, metadata=OMITTED)
    candidate: str = field(default="", metadata=OMITTED)
    best_round: int | None
    best_val_accuracy: float | None = None
    best_val_metric: float | None = field(default=None, metadata=OMITTED)
    seconds: float | None = None
    waited_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageClosed(Moved):
    """A stage is trained in ``rounds``; ``best_round`` is the one whose weights are kept.

    The last round of a stage that lost patience has no event of its own.

    Attributes:
        train_accuracy: Share of the train nodes that the kept weights have right, with dropout.
        candidate: As what the stage is kept; empty: as it is.
        tried: What it was trained as, in order, where that is more than one thing.
    """

    name: ClassVar[str] = "stage_end"
    stage: int
    best_round: int | None
    val_accuracy: float | None = None
    val_metric: float | None = field(default=None, metadata=OMITTED)
    train_accuracy: float | None = field(default=None, metadata=OMITTED)
    candidate: str = field(default="", metadata=OMITTED)
    tried: tuple[TriedCandidate, ...] = field(default=(), metadata=OMITTED)
    rounds: int | None = field(default=None, metadata=OMITTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsCounted(Moved):
    """What mini-batches of a stage have read where devices cache features, sent at the test."""

    name: ClassVar[str] = "cached_rows"
    stage: int
    cached: CachedRows


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished(Moved):
    """The selected model is tested.

    Attributes:
        test_accuracy: On all test nodes; likewise ``test_metric``, where that is another.
        warnings: What the user should know of the predictions, a line each.
    """

    name: ClassVar[str] = "finish"
    test_accuracy: float | None = None
    test_metric: float | None = field(default=None, metadata=OMITTED)
    warnings: tuple[str, ...] = field(default=(), metadata=OMITTED)


# ---- of an inference ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionStarted(Moved):
    """The clients are there; ``stages`` exchanges follow."""

    name: ClassVar[str] = "start"
    clients: int
    stages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered(Moved):
    """So many clients have answered the question ``step`` (``publish`` or ``predict``)."""

    name: ClassVar[str] = "answers"
    stage: int
    step: str
    answers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted(Moved):
    """All clients have written what they predicted, of so many nodes."""

    name: ClassVar[str] = "finish"
    nodes: int


# ---- lines --------------------------------------------------------------------------------------

#: Events of a training, by their names.
EVENTS: Final[Mapping[str, type[Event]]] = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            *(
                Started,
                RoundsLost,
                Waiting,
                ColumnsMade,
                BasisChosen,
                FloorCompared,
                ExchangeClosed,
            ),
            *(RoundClosed, StageClosed, RowsCounted, Finished),
        )
    }
)
#: The same of an inference.
PREDICTION_EVENTS: Final[Mapping[str, type[Event]]] = MappingProxyType(
    {kind.name: kind for kind in (PredictionStarted, Answered, ExchangeClosed, Predicted)}
)


def event_of(
    values: Mapping[str, object], place: str, kinds: Mapping[str, type[Event]] = EVENTS
) -> Event | None:
    """Return the event of a line; None for a kind that this version does not have.

    Raises:
        RunDirectoryError: A key is absent or of the wrong kind; names the place.
    """
    kind = kinds.get(read(_Named, values, place).event)
    if kind is None:
        return None
    event = read(kind, values, place)
    for name in ("stage", "stages"):
        number = getattr(event, name, 0)
        if not 0 <= number <= _MOST_STAGES:
            raise RunDirectoryError(
                f"{place}: key {name!r} is {number}, expected 0 to {_MOST_STAGES}"
            )
    return event


@dataclass(frozen=True, slots=True, kw_only=True)
class _Named:
    event: str
