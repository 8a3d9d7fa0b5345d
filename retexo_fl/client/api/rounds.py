"""Questions that are answered by sums over nodes, in rounds and beside them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Self

import numpy as np

from retexo_fl.client.api.base import Question, Request, Ticket
from retexo_fl.client.schema import FLAT, named
from retexo_fl.errors import RemoteProtocolError
from retexo_fl.ledger import NO_PEER_TRAFFIC, PeerTraffic

#: Sums of a metric: of a ranking of 64 classes.
MOST_SUMS: Final = 2**19
#: Numbers that a client sends of cached rows (:attr:`.CachedRows.numbers`).
NUM_CACHED: Final = 5
#: Of a count among them.
_COUNT_BYTES: Final = (1, 2, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseSums:
    """A vector of sums over nodes, most of them zero, as it travels.

    Attributes:
        length: How many there are.
        places: Those that are not zero, ascending; empty where all are given.
        values: Of these places; empty where ``counts`` are.
        counts: The same where all are whole numbers from 0 to 2^32 - 1, in little endian: each
            takes the least of one, two and four bytes that the largest needs.
    """

    length: int = 0
    places: tuple[int, ...] = ()
    values: tuple[float, ...] = ()
    counts: bytes | None = None

    @classmethod
    def of(cls, sums: np.ndarray) -> Self:
        """Take (k,) float64 sums."""
        if not len(sums):
            return cls()
        places = np.flatnonzero(sums)
        is_dense = 2 * len(places) >= len(sums)
        given = sums if is_dense else sums[places]
        at = () if is_dense else tuple(places.tolist())
        is_count = (given >= 0) & (given < 2**32) & (given == np.floor(given))
        if not is_count.all() or not len(given):
            return cls(length=len(sums), places=at, values=tuple(given.tolist()))
        width = next(w for w in _COUNT_BYTES if given.max() < 256**w)
        return cls(length=len(sums), places=at, counts=given.astype(f"<u{width}").tobytes())

    def array(self) -> np.ndarray:
        """Return the (k,) float64 sums.

        Raises:
            RemoteProtocolError: They are more than any metric has, or places are none.
        """
        if self.length > MOST_SUMS:
            raise RemoteProtocolError(f"{self.length} sums; expected {MOST_SUMS} at most")
        sums = np.zeros(self.length)
        is_given = self.counts is not None or self.values or self.places
        if not (is_given or self.length):
            return sums
        places = np.asarray(self.places, np.int64) if self.places else np.arange(self.length)
        # Nothing at all is as short as no places.
        values = self._given(len(places)) if is_given else sums
        in_order = (np.diff(places) > 0).all() and (not len(places) or places[-1] < self.length)
        if len(values) != len(places) or not in_order:
            raise RemoteProtocolError(
                f"{len(values)} sums at {len(self.places)} of {self.length} places; expected "
                "one for each place, in ascending order"
            )
        sums[places] = values
        return sums

    def _given(self, places: int) -> np.ndarray:
        if self.counts is None:
            return np.asarray(self.values)
        width, beyond = divmod(len(self.counts), max(places, 1))
        if self.values or beyond or width not in _COUNT_BYTES:
            raise RemoteProtocolError(
                f"{len(self.values)} sums and {len(self.counts)} bytes of counts at {places} "
                "places; expected either, of counts one, two or four bytes for each place"
            )
        return np.frombuffer(self.counts, f"<u{width}")


#: Shared, since nobody can change them.
NO_SUMS: Final = SparseSums()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRequest(Request["TrainAnswer"]):
    """Validate weights and return an update.

    Attributes:
        ticket: The round.
        weights: (P,) as the update codec encodes them; with SCAFFOLD, from the second round of a
            stage on, (2 P,): the weights, then what the client adds to each of its gradients.
        steps: Those that the codec encodes the update by; None where it needs none.
        label_facts: What follows for the loss from ``label_sums`` of all clients: weights of
            classes or labels, mean and scale of numbers; empty where nothing does.
    """

    ticket: Ticket = field(metadata=FLAT)
    weights: np.ndarray
    steps: bytes | None = None
    label_facts: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainAnswer:
    """A round's update: sums and counts, which the server divides once.

    Attributes:
        update_sum: (P,) gradient sum over the client's train nodes, or with several local steps the
            change of the weights times their number; as the update codec encodes it.
        examples: Train nodes.
        loss_sum: Over the train nodes, at the incoming weights with dropout.
        correct: How many of the train nodes these have right, where a stage may have candidates.
        validation_examples: Validation nodes; the other fields are sums over them, at the incoming
            weights.
        validation_metric: Sums of a metric other than accuracy; none without one.
        training_traffic: Of exchanges inside the round.
        validation_traffic: Of those that only served validation.
        lacks_weights: The request changes or names weights that the client does not hold; only
            the traffic counts. Else None.
    """

    update_sum: np.ndarray
    examples: int = field(metadata=named("num-examples"))
    loss_sum: float
    validation_examples: int
    validation_loss_sum: float
    validation_correct: int
    validation_metric: SparseSums = NO_SUMS
    training_traffic: PeerTraffic = NO_PEER_TRAFFIC
    validation_traffic: PeerTraffic = NO_PEER_TRAFFIC
    correct: int | None = None
    lacks_weights: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateRequest(Request["EvaluateAnswer"]):
    """Evaluate weights on the ``validation`` or ``test`` nodes.

    Attributes:
        ticket: The stage.
        weights: (P,), as the update codec encodes them.
        nodes: ``validation`` or ``test``.
        last: No message of this job follows; the client may forget it.
        label_facts: As in :class:`TrainRequest`.
    """

    ticket: Ticket = field(metadata=FLAT)
    weights: np.ndarray
    nodes: str
    last: bool = False
    label_facts: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateAnswer:
    """Counts and sums over the asked nodes.

    Attributes:
        examples: Nodes; the next three are sums over them.
        metric: Of a metric other than accuracy; none without one.
        report: Of the test, what its report is made of (:func:`.report_sums`).
        own: Of the test, with ``per-client-metrics``, the client's own figure; empty where its
            nodes leave that undefined.
        cached: Of the test, what mini-batches of the attempt have read where devices cache features
            (:attr:`.CachedRows.numbers`); empty where none does.
        traffic: Of exchanges that the evaluation took.
        lacks_weights: As in :class:`TrainAnswer`.
    """

    examples: int = field(metadata=named("num-examples"))
    loss_sum: float
    correct: int
    metric: SparseSums = NO_SUMS
    report: SparseSums = NO_SUMS
    own: tuple[float, ...] = ()
    cached: tuple[float, ...] = ()
    traffic: PeerTraffic = NO_PEER_TRAFFIC
    lacks_weights: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BasisRequest(Request["BasisAnswer"]):
    """Add up what the next block of a basis of the features needs (:mod:`.training.basis`).

    Attributes:
        ticket: ``round`` is the number of the block; 0 asks for the sums of features.
        weights: The mean, scales of evened columns, and from the second block on the last block;
            None for the sums. Of two kinds of rows, those of both (:func:`.joined`).
        rows: Where it is chosen of which rows a basis is made, of which these are: ``own``,
            ``sums``, or both, separated by a space.
        steps: Under masks, of what the sums of products are multiples (:class:`.SharedStep`).
        label_facts: Of a regression, as in :class:`TrainRequest`.
    """

    ticket: Ticket = field(metadata=FLAT)
    weights: np.ndarray | None = None
    rows: str = ""
    steps: bytes | None = None
    label_facts: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BasisAnswer:
    """Sums over train nodes, (F,) or (F c,), as :class:`.BasisForm` has them, and how many.

    Where columns are evened, those of their squares follow the sums of features.

    ``squares`` are, beside the sums of features under masks, those of the squares of all features
    and of all labels (:func:`.square_sums`): they bound the sums of products.
    """

    sums: np.ndarray
    examples: int = field(metadata=named("num-examples"))
    squares: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceRequest(Request["ChoiceAnswer"]):
    """Add up sums that show which of two bases explains labels better (:mod:`.basis_choice`).

    Where peers get classes in place of first rows, the sums that these are made by
    (:mod:`.training.row_classes`): :func:`.gram_sums` of one basis.

    Attributes:
        ticket: ``round`` is the number of blocks.
        weights: The bases of own rows and of sums (:func:`.joined`).
        steps: As in :class:`BasisRequest`; likewise ``label_facts``.
    """

    ticket: Ticket = field(metadata=FLAT)
    weights: np.ndarray
    steps: bytes | None = None
    label_facts: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceAnswer:
    """Of each basis :func:`.judged_sums`, flat, and how many train nodes there are."""

    sums: np.ndarray
    examples: int = field(metadata=named("num-examples"))


@dataclass(frozen=True, slots=True, kw_only=True)
class StructureRequest(Request["StructureAnswer"]):
    """Add up over all nodes the sums that scale columns which take the place of features.

    Attributes:
        ticket: ``round`` is 0 for sums of degrees (:func:`.degree_sums`), then the steps, for
            products of columns with each other (:func:`.product_sums`).
        weights: The interval (:class:`.Interval`); None for sums of degrees.
        steps: As in :class:`BasisRequest`.
    """

    ticket: Ticket = field(metadata=FLAT)
    weights: np.ndarray | None = None
    steps: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StructureAnswer:
    """Sums, flat, and over how many nodes."""

    sums: np.ndarray
    nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WhitenRequest(Request["WhitenAnswer"]):
    """Make features of degrees and columns by ``weights``, a :class:`.ColumnMap` as it travels."""

    ticket: Ticket = field(metadata=FLAT)
    weights: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class WhitenAnswer:
    """How many features each node has now."""

    features: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GramRequest(Request["GramAnswer"]):
    """Add up the products of what the last layer reads of the train nodes; ``ticket`` is its stage.

    ``steps`` as in :class:`BasisRequest`. See :mod:`.training.ridge`.
    """

    ticket: Ticket = field(metadata=FLAT)
    steps: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GramAnswer:
    """Sums over train nodes as :func:`.gram_sums` has them, flat; how many these are.

    With ``ridge-penalty validation`` as :func:`.judged_sums` has them.
    """

    sums: np.ndarray
    examples: int = field(metadata=named("num-examples"))


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedAnswer:
    """An answer of which only the sum over a whole cohort can be read.

    It takes the place of a :class:`TrainAnswer`, :class:`EvaluateAnswer`, :class:`BasisAnswer`,
    :class:`ChoiceAnswer`, :class:`StructureAnswer`, :class:`GramAnswer`, :class:`CountsAnswer`,
    :class:`LabelsAnswer` or :class:`PredictAnswer`, as :mod:`retexo_fl.client.masked_answers` has
    their numbers. A :class:`ColumnSumsRequest` has no other answer.

    Attributes:
        numbers: uint8, packed numbers of the answer's array, masked; may be empty. Of tables one
            long number.
        beside: Packed counts, then numbers of 64 bits, masked.
        moved: Where clients exchange in rounds, what was moved for it (:class:`.Moved`), masked.
        lacks_weights: As in :class:`TrainAnswer`: it follows from what the server sent before, and
            from whether this client still has it, not from its data.
        lacks_keys: It has no masking keys of the attempt, because its process began anew; only then
            given, without anything else.
    """

    numbers: np.ndarray
    beside: bytes
    moved: bytes | None = None
    lacks_weights: bool | None = None
    lacks_keys: bool | None = None


BASIS: Final = Question("basis", "query.basis", BasisRequest, BasisAnswer)
CHOICE: Final = Question("choice", "query.choice", ChoiceRequest, ChoiceAnswer)
GRAM: Final = Question("gram", "query.gram", GramRequest, GramAnswer)
STRUCTURE: Final = Question("structure", "query.structure", StructureRequest, StructureAnswer)
WHITEN: Final = Question("whiten", "query.whiten", WhitenRequest, WhitenAnswer)
TRAIN: Final = Question("train_layer", "train.layer", TrainRequest, TrainAnswer)
EVALUATE: Final = Question("evaluate_layer", "evaluate.layer", EvaluateRequest, EvaluateAnswer)
