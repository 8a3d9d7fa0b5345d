"""Which vectors a client sends to and receives from each peer, in an order both ends derive."""

from __future__ import annotations

import hashlib
import struct
from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Self

import numpy as np

from retexo_fl.errors import PartitionError
from retexo_fl.graph.features import Features
from retexo_fl.graph.partition import GraphPartition

#: What the vectors of a plan are: the rows of boundary nodes.
_KIND: Final = b"rows"
_DIGEST_BYTES: Final = hashlib.sha256().digest_size
# clients, keys on each side, edges; the client with the lower index first
_PAIR: Final = struct.Struct("<QQQQQ")
#: Bytes of a key's length.
_LENGTH_BYTES: Final = 4
#: Bytes of an edge: its two ends' numbers.
_EDGE_BYTES: Final = 8

#: Begin and end of a range.
_Ends = tuple[int, int]
#: A client, how many of its nodes have an edge to the other client, the lengths of their keys, and
#: the keys.
_Side = tuple[int, int, bytes, bytes]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OutgoingVectors:
    """What a client sends to one peer in every exchange.

    A vector is the row of an inner node that has an edge to a node of the peer; vectors ascend by
    node key.

    Attributes:
        rows: [s] int64 inner nodes.
    """

    rows: np.ndarray

    @property
    def count(self) -> int:
        """Number of vectors: s."""
        return len(self.rows)

    def gather(self, matrix: Features) -> Features:
        """Return the [s, H] vectors of an [n, H] matrix of all inner nodes' rows."""
        return matrix[self.rows]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IncomingVectors:
    """What a client receives from one peer in every exchange.

    Attributes:
        slots: [r] int64 position of each vector among the boundary nodes, ascending.
    """

    slots: np.ndarray

    @property
    def count(self) -> int:
        """Number of vectors: r."""
        return len(self.slots)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerPlan:
    """What goes to and comes from one peer.

    Attributes:
        peer: Client index.
        num_edges: Edges between a node of this client and one of the peer, as this client lists
            them.
        digest: 32 bytes over those edges. Vectors and their order follow from the edges, so equal
            digests prove that both ends mean the same vectors.
        send: What goes to the peer.
        receive: What comes from it.
    """

    peer: int
    num_edges: int
    digest: bytes
    send: OutgoingVectors
    receive: IncomingVectors

    @classmethod
    def of_stranger(cls, peer: int) -> Self:
        """Return the plan for a client with which no edge is shared: nothing is sent."""
        none = np.empty(0, dtype=np.int64)
        return cls(
            peer=peer,
            num_edges=0,
            digest=bytes(_DIGEST_BYTES),
            send=OutgoingVectors(rows=none),
            receive=IncomingVectors(slots=none),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryPlan:
    """All that a client exchanges with its peers.

    Row identity is never sent: both ends sort by key, and equal digests prove that they agree.

    Attributes:
        client: Whose plan this is.
        peers: Ascending by peer.
    """

    client: int
    peers: tuple[PeerPlan, ...]

    @classmethod
    def from_partition(cls, partition: GraphPartition) -> Self:
        """Derive the plan from one partition alone."""
        if not partition.num_boundary:
            return cls(client=partition.client, peers=())
        return cls(client=partition.client, peers=_peer_plans(partition))

    @property
    def num_send(self) -> int:
        """Vectors that leave in one exchange."""
        return sum(plan.send.count for plan in self.peers)

    @property
    def num_receive(self) -> int:
        """Vectors that arrive in one exchange: one for each boundary node."""
        return sum(plan.receive.count for plan in self.peers)

    def peer(self, index: int) -> PeerPlan:
        """Return the plan for one peer.

        Raises:
            PartitionError: The two clients share no edge.
        """
        at = bisect_left(self.peers, index, key=lambda plan: plan.peer)
        if at == len(self.peers) or self.peers[at].peer != index:
            raise PartitionError(f"client {self.client} shares no edge with client {index}")
        return self.peers[at]


def _peer_plans(partition: GraphPartition) -> tuple[PeerPlan, ...]:
    """Derive all plans in one pass: with thousands of peers a NumPy call for each would count."""
    edges = _CutEdges.of(partition)
    own = _KeyTexts.of(partition.node_keys[edges.sent_rows])
    foreign = _KeyTexts.of(partition.boundary_keys)
    positions = edges.positions.tobytes()
    slots = np.arange(partition.num_boundary, dtype=np.int64)
    client, start = partition.client, hashlib.sha256(_KIND + partition.partitioning.encode())
    plans = []
    for peer, sent, received, (first, end) in zip(
        edges.peers, edges.sent_ends, edges.slot_ends, edges.edge_ends, strict=True
    ):
        ours, theirs = (client, *own.between(*sent)), (peer, *foreign.between(*received))
        sides = (ours, theirs) if client < peer else (theirs, ours)
        plans.append(
            PeerPlan(
                peer=peer,
                num_edges=end - first,
                digest=_digest(start, *sides, positions[_EDGE_BYTES * first : _EDGE_BYTES * end]),
                send=OutgoingVectors(rows=edges.sent_rows[slice(*sent)]),
                receive=IncomingVectors(slots=slots[slice(*received)]),
            )
        )
    return tuple(plans)


def _digest(start: hashlib._Hash, lower: _Side, higher: _Side, positions: bytes) -> bytes:
    """Hash the edges between two clients; the room's README has the layout."""
    low, low_count, *low_keys = lower
    high, high_count, *high_keys = higher
    sizes = _PAIR.pack(low, high, low_count, high_count, len(positions) // _EDGE_BYTES)
    state = start.copy()
    state.update(b"".join((sizes, *low_keys, *high_keys, positions)))
    return state.digest()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _CutEdges:
    """All edges between clients that one client lists, grouped by peer.

    The nodes of a pair of clients are numbered from 0 by ascending key, on each side those that
    have an edge to the other side. So both ends list an edge by the same two numbers.

    Attributes:
        peers: Ascending.
        sent_rows: [s] int64 inner nodes, by (peer, row): the vectors to each peer.
        sent_ends: Where each peer's rows begin and end in ``sent_rows``.
        slot_ends: Where each peer's nodes begin and end among the boundary nodes.
        positions: [E, 2] little-endian uint32: an edge's number on the side of the client with the
            lower index, and on the other; by peer, then ascending.
        edge_ends: Where each peer's edges begin and end in ``positions``.
    """

    peers: list[int]
    sent_rows: np.ndarray
    sent_ends: list[_Ends]
    slot_ends: list[_Ends]
    positions: np.ndarray
    edge_ends: list[_Ends]

    @classmethod
    def of(cls, partition: GraphPartition) -> Self:
        inner, owners = partition.num_inner, partition.boundary_owners
        slot_starts = _begins_group(owners).nonzero()[0]
        peers = owners[slot_starts]
        cut = (partition.indices >= inner).nonzero()[0]
        rows = partition.indptr.searchsorted(cut, side="right") - 1
        slots = partition.indices[cut] - inner
        place = slot_starts.searchsorted(slots, side="right") - 1
        # Edges come by (row, slot). Sorted by peer, and by slot where the peer's index is the
        # lower one, they are in the order of both numbers, since sorting is stable.
        is_lower = peers > partition.client
        order = np.where(is_lower[place], slot_starts[place], slots).argsort(kind="stable")
        rows, slots, place = rows[order], slots[order], place[order]
        sent, own = _numbered(place * inner + rows)
        sent_starts = sent.searchsorted(np.arange(len(peers)) * inner)
        own -= sent_starts[place]
        foreign = slots - slot_starts[place]
        positions = np.empty((len(cut), 2), dtype="<u4")
        positions[:, 0] = np.where(is_lower[place], own, foreign)
        positions[:, 1] = np.where(is_lower[place], foreign, own)
        return cls(
            peers=peers.tolist(),
            sent_rows=sent % inner,
            sent_ends=_ends(sent_starts, len(sent)),
            slot_ends=_ends(slot_starts, len(owners)),
            positions=positions,
            edge_ends=_ends(_begins_group(place).nonzero()[0], len(cut)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _KeyTexts:
    """Keys one after the other, and where each begins."""

    lengths: bytes
    content: bytes
    starts: list[int]

    @classmethod
    def of(cls, keys: np.ndarray) -> Self:
        names = keys.tolist()
        lengths = list(map(len, names))
        return cls(
            lengths=np.array(lengths, dtype="<u4").tobytes(),
            content=b"".join(names),
            starts=list(accumulate(lengths, initial=0)),
        )

    def between(self, first: int, end: int) -> tuple[int, bytes, bytes]:
        """Return the number, the lengths and the content of some keys."""
        lengths = self.lengths[_LENGTH_BYTES * first : _LENGTH_BYTES * end]
        return end - first, lengths, self.content[self.starts[first] : self.starts[end]]


def _begins_group(grouped: np.ndarray) -> np.ndarray:
    """Say of each value whether it differs from the one before it."""
    begins = np.empty(len(grouped), dtype=bool)
    begins[0] = True
    np.not_equal(grouped[1:], grouped[:-1], out=begins[1:])
    return begins


def _numbered(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the different values, ascending, and each value's place among them."""
    order = values.argsort(kind="stable")
    ordered = values[order]
    begins = _begins_group(ordered)
    places = np.empty_like(order)
    places[order] = begins.cumsum() - 1
    return ordered[begins], places


def _ends(starts: np.ndarray, total: int) -> list[_Ends]:
    begins = starts.tolist()
    return list(zip(begins, [*begins[1:], total], strict=True))
