"""The questions that the server may ask a client; no torch, no Flower.

A question is a pair of dataclasses: a request, which names its answer's class, and the answer.
:data:`QUESTIONS` lists them. :mod:`retexo_fl.client.schema` turns both into flat values and back,
for Flower's records and for the agent's socket alike. To add a question: write its pair here and
enter it in :data:`QUESTIONS`, give the client a method of its name, and ask it where the server
needs the answer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Generic, Protocol, Self, TypeVar

import numpy as np

from retexo_fl.client.schema import FLAT, named
from retexo_fl.errors import LocalProtocolError, RemoteProtocolError
from retexo_fl.ledger import Volume
from retexo_fl.updates.digest import array_digest

#: Version of the messages between server and clients; both ends must have the same.
MESSAGE_VERSION = 16

#: How a job is called that predicts with trained layers.
PREDICTION_PREFIX: Final = "predict-"
#: After that, its name begins with so many digits of the model's digest.
MODEL_DIGITS: Final = 6

#: Sums of a metric: of a ranking of 64 classes.
MOST_SUMS: Final = 2**19

Answer_co = TypeVar("Answer_co", covariant=True)
AnswerT = TypeVar("AnswerT")


class Request(Generic[Answer_co]):
    """What the server asks; the parameter is the class of the answer."""

    __slots__ = ()
    ticket: Ticket


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """What a message belongs to; clients refuse a lower attempt than they have seen.

    Attributes:
        job: Name of the training.
        attempt: From 1.
        stage: Stage index.
        round: Round of the stage, from 1; 0 outside rounds.
        weights_digest: 32 bytes naming the weights that made the stage's input rows.
    """

    job: str
    attempt: int
    stage: int = 0
    round: int = 0
    weights_digest: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class HelloRequest(Request["HelloAnswer"]):
    """Ask a client to introduce itself."""

    ticket: Ticket = field(metadata=FLAT)


@dataclass(frozen=True, slots=True, kw_only=True)
class HelloAnswer:
    """What a client reports about itself: sizes and counts, no keys, no edges, no labels.

    Where sums are masked all counts are 0, since it tells :class:`CountsAnswer` in their place.

    Attributes:
        version: :data:`MESSAGE_VERSION` of the client.
        client: Its index.
        num_clients: How many clients its partitioning has.
        partitioning: Name of the partitioning its part is of.
        nodes: Inner nodes.
        train: Labelled train nodes; likewise ``validation`` and ``test``.
        features: Width of the input features.
        classes: Number of classes.
        edge_features: Attributes of each edge.
        directed: Whether edges have a direction.
        vectors_out: Vectors it sends in an exchange, over all peers.
        vectors_in: Vectors it receives.
        vectors_drawn: Of these, how many it draws in a round of ``bns``; else 0.
        label_uses: (C,) by class the uses that it has nodes of: 1 train, 2 validation, 4 test,
            added.
        label_sums: Over train nodes, where the loss depends on the labels of all clients
            (:func:`.label_sums`); else empty.
        recipe: Digest of the feature recipe that its part was made by; empty without one.
        member: Its entry for the roster of others, TOML; empty unless the server introduces
            clients to each other.
        brings: Where sums are masked, the uses that it has nodes of (:data:`.USES`), with spaces
            between: by the agreement, where its owner signed one.
        mask_key: Where sums are masked, 32 bytes: its public key of the attempt. Then it tells
            neither ``label_uses`` nor ``label_sums``.
        mask_signature: 88 bytes, its counters (:class:`.Counters`) and the signature of key and
            counters by the key of its certificate; None in a simulation.
        agreement: Which sums its owner agreed to (:attr:`.Agreement.content`), where sums are
            masked; None in a simulation.
    """

    version: int
    client: int
    num_clients: int
    partitioning: str
    nodes: int
    train: int
    validation: int
    test: int
    features: int
    classes: int
    vectors_out: int
    vectors_in: int
    vectors_drawn: int = 0
    label_uses: tuple[int, ...] = ()
    label_sums: tuple[float, ...] = ()
    recipe: str = ""
    member: str = ""
    edge_features: int = 0
    directed: bool = False
    brings: str = ""
    mask_key: bytes | None = None
    mask_signature: bytes | None = None
    agreement: bytes | None = None

    def has(self, use: str) -> bool:
        """Return whether it has nodes, or pairs, of a use."""
        return getattr(self, use) > 0 if self.mask_key is None else use in self.brings.split()


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes of one exchange as one client counted them, over all peers."""

    boundary: Volume = field(default_factory=Volume)
    control: Volume = field(default_factory=Volume)

    def __add__(self, other: Traffic) -> Traffic:
        """Return the sum of both kinds."""
        return Traffic(
            boundary=self.boundary + other.boundary, control=self.control + other.control
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerTraffic:
    """Bytes of the exchanges inside a round, both ways; nothing for algorithms without any."""

    sent: Traffic = field(default_factory=Traffic)
    received: Traffic = field(default_factory=Traffic)

    def __add__(self, other: PeerTraffic) -> PeerTraffic:
        """Return the sum of both directions."""
        return PeerTraffic(sent=self.sent + other.sent, received=self.received + other.received)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """A vector of sums over nodes, most of them zero, as it travels.

    Attributes:
        length: How many there are.
        places: Those that are not zero, ascending; empty where all are given.
        values: Of these places.
    """

    length: int = 0
    places: tuple[int, ...] = ()
    values: tuple[float, ...] = ()

    @classmethod
    def of(cls, sums: np.ndarray) -> Self:
        """Take (k,) float64 sums."""
        places = np.flatnonzero(sums)
        if 2 * len(places) >= len(sums):
            return cls(length=len(sums), values=tuple(sums.tolist()))
        values = tuple(sums[places].tolist())
        return cls(length=len(sums), places=tuple(places.tolist()), values=values)

    def array(self) -> np.ndarray:
        """Return the (k,) float64 sums.

        Raises:
            RemoteProtocolError: They are more than any metric has, or places are none.
        """
        if self.length > MOST_SUMS:
            raise RemoteProtocolError(f"{self.length} sums; expected {MOST_SUMS} at most")
        sums = np.zeros(self.length)
        places = np.asarray(self.places, np.int64) if self.places else np.arange(self.length)
        # Nothing at all is as short as no places.
        values = np.asarray(self.values) if self.values or self.places else sums
        in_order = (np.diff(places) > 0).all() and (not len(places) or places[-1] < self.length)
        if len(values) != len(places) or not in_order:
            raise RemoteProtocolError(
                f"{len(self.values)} sums at {len(self.places)} of {self.length} places; expected "
                "one for each place, in ascending order"
            )
        sums[places] = values
        return sums


@dataclass(frozen=True, slots=True, kw_only=True)
class BasisRequest(Request["BasisAnswer"]):
    """Add up what the next block of a basis of the features needs (:mod:`.training.basis`).

    Attributes:
        ticket: ``round`` is the number of the block; 0 asks for the sums of features.
        weights: The mean, and from the second block on the last block; None for the sums.
        steps: Under masks, of what the sums of products are multiples (:class:`.SharedStep`).
        label_facts: Of a regression, as in :class:`TrainRequest`.
    """

    ticket: Ticket = field(metadata=FLAT)
    weights: np.ndarray | None = None
    steps: bytes | None = None
    label_facts: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BasisAnswer:
    """Sums over train nodes, (F,) or (F c,), as :class:`.BasisForm` has them, and how many.

    ``squares`` are, beside the sums of features under masks, those of the squares of all features
    and of all labels (:func:`.square_sums`): they bound the sums of products.
    """

    sums: np.ndarray
    examples: int = field(metadata=named("num-examples"))
    squares: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GramRequest(Request["GramAnswer"]):
    """Add up the products of what the last layer reads of the train nodes; ``ticket`` is its stage.

    ``steps`` as in :class:`BasisRequest`. See :mod:`.training.ridge`.
    """

    ticket: Ticket = field(metadata=FLAT)
    steps: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GramAnswer:
    """Sums over train nodes, flat, as :func:`.gram_sums` has them, and how many there are."""

    sums: np.ndarray
    examples: int = field(metadata=named("num-examples"))


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedAnswer:
    """An answer of which only the sum over a whole cohort can be read.

    It takes the place of a :class:`TrainAnswer`, :class:`EvaluateAnswer`, :class:`BasisAnswer`,
    :class:`GramAnswer`, :class:`CountsAnswer`, :class:`LabelsAnswer` or :class:`PredictAnswer`, as
    :mod:`retexo_fl.client.masked_answers` has their numbers. A :class:`ColumnSumsRequest` has no
    other answer.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysRequest(Request["KeysAnswer"]):
    """Learn the masking keys of the client's cohort in the attempt; again when a member began anew.

    Attributes:
        ticket: Names job and attempt.
        agreement: Digest of the owners' agreement.
        cohort: Clients that are added up with this one, itself among them, ascending.
        uses: What their sums may be of (:data:`.USES`), with spaces between.
        keys: uint8, 32 bytes of each member, in order.
        signatures: 88 bytes of each, as in :class:`HelloAnswer`; None in a simulation.
    """

    ticket: Ticket = field(metadata=FLAT)
    agreement: bytes = field(metadata=named("mask-agreement"))
    cohort: tuple[int, ...] = field(metadata=named("mask-cohort"))
    keys: np.ndarray
    uses: str = field(default="", metadata=named("mask-uses"))
    signatures: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysAnswer:
    """The digest of the keys that are believed: :attr:`.PublicKeys.digest`.

    It is empty where the client has begun anew since hello, and so has none.
    """

    digest: bytes

    @property
    def lacks_keys(self) -> bool:
        """Whether the client has begun anew."""
        return not self.digest


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRequest(Request["EndAnswer"]):
    """Forget the job: all of its masked sums are there, so that no cohort is asked again."""

    ticket: Ticket = field(metadata=FLAT)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndAnswer:
    """The job is forgotten; ``client`` is the index of whose it was."""

    client: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CountsRequest(Request["CountsAnswer"]):
    """Count nodes and vectors, which hello does not tell where sums are masked."""

    ticket: Ticket = field(metadata=FLAT)


@dataclass(frozen=True, slots=True, kw_only=True)
class CountsAnswer:
    """Sums over the clients of a cohort; nodes of a use that its sums are not of do not count.

    Attributes:
        nodes: As in :class:`HelloAnswer`; likewise the others.
    """

    nodes: int
    train: int
    validation: int
    test: int
    vectors_out: int
    vectors_in: int
    vectors_drawn: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelsRequest(Request["LabelsAnswer"]):
    """Count the nodes of each class by use, which hello does not tell where sums are masked."""

    ticket: Ticket = field(metadata=FLAT)


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelsAnswer:
    """Sums over all clients.

    Attributes:
        uses: (3 C,) nodes of each class: of train, then validation, then test nodes; of several
            labels a node counts for each, numbers are one class.
        sums: As ``label_sums`` of :class:`HelloAnswer`.
    """

    uses: tuple[int, ...] = ()
    sums: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishRequest(Request["PublishAnswer"]):
    """Make the rows of stage ``ticket.stage`` and send every peer its vectors.

    Attributes:
        ticket: ``weights_digest`` must be :func:`chain_digest` of what follows.
        previous_digest: Digest of the stage before, 32 bytes; empty for stage 0: what its digest
            begins with, under masks, a client knows (:func:`.rows_of`).
        weights: (P,) selected weights of the stage before, as they are or as the update codec
            names them; for stage 0 the basis of the features, or None without one.
    """

    ticket: Ticket = field(metadata=FLAT)
    previous_digest: bytes = b""
    weights: np.ndarray | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishAnswer:
    """Vectors sent, and their bytes as they left; an agent counts the whole attempt.

    ``error_bound`` is, under the codec ``fixed``, how far rounding moved a value at most;
    ``lacks_weights`` as in :class:`TrainAnswer`. Where sums are masked nothing else is told.
    """

    vectors: int = 0
    traffic: Traffic = field(default_factory=Traffic, metadata=FLAT)
    error_bound: tuple[float, ...] = ()
    lacks_weights: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectRequest(Request["CollectAnswer"]):
    """Say what has arrived for stage ``ticket.stage``.

    Attributes:
        ticket: Names the exchange.
        wait_s: Seconds to wait for what is missing, at most 30.
        close: Train on what is there; later arrivals are ignored.
    """

    ticket: Ticket = field(metadata=FLAT)
    wait_s: float = 0.0
    close: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectAnswer:
    """What is there; where sums are masked, whether all is.

    Attributes:
        complete: Every vector has arrived.
        missing: Vectors that have not.
        missing_peers: How many peers have not sent theirs.
        traffic: Bytes that arrived since the last answer; an agent counts the whole attempt.
        moved: Of a complete exchange, what it moved (:class:`.Moved`), masked.
    """

    complete: bool
    missing: int = 0
    missing_peers: int = 0
    traffic: Traffic = field(default_factory=Traffic, metadata=FLAT)
    moved: bytes | None = None


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
    validation_metric: Sums = field(default_factory=Sums)
    training_traffic: PeerTraffic = field(default_factory=PeerTraffic)
    validation_traffic: PeerTraffic = field(default_factory=PeerTraffic)
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
        traffic: Of exchanges that the evaluation took.
        lacks_weights: As in :class:`TrainAnswer`.
    """

    examples: int = field(metadata=named("num-examples"))
    loss_sum: float
    correct: int
    metric: Sums = field(default_factory=Sums)
    report: Sums = field(default_factory=Sums)
    own: tuple[float, ...] = ()
    traffic: PeerTraffic = field(default_factory=PeerTraffic)
    lacks_weights: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictRequest(Request["PredictAnswer"]):
    """Predict all inner nodes with the last layer, and write that down where the client lives.

    The server gets counts only; the client then forgets the job.

    Attributes:
        ticket: The last stage.
        weights: (P,) of the last stage.
        form: Form of the file: ``csv``, ``parquet`` or ``npz``.
        label_facts: Of a regression, mean and scale of the labels that it was trained on.
        set_name: 16 hex digits that name the folder, below the client's own, which the file goes
            to; empty for the client's own.
    """

    ticket: Ticket = field(metadata=FLAT)
    weights: np.ndarray
    form: str
    label_facts: tuple[float, ...] = ()
    set_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictAnswer:
    """How many nodes were predicted and, of the labelled ones by use, how many rightly.

    Attributes:
        validation_metric: Sums of the run's metric over the labelled validation nodes, where it is
            another than accuracy; likewise ``test_metric``.
    """

    nodes: int
    train: int
    train_correct: int
    validation: int
    validation_correct: int
    test: int
    test_correct: int
    validation_metric: Sums = field(default_factory=Sums)
    test_metric: Sums = field(default_factory=Sums)


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedRequest(Request["PredictedAnswer"]):
    """Say whether what a job predicted is still there, whole, and of the client's present part.

    Attributes:
        ticket: Names the job.
        form: As in :class:`PredictRequest`; likewise ``set_name``.
    """

    ticket: Ticket = field(metadata=FLAT)
    form: str
    set_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedAnswer:
    """Which client this is, and whether it has the file."""

    client: int
    is_there: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class IntroduceRequest(Request["IntroduceAnswer"]):
    """Learn who the clients are; one that was given a roster believes that.

    Attributes:
        ticket: Names job and attempt.
        roster: Certificates and addresses of all clients, TOML.
    """

    ticket: Ticket = field(metadata=FLAT)
    roster: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IntroduceAnswer:
    """How many clients the roster has that is believed."""

    members: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayRequest(Request["RelayAnswer"]):
    """Take parcels from peers, and return those for them.

    Attributes:
        ticket: Names job and attempt.
        trip: Number of the question in its attempt: one that is asked again has the same.
        peers: By parcel, the client that it comes from.
        sizes: By parcel, its bytes.
        parcels: (sum of sizes,) uint8, one after the other.
    """

    ticket: Ticket = field(metadata=FLAT)
    trip: int
    peers: tuple[int, ...]
    sizes: tuple[int, ...]
    parcels: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayAnswer:
    """Parcels as in :class:`RelayRequest`, by the client that they go to."""

    peers: tuple[int, ...]
    sizes: tuple[int, ...]
    parcels: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryRequest(Request["SummaryAnswer"]):
    """Tell what a feature recipe needs to know of the client's nodes, if its owner shares that.

    Attributes:
        ticket: Names job and attempt.
    """

    ticket: Ticket = field(metadata=FLAT)


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryAnswer:
    """A summary of the client's table.

    Attributes:
        summary: uint8, the JSON that `retexo features summarise` writes.
    """

    summary: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnsRequest(Request["ColumnsAnswer"]):
    """Tell what columns the client's nodes have, without a number: where sums are masked."""

    ticket: Ticket = field(metadata=FLAT)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnsAnswer:
    """What is told in the clear before a masked sum over tables.

    Attributes:
        client: Its index.
        mask_key: As in :class:`HelloAnswer`; likewise ``mask_signature`` and ``agreement``.
        columns: uint8, the JSON of :class:`.TableColumns`.
    """

    client: int
    mask_key: bytes
    mask_signature: bytes
    agreement: bytes
    columns: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnSumsRequest(Request[MaskedAnswer]):
    """Add up what a feature recipe needs to know of the clients' tables, under masks.

    Attributes:
        ticket: Names job and attempt.
        columns: uint8, the JSON of what columns all clients have together.
    """

    ticket: Ticket = field(metadata=FLAT)
    columns: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeRequest(Request["RecipeAnswer"]):
    """Store the feature recipe that all clients use.

    Attributes:
        ticket: Names job and attempt.
        recipe: uint8, TOML.
    """

    ticket: Ticket = field(metadata=FLAT)
    recipe: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeAnswer:
    """The digest of the recipe that the client has stored."""

    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question as both ends know it.

    Attributes:
        name: Method of the client that answers it.
        message_type: Of Flower's messages.
        request: Class of the request.
        answer: Class of the answer.
    """

    name: str
    message_type: str
    request: type[Any]
    answer: type[Any]


def _question(name: str, message_type: str, request: type[Any], answer: type[Any]) -> Question:
    return Question(name=name, message_type=message_type, request=request, answer=answer)


HELLO: Final = _question("hello", "query.hello", HelloRequest, HelloAnswer)
INTRODUCE: Final = _question("introduce", "query.introduce", IntroduceRequest, IntroduceAnswer)
BASIS: Final = _question("basis", "query.basis", BasisRequest, BasisAnswer)
GRAM: Final = _question("gram", "query.gram", GramRequest, GramAnswer)
PUBLISH: Final = _question("publish", "query.publish", PublishRequest, PublishAnswer)
RELAY: Final = _question("relay", "query.relay", RelayRequest, RelayAnswer)
COLLECT: Final = _question("collect", "query.collect", CollectRequest, CollectAnswer)
TRAIN: Final = _question("train_layer", "train.layer", TrainRequest, TrainAnswer)
EVALUATE: Final = _question("evaluate_layer", "evaluate.layer", EvaluateRequest, EvaluateAnswer)
PREDICT: Final = _question("predict", "query.predict", PredictRequest, PredictAnswer)
PREDICTED: Final = _question("predicted", "query.predicted", PredictedRequest, PredictedAnswer)
SUMMARY: Final = _question("summary", "query.summary", SummaryRequest, SummaryAnswer)
COLUMNS: Final = _question("columns", "query.columns", ColumnsRequest, ColumnsAnswer)
COLUMN_SUMS: Final = _question("column_sums", "query.sums", ColumnSumsRequest, MaskedAnswer)
RECIPE: Final = _question("recipe", "query.recipe", RecipeRequest, RecipeAnswer)
KEYS: Final = _question("keys", "query.keys", KeysRequest, KeysAnswer)
COUNTS: Final = _question("counts", "query.counts", CountsRequest, CountsAnswer)
LABELS: Final = _question("labels", "query.labels", LabelsRequest, LabelsAnswer)
END: Final = _question("end", "query.end", EndRequest, EndAnswer)

#: By name.
QUESTIONS: Final[Mapping[str, Question]] = MappingProxyType(
    {
        question.name: question
        for question in (
            *(HELLO, INTRODUCE, BASIS, PUBLISH, RELAY, COLLECT),
            *(GRAM, TRAIN, EVALUATE, PREDICT, PREDICTED),
            *(SUMMARY, COLUMNS, COLUMN_SUMS, RECIPE),
            *(KEYS, COUNTS, LABELS, END),
        )
    }
)
#: Answered by sums, which may be masked.
_SUMMED: Final = frozenset(
    question.request for question in (BASIS, GRAM, COUNTS, LABELS, TRAIN, EVALUATE, PREDICT)
)
_BY_REQUEST: Final = {question.request: question for question in QUESTIONS.values()}


def question_of(request: Request[Any]) -> Question:
    """Return the question that a request asks."""
    return _BY_REQUEST[type(request)]


def purpose_of(request: Request[Any]) -> str:
    """Return what distinguishes questions of one stage and round."""
    name = question_of(request).message_type
    if isinstance(request, EvaluateRequest):
        name = f"{name} {request.nodes}"
    return name


def told_weights(request: Request[Any], weights: np.ndarray | None) -> bytes:
    """Return the digest of all that an answer is computed with, the same on all clients.

    Args:
        request: What was asked.
        weights: What the client computes with, decoded.
    """
    facts = np.asarray(getattr(request, "label_facts", ()), np.float64)
    told = hashlib.sha256(b"retexo masked weights 2" + request.ticket.weights_digest)
    told.update(facts.tobytes())
    if weights is not None:
        told.update(array_digest(weights))
    return told.digest()


def asks_sums(request: Request[Any]) -> bool:
    """Return whether a request is answered by sums over nodes."""
    return type(request) in _SUMMED


def answer_class(request: Request[AnswerT], *, masked: bool) -> type[AnswerT]:
    """Return the class of the answer to a request, in a job whose sums are masked or not."""
    is_sum = asks_sums(request)
    kind: type[Any] = MaskedAnswer if masked and is_sum else question_of(request).answer
    return kind


def is_lacking(answer: object) -> bool:
    """Return whether an answer says that the client lacks the weights, or keys, to answer with."""
    return any(getattr(answer, name, None) for name in ("lacks_weights", "lacks_keys"))


class ClientApi(Protocol):
    """A client, wherever it lives."""

    def ask(self, request: Request[AnswerT]) -> AnswerT:
        """Answer a request.

        Raises:
            RetexoError: The named failure; ``StaleAttempt`` for an attempt that was superseded.
        """
        ...


class Answering:
    """A client that has a method for each question, of the question's name.

    A method takes the request, and returns the answer without waiting for another client.
    """

    __slots__ = ()

    def ask(self, request: Request[AnswerT]) -> AnswerT:
        """See :class:`ClientApi`.

        Raises:
            LocalProtocolError: It has no such method: in a simulation no client needs
                to be found.
        """
        question = question_of(request)
        method = getattr(self, question.name, None)
        if method is None:
            raise LocalProtocolError(
                f"{question.message_type}: only for a client that has an agent"
            )
        answer: AnswerT = method(request)
        return answer


def chain_digest(previous_digest: bytes, weights: np.ndarray | None) -> bytes:
    """Return the 32 bytes that name a stage's input rows.

    They depend on all weights that made the rows: the digest of the stage before and its weights.
    """
    before = b"retexo rows" + previous_digest
    return hashlib.sha256(before).digest() if weights is None else array_digest(weights, before)
