"""What the server may ask of a client: plain dataclasses and one protocol, without torch.

Handlers of Flower messages speak this protocol. In a simulation the object behind it lives in the
worker process; in deployment it will be the resident agent behind a socket.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from retexo_fl.ledger import Volume

#: Version of the messages between server and clients; both ends must have the same.
MESSAGE_VERSION = 3


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
class HelloAnswer:
    """What a client tells of itself: sizes and counts, no keys, no edges, no labels.

    Attributes:
        version: :data:`MESSAGE_VERSION` of the client.
        client: Its index.
        num_clients: How many clients its partitioning has.
        partitioning: Name of the partitioning its part is of.
        nodes: Inner nodes.
        train: Labelled train nodes; likewise ``validation`` and ``test``.
        features: Width of the input features.
        classes: Number of classes.
        vectors_out: Vectors it sends in an exchange, over all peers.
        vectors_in: Vectors it receives.
        vectors_drawn: Of these, how many it draws in a round of ``bns``; else 0.
        member: Its entry for the roster of others, TOML; empty unless the server introduces
            clients to each other.
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
    member: str = ""


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
class PublishRequest:
    """Make the rows of stage ``ticket.stage`` and hand every peer its vectors.

    Attributes:
        ticket: ``weights_digest`` must be :func:`chain_digest` of what follows.
        previous_digest: Digest of the stage before, 32 bytes; empty for stage 0.
        weights: (P,) selected weights of the stage before; None for stage 0.
    """

    ticket: Ticket
    previous_digest: bytes = b""
    weights: np.ndarray | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishAnswer:
    """Vectors sent, and their bytes as they left; an agent tells all of the attempt.

    ``error_bound`` is, under the codec ``fixed``, how far rounding moved a value at most.
    """

    vectors: int
    traffic: Traffic
    error_bound: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectRequest:
    """Say what has arrived for stage ``ticket.stage``.

    Attributes:
        ticket: Names the exchange.
        wait_s: Seconds to wait for what is missing, at most 30.
        close: Train on what is there; later arrivals are ignored.
    """

    ticket: Ticket
    wait_s: float = 0.0
    close: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectAnswer:
    """What is there.

    Attributes:
        complete: Every vector has arrived.
        missing: Vectors that have not.
        missing_peers: How many peers owe them.
        traffic: Bytes that arrived since the last answer; an agent tells all of the attempt.
    """

    complete: bool
    missing: int
    missing_peers: int
    traffic: Traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRequest:
    """Validate ``weights`` ((P,)) and return the update of a round."""

    ticket: Ticket
    weights: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainAnswer:
    """A round's update: sums and counts, which the server divides once.

    Attributes:
        update_sum: (P,) gradient sum over the client's train nodes, or with several local steps the
            change of the weights times their number.
        examples: Train nodes.
        loss_sum: Over the train nodes, at the incoming weights with dropout.
        validation_examples: Validation nodes; the other fields are sums over them, at the incoming
            weights.
        validation_metric: Sums of a metric other than accuracy; empty without one.
        training_traffic: Of exchanges inside the round.
        validation_traffic: Of those that only served validation.
    """

    update_sum: np.ndarray
    examples: int
    loss_sum: float
    validation_examples: int
    validation_loss_sum: float
    validation_correct: int
    validation_metric: tuple[float, ...] = ()
    training_traffic: PeerTraffic = field(default_factory=PeerTraffic)
    validation_traffic: PeerTraffic = field(default_factory=PeerTraffic)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateRequest:
    """Evaluate ``weights`` ((P,)) on the ``validation`` or ``test`` nodes.

    Attributes:
        ticket: The stage.
        weights: (P,).
        nodes: ``validation`` or ``test``.
        last: No message of this job follows; the client may forget it.
    """

    ticket: Ticket
    weights: np.ndarray
    nodes: str
    last: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateAnswer:
    """Counts and sums over the asked nodes; ``metric`` is empty without a metric of its own.

    ``traffic`` is that of exchanges that the evaluation took.
    """

    examples: int
    loss_sum: float
    correct: int
    metric: tuple[float, ...] = ()
    traffic: PeerTraffic = field(default_factory=PeerTraffic)


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictRequest:
    """Predict all inner nodes with the last layer, and write that down where the client lives.

    The server is told counts only; the client then forgets the job.

    Attributes:
        ticket: The last stage.
        weights: (P,) of the last stage.
        form: Form of the file: ``csv``, ``parquet`` or ``npz``.
    """

    ticket: Ticket
    weights: np.ndarray
    form: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictAnswer:
    """How many nodes were predicted and, of the labelled ones by use, how many rightly."""

    nodes: int
    train: int
    train_correct: int
    validation: int
    validation_correct: int
    test: int
    test_correct: int


class ClientApi(Protocol):
    """A client, wherever it lives. Every method returns without waiting for another client.

    All raise :class:`~retexo_fl.errors.RetexoError` subclasses; ``StaleAttempt`` for an attempt
    that was superseded.
    """

    def hello(self, ticket: Ticket) -> HelloAnswer:
        """Introduce the client."""
        ...

    def publish(self, request: PublishRequest) -> PublishAnswer:
        """See :class:`PublishRequest`; publishing again is harmless."""
        ...

    def collect(self, request: CollectRequest) -> CollectAnswer:
        """See :class:`CollectRequest`."""
        ...

    def train_layer(self, request: TrainRequest) -> TrainAnswer:
        """See :class:`TrainRequest`."""
        ...

    def evaluate_layer(self, request: EvaluateRequest) -> EvaluateAnswer:
        """See :class:`EvaluateRequest`."""
        ...

    def predict(self, request: PredictRequest) -> PredictAnswer:
        """See :class:`PredictRequest`."""
        ...


def chain_digest(previous_digest: bytes, weights: np.ndarray | None) -> bytes:
    """Return the 32 bytes that name a stage's input rows.

    They depend on all weights that made the rows: the digest of the stage before and its weights.
    """
    digest = hashlib.sha256(b"retexo rows")
    digest.update(previous_digest)
    if weights is not None:
        digest.update(str(weights.dtype).encode())
        digest.update(np.ascontiguousarray(weights).tobytes())
    return digest.digest()
