"""Questions of an exchange: rows are made, sent and collected, or passed on by the server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from retexo_fl.client.api.base import Question, Request, Ticket
from retexo_fl.client.schema import FLAT
from retexo_fl.ledger import Traffic


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
    ``lacks_weights`` as in :class:`TrainAnswer`. Where sums are masked all other fields are empty.
    """

    vectors: int = 0
    traffic: Traffic = field(default=Traffic(), metadata=FLAT)
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
    traffic: Traffic = field(default=Traffic(), metadata=FLAT)
    moved: bytes | None = None


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


PUBLISH: Final = Question("publish", "query.publish", PublishRequest, PublishAnswer)
RELAY: Final = Question("relay", "query.relay", RelayRequest, RelayAnswer)
COLLECT: Final = Question("collect", "query.collect", CollectRequest, CollectAnswer)
