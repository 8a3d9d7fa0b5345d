"""Which vectors a client sends to and receives from each peer, in an order both ends derive."""

from __future__ import annotations

import hashlib
import struct
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np

from retexo_fl.errors import PartitionError
from retexo_fl.graph.neighbours import EdgeValues
from retexo_fl.graph.parts.partition import GraphPartition
from retexo_fl.graph.plan.cover_plan import CoveredEdges
from retexo_fl.graph.plan.cut_edges import CutEdges, KeyTexts
from retexo_fl.graph.plan.stage_edges import StageEdges
from retexo_fl.graph.plan.vectors import IncomingVectors, OutgoingVectors, PeerPlan

#: What the vectors of a plan are: rows of boundary nodes, or rows and partial sums, as few as can
#: be. A digest begins with its plan's kind.
PLAN_KINDS: Final = ("rows", "cover")
# clients, keys on each side, edges; the client with the lower index first
_PAIR: Final = struct.Struct("<QQQQQ")
#: Bytes of an edge: its two ends' numbers.
_EDGE_BYTES: Final = 8

#: A client, how many of its nodes have an edge to the other client, the lengths of their keys, and
#: the keys.
_Side = tuple[int, int, bytes, bytes]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PeerPlans:
    """The vectors that a client exchanges with its peers, for who counts them.

    Attributes:
        client: Whose plan this is.
        peers: Ascending by peer.
    """

    client: int
    peers: tuple[PeerPlan, ...]

    @classmethod
    def counted(cls, partition: GraphPartition, kinds: Sequence[str]) -> dict[str, PeerPlans]:
        """Return the vectors of :meth:`BoundaryPlan.from_partition` of some kinds of plans.

        All digests are empty.
        """
        found: dict[str, Iterable[PeerPlan]] = dict.fromkeys(kinds, ())
        if partition.num_boundary:
            cut = CutEdges.of(partition)
            digests = [b""] * len(cut.peers)
            for kind in kinds:
                if kind == "cover":
                    covered = CoveredEdges.of(cut)
                    found[kind] = covered.peer_plans(digests, partition.edge_values.weights)
                else:
                    found[kind] = _row_plans(cut, digests)
        client = partition.client
        return {kind: PeerPlans(client=client, peers=tuple(of)) for kind, of in found.items()}

    def into(self, partition: GraphPartition, kinds: Sequence[int]) -> Self:
        """Return the plan of rows with those alone that nodes of some types read.

        A row crosses where its node has an edge to a node of these types at the peer. Both ends
        know the types of both ends of an edge from their keys, so a digest says this, too. The
        received block is as long: what does not cross is zero.

        Args:
            partition: The client's part, of a graph with types.
            kinds: Types that read; none: nothing crosses, with types or without.
        """
        if not kinds:
            none = np.zeros(0, dtype=np.int64)
            send, receive = OutgoingVectors(rows=none), IncomingVectors(slots=none)
            peers = tuple(replace(peer, send=send, receive=receive) for peer in self.peers)
            return replace(self, peers=peers)
        assert partition.kinds is not None
        assert partition.boundary_kinds is not None
        inner = partition.num_inner
        cut = np.flatnonzero(np.asarray(partition.indices) >= inner)
        rows = np.repeat(np.arange(inner), np.diff(partition.indptr))[cut]
        slots = np.asarray(partition.indices)[cut] - inner
        is_received = np.zeros(partition.num_boundary, dtype=bool)
        is_received[slots[np.isin(partition.kinds, kinds)[rows]]] = True
        # By peer, then row.
        places = np.asarray(partition.boundary_owners, np.int64)[slots] * inner + rows
        sent = np.unique(places[np.isin(partition.boundary_kinds, kinds)[slots]])
        found = []
        for peer in self.peers:
            first, end = sent.searchsorted((peer.peer * inner, (peer.peer + 1) * inner))
            some = peer.receive.slots
            found.append(
                replace(
                    peer,
                    send=OutgoingVectors(rows=sent[first:end] - peer.peer * inner),
                    receive=IncomingVectors(slots=some[is_received[some]]),
                )
            )
        return replace(self, peers=tuple(found))

    @property
    def num_send(self) -> int:
        """Vectors that leave in one exchange."""
        return sum(plan.send.count for plan in self.peers)

    @property
    def num_receive(self) -> int:
        """Vectors that arrive in one exchange: one for each slot that is read."""
        return sum(plan.receive.count for plan in self.peers)

    @property
    def receivers(self) -> list[PeerPlan]:
        """The peers that vectors go to: all but where not all rows cross."""
        return [plan for plan in self.peers if plan.send.count]

    @property
    def senders(self) -> list[PeerPlan]:
        """The peers that vectors come from, likewise."""
        return [plan for plan in self.peers if plan.receive.count]

    @property
    def incoming_targets(self) -> dict[int, np.ndarray] | None:
        """By peer, what its vectors are only ever added to; None where all are rows."""
        targets = {p.peer: p.receive.targets for p in self.peers if p.receive.targets is not None}
        return targets or None

    @property
    def returning_targets(self) -> dict[int, np.ndarray]:
        """By peer, what the gradients of the vectors sent to it are only ever added to."""
        return {peer.peer: peer.send.targets for peer in self.peers}

    @property
    def num_added(self) -> int:
        """Received vectors that are only ever added to another peer's: c for one node are c - 1.

        So many may be added as they arrive, by the kernel or the agent.
        """
        return _num_added(self.incoming_targets or {})

    @property
    def num_added_back(self) -> int:
        """The same of the gradients of all vectors sent, which come back end to end."""
        return _num_added(self.returning_targets)

    def peer(self, index: int) -> PeerPlan:
        """Return the plan for one peer.

        Raises:
            PartitionError: The two clients share no edge.
        """
        at = bisect_left(self.peers, index, key=lambda plan: plan.peer)
        if at == len(self.peers) or self.peers[at].peer != index:
            raise PartitionError(f"client {self.client} shares no edge with client {index}")
        return self.peers[at]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BoundaryPlan(PeerPlans):
    """All that a client exchanges with its peers.

    Row identity is never sent: both ends sort by key, and equal digests prove that they agree.

    Attributes:
        edges: What a stage reads, from own rows and from the received block.
    """

    edges: StageEdges

    @classmethod
    def from_partition(cls, partition: GraphPartition, kind: str = "rows") -> Self:
        """Derive the plan from one partition alone.

        Args:
            partition: The client's part.
            kind: ``rows``: every boundary node's row. ``cover``: for layers that sum their
                neighbours' rows; each pair of clients sends rows and sums of rows, chosen so that
                as few vectors as possible cover all edges between them.

        Raises:
            PartitionError: There is no such kind of plan.
        """
        if kind not in PLAN_KINDS:
            raise PartitionError(f"boundary plan {kind!r}; expected {' or '.join(PLAN_KINDS)}")
        if not partition.num_boundary:
            edges = StageEdges.of_rows(partition)
            return cls(client=partition.client, peers=(), edges=edges)
        cut = CutEdges.of(partition)
        digests = _digests(partition, cut, kind)
        if kind == "cover":
            covered = CoveredEdges.of(cut)
            peers, edges = (
                covered.peer_plans(digests, partition.edge_values.weights),
                covered.stage_edges(partition),
            )
        else:
            peers, edges = _row_plans(cut, digests), StageEdges.of_rows(partition)
        return cls(client=partition.client, peers=tuple(peers), edges=edges)

    @property
    def num_slots(self) -> int:
        """Length of the received block."""
        return self.edges.num_slots


def count_sent(partition: GraphPartition, kind: str) -> int:
    """Return :attr:`BoundaryPlan.num_send` of a plan, without the plan."""
    if not partition.num_boundary:
        return 0
    cut = CutEdges.of(partition)
    if kind == "rows":
        return len(cut.sent_rows)
    covered = CoveredEdges.of(cut)
    return len(covered.own) + len(covered.foreign)


def _row_plans(edges: CutEdges, digests: Iterable[bytes]) -> Iterator[PeerPlan]:
    """Send every row that has an edge to the peer; a slot is a boundary node."""
    slots = np.arange(edges.slot_ends[-1][1], dtype=np.int64)
    for peer, digest, sent, received, (first, end) in zip(
        edges.peers, digests, edges.sent_ends, edges.slot_ends, edges.edge_ends, strict=True
    ):
        yield PeerPlan(
            peer=peer,
            num_edges=end - first,
            digest=digest,
            send=OutgoingVectors(rows=edges.sent_rows[slice(*sent)]),
            receive=IncomingVectors(slots=slots[slice(*received)]),
        )


def _num_added(targets: Mapping[int, np.ndarray]) -> int:
    if not targets:
        return 0
    into = np.concatenate(list(targets.values()))
    into = into[into >= 0]
    return len(into) - len(np.unique(into))


def _digests(partition: GraphPartition, edges: CutEdges, kind: str) -> Iterator[bytes]:
    """Yield each peer's digest; with thousands of peers a NumPy call for each would count."""
    own = KeyTexts.of(partition.node_keys[edges.sent_rows])
    foreign = KeyTexts.of(partition.boundary_keys)
    positions = edges.positions.tobytes()
    values = _value_bytes(partition.edge_values, edges)
    client = partition.client
    start = hashlib.sha256(kind.encode() + partition.partitioning.encode())
    for peer, sent, received, (first, end) in zip(
        edges.peers, edges.sent_ends, edges.slot_ends, edges.edge_ends, strict=True
    ):
        ours, theirs = (client, *own.between(*sent)), (peer, *foreign.between(*received))
        sides = (ours, theirs) if client < peer else (theirs, ours)
        listed = positions[_EDGE_BYTES * first : _EDGE_BYTES * end]
        yield _digest(start, *sides, listed, values(first, end))


def _value_bytes(values: EdgeValues, edges: CutEdges) -> Callable[[int, int], bytes]:
    """Return what gives the bytes of some edges' weights and attributes, alike at both ends.

    Of a directed edge comes first what leads to the client with the lower index.
    """
    if values.is_plain:
        return lambda first, end: b""
    ours = values.taken(edges.places)
    if ours.is_directed:
        counts = [end - first for first, end in edges.edge_ends]
        is_lower = np.repeat(np.array(edges.peers) > edges.client, counts)
        ours = ours.where(is_lower, ours.reversed())
    arrays = [
        (f"{name} {array.shape[1:]} ".encode(), np.ascontiguousarray(array, dtype="<f4"))
        for name, array in ours.named().items()
    ]

    def between(first: int, end: int) -> bytes:
        return b"".join(name + array[first:end].tobytes() for name, array in arrays)

    return between


def _digest(
    start: hashlib._Hash, lower: _Side, higher: _Side, positions: bytes, values: bytes
) -> bytes:
    """Hash the edges between two clients; the room's README has the layout."""
    low, low_count, *low_keys = lower
    high, high_count, *high_keys = higher
    sizes = _PAIR.pack(low, high, low_count, high_count, len(positions) // _EDGE_BYTES)
    state = start.copy()
    state.update(b"".join((sizes, *low_keys, *high_keys, positions, values)))
    return state.digest()
