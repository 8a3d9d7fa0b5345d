"""Questions that begin and end a job: who the clients are, and what they have."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Final

import numpy as np

from retexo_fl.client.api.base import Question, Request, Ticket
from retexo_fl.client.schema import FLAT, named


@dataclass(frozen=True, slots=True, kw_only=True)
class HelloRequest(Request["HelloAnswer"]):
    """Ask a client to introduce itself.

    Attributes:
        ticket: Names job and attempt.
        sizes: Asks how large its graph is, too, from which keys of the run follow: messages after
            the hellos may have other keys. None where nothing follows.
    """

    ticket: Ticket = field(metadata=FLAT)
    sizes: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HelloAnswer:
    """What a client reports about itself: sizes and counts, no keys, no edges, no labels.

    Where sums are masked all counts are 0: :class:`CountsAnswer` has them, summed over a cohort.

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
        relations: Types of nodes and relations between them (:attr:`.Relations.text`); empty
            without.
        vectors_out: Vectors it sends in the first exchange, over all peers.
        vectors_in: Vectors it receives.
        vectors_later: Of a graph with types, vectors it sends before each further stage, or layer
            end to end; empty where they are those of the first exchange.
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
        mask_key: Where sums are masked, 32 bytes: its public key of the attempt. Then
            ``label_uses`` and ``label_sums`` are empty.
        mask_signature: 88 bytes, its counters (:class:`.Counters`) and the signature of key and
            counters by the key of its certificate; None in a simulation.
        agreement: Which sums its owner agreed to (:attr:`.Agreement.content`), where sums are
            masked; None in a simulation.
        structural: Whether its features are made of the edges, since nodes have none; None if not.
        sizes: Where that was asked, the fields of :class:`GraphSizes` in order; none where its
            owner withholds them, or sums are masked.
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
    relations: str = ""
    brings: str = ""
    mask_key: bytes | None = None
    mask_signature: bytes | None = None
    agreement: bytes | None = None
    structural: bool | None = None
    sizes: tuple[int, ...] = ()
    vectors_later: tuple[int, ...] = ()

    def vectors_before(self, stage: int) -> int:
        """Return how many vectors it sends before a stage; after the last, as before that."""
        return (self.vectors_out, *self.vectors_later)[min(stage, len(self.vectors_later))]

    def has(self, use: str) -> bool:
        """Return whether it has nodes, or pairs, of a use."""
        return getattr(self, use) > 0 if self.mask_key is None else use in self.brings.split()


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
class GraphSizes:
    """How large a client's graph is, or that of several: what keys of a run follow from.

    Attributes:
        tellers: Clients whose counts these are.
        edge_ends: Ends of edges at their nodes: of an edge to another client, one.
        entries: Features other than zero.
        ones: Of these, those that are 1.
        rows: Vectors of one exchange under the plan of rows; likewise ``cover``. Both are 0 where
            the run has no choice between plans, likewise what follows.
        rows_bytes: Payload of their features under that plan; likewise ``cover_bytes``.
    """

    tellers: int
    edge_ends: int
    entries: int
    ones: int
    rows: int
    cover: int
    rows_bytes: int
    cover_bytes: int


#: How many counts they are.
NUM_SIZES: Final = len(fields(GraphSizes))


@dataclass(frozen=True, slots=True, kw_only=True)
class CountsRequest(Request["CountsAnswer"]):
    """Count nodes and vectors, which hello leaves out where sums are masked.

    Attributes:
        ticket: Names job and attempt.
        sizes: As in :class:`HelloRequest`.
        later: How many numbers ``vectors_later`` has; None: none.
    """

    ticket: Ticket = field(metadata=FLAT)
    sizes: bool | None = None
    later: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CountsAnswer:
    """Sums over the clients of a cohort; nodes of a use that its sums are not of do not count.

    Attributes:
        nodes: As in :class:`HelloAnswer`; likewise the others.
        sizes: The fields of :class:`GraphSizes` in order, where these were asked: zeros of a client
            whose owner withholds them.
    """

    nodes: int
    train: int
    validation: int
    test: int
    vectors_out: int
    vectors_in: int
    vectors_drawn: int = 0
    sizes: tuple[int, ...] = ()
    vectors_later: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelsRequest(Request["LabelsAnswer"]):
    """Count the nodes of each class by use, which hello leaves out where sums are masked."""

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
class EndRequest(Request["EndAnswer"]):
    """Forget the job: all of its masked sums are there, so that no cohort is asked again."""

    ticket: Ticket = field(metadata=FLAT)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndAnswer:
    """The job is forgotten; ``client`` is the index of whose it was."""

    client: int


HELLO: Final = Question("hello", "query.hello", HelloRequest, HelloAnswer)
INTRODUCE: Final = Question("introduce", "query.introduce", IntroduceRequest, IntroduceAnswer)
KEYS: Final = Question("keys", "query.keys", KeysRequest, KeysAnswer)
COUNTS: Final = Question("counts", "query.counts", CountsRequest, CountsAnswer)
LABELS: Final = Question("labels", "query.labels", LabelsRequest, LabelsAnswer)
END: Final = Question("end", "query.end", EndRequest, EndAnswer)
