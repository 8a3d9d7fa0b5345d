"""Which vectors a client sends to and receives from each peer, in an order both ends derive."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from dataclasses import dataclass
from typing import Final

import numpy as np

from retexo_fl.errors import PartitionError
from retexo_fl.graph.features import Features
from retexo_fl.graph.partition import GraphPartition

#: What the vectors of a plan are: the rows of boundary nodes.
_KIND: Final = b"rows"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OutgoingVectors:
    """What a client sends to one peer in every exchange.

    A vector is the row of an inner node that has an edge to a node of the peer; vectors ascend by
    node key.

    Attributes:
        rows: [s] int64 inner nodes.
        digest: 32 bytes; the peer's :attr:`IncomingVectors.digest` is the same.
    """

    rows: np.ndarray
    digest: bytes

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
        digest: 32 bytes; the peer's :attr:`OutgoingVectors.digest` is the same.
    """

    slots: np.ndarray
    digest: bytes

    @property
    def count(self) -> int:
        """Number of vectors: r."""
        return len(self.slots)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerPlan:
    """What goes to and comes from one peer."""

    peer: int
    send: OutgoingVectors
    receive: IncomingVectors


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
    def from_partition(cls, partition: GraphPartition) -> BoundaryPlan:
        """Derive the plan from one partition alone."""
        peers = np.asarray(partition.peers)
        sent = _rows_by_peer(partition, peers)
        first = np.searchsorted(partition.boundary_owners, peers)
        end = np.searchsorted(partition.boundary_owners, peers, side="right")
        plans = tuple(
            _peer_plan(partition, int(peer), rows, np.arange(start, stop, dtype=np.int64))
            for peer, rows, start, stop in zip(peers, sent, first, end, strict=True)
        )
        return cls(client=partition.client, peers=plans)

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


def _peer_plan(
    partition: GraphPartition, peer: int, rows: np.ndarray, slots: np.ndarray
) -> PeerPlan:
    mine = _digest(partition.partitioning, partition.client, peer, partition.node_keys[rows])
    theirs = _digest(partition.partitioning, peer, partition.client, partition.boundary_keys[slots])
    return PeerPlan(
        peer=peer,
        send=OutgoingVectors(rows=rows, digest=mine),
        receive=IncomingVectors(slots=slots, digest=theirs),
    )


def _rows_by_peer(partition: GraphPartition, peers: np.ndarray) -> list[np.ndarray]:
    """Return, for each peer, the inner nodes that have an edge to one of its nodes, ascending."""
    if not len(peers):
        return []
    inner = partition.num_inner
    cut = np.flatnonzero(partition.indices >= inner)
    rows = np.searchsorted(partition.indptr, cut, side="right") - 1
    owners = partition.boundary_owners[partition.indices[cut] - inner]
    pairs = np.unique(np.searchsorted(peers, owners) * inner + rows)
    ends = np.searchsorted(pairs, np.arange(1, len(peers) + 1) * inner)
    return [part % inner for part in np.split(pairs, ends[:-1])]


def _digest(partitioning: str, sender: int, receiver: int, keys: np.ndarray) -> bytes:
    """Hash who sends which nodes to whom; every field is preceded by its length."""
    names = keys.tolist()
    lengths = np.fromiter((len(name) for name in names), dtype="<u4", count=len(names))
    fields = (
        _KIND,
        partitioning.encode(),
        sender.to_bytes(8, "little"),
        receiver.to_bytes(8, "little"),
        lengths.tobytes(),
        b"".join(names),
    )
    state = hashlib.sha256()
    for field in fields:
        state.update(len(field).to_bytes(8, "little"))
        state.update(field)
    return state.digest()
