"""One exchange of one client: vectors to its peers and theirs back, as blocks or as datagrams.

The headers of its blocks are built alike by both ends, and where blocks are admitted. An exchange
before a stage is named by its plan (:class:`StageExchange`). One inside a round is named by its
label and its place in the round, since what crosses then need not be all that the plan lists
(:class:`InnerBlock`). Both are carried out by a :class:`PeerExchange`:
:class:`~retexo_fl.client.mailbox.Mailbox` and
:class:`~retexo_fl.client.inner_exchanges.RoundRunner` say what is exchanged and what happens
when a peer's vectors are missing.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from retexo_fl.channels.base import BlockKey, Channel
from retexo_fl.client.vector_carrier import ExchangeId, VectorCarrier
from retexo_fl.errors import RemoteProtocolError
from retexo_fl.exchange import (
    BlockHeader,
    BlockTraffic,
    FixedVectors,
    Vectors,
    decode_block,
    encode_block,
)
from retexo_fl.graph.plan.vectors import PeerPlan
from retexo_fl.ledger import Traffic, Volume

_LOG: Final = logging.getLogger(__name__)

#: Called with peer, bytes, and ``out`` or ``in``, for every block that leaves or was decoded.
WatchPeers: TypeAlias = Callable[[int, Traffic, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageExchange:
    """The exchange before a stage, as one client sees it.

    Attributes:
        job: Name of the training.
        layer: Stage index.
        weights_digest: 32 bytes naming the weights that made the vectors.
        client: The client.
        width: Values per vector.
        dtype: ``float32`` or ``float64``.
    """

    job: str
    layer: int
    weights_digest: bytes
    client: int
    width: int
    dtype: str

    @property
    def id(self) -> tuple[str, int, bytes]:
        """Job, layer and digest."""
        return self.job, self.layer, self.weights_digest

    def outgoing(self, peer: PeerPlan) -> BlockHeader:
        """Return the header of the block for a peer."""
        return self._header(peer, self.client, peer.peer, peer.send.count)

    def incoming(self, peer: PeerPlan) -> BlockHeader:
        """Return what the header of a peer's block must be."""
        return self._header(peer, peer.peer, self.client, peer.receive.count)

    def _header(self, peer: PeerPlan, sender: int, receiver: int, count: int) -> BlockHeader:
        return BlockHeader(
            job=self.job,
            layer=self.layer,
            sender=sender,
            receiver=receiver,
            weights_digest=self.weights_digest,
            num_edges=peer.num_edges,
            plan_digest=peer.digest,
            num_vectors=count,
            width=self.width,
            dtype=self.dtype,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundName:
    """What the headers of a round's frames contain.

    Attributes:
        job: Name of the training.
        layer: Stage index, 0 for algorithms that train all layers at once.
        codec: How vectors are written.
    """

    job: str
    layer: int = 0
    codec: str = "lossless"


@dataclass(frozen=True, slots=True, kw_only=True)
class InnerBlock:
    """One block of an exchange inside a round.

    Attributes:
        label: Names the exchange within the round.
        number: Its place in the round, from 0.
        sender: Client index.
        receiver: Client index.
        vectors: How many.
        width: Values per vector.
        dtype: ``float32`` or ``float64``.
    """

    label: str
    number: int
    sender: int
    receiver: int
    vectors: int
    width: int
    dtype: str

    def header(self, name: RoundName, exchange: bytes) -> BlockHeader:
        """Return its header in a round of that name.

        Args:
            name: Of the round.
            exchange: 32 bytes that name the exchange among all of a job.
        """
        text = f"{self.label}/{self.number}/{self.sender}/{self.receiver}/{self.vectors}".encode()
        return BlockHeader(
            job=name.job,
            layer=name.layer,
            sender=self.sender,
            receiver=self.receiver,
            weights_digest=exchange,
            # Not by a plan: what goes along which edges is agreed on by the exchange's label.
            num_edges=0,
            plan_digest=hashlib.sha256(b"plan " + text).digest(),
            num_vectors=self.vectors,
            width=self.width,
            dtype=self.dtype,
        )


# ---- vectors out and in --------------------------------------------------------------------------


class Headers(Mapping[int, BlockHeader]):
    """The headers of blocks by peer, each built when it is asked for."""

    def __init__(
        self, peers: Iterable[PeerPlan], header: Callable[[PeerPlan], BlockHeader]
    ) -> None:
        self._peers = {peer.peer: peer for peer in peers}
        self._header = header

    def __getitem__(self, peer: int) -> BlockHeader:
        """Return the header of the block to or from a peer."""
        return self._header(self._peers[peer])

    def __iter__(self) -> Iterator[int]:
        """Go through the peers."""
        return iter(self._peers)

    def __len__(self) -> int:
        """Return how many peers there are."""
        return len(self._peers)


class PeerExchange:
    """Sends what is not sent yet, takes what has arrived; never waits.

    Args:
        exchange_id: Job, stage and digest.
        channel: How blocks travel.
        codec: How the frames of vectors are written (:func:`.wire_codec`).
        outgoing: By peer, the header of the block for it.
        incoming: By peer, what the header of its block must be.
        watch: Called for every block, of one maybe more than once.
        counted: Peers whose bytes were reported before; those that are reported now are added.

    Attributes:
        carried: By peer, the bytes of what was sent in another way than as blocks.
        received: By peer, the vectors that have come.
        shared: The peers whose vectors are in their channel's pile.
        refused: By peer, why its block is no block; as if it had not come.
    """

    def __init__(
        self,
        exchange_id: ExchangeId,
        channel: Channel,
        *,
        codec: str,
        outgoing: Mapping[int, BlockHeader],
        incoming: Mapping[int, BlockHeader],
        watch: WatchPeers,
        counted: set[int] | None = None,
    ) -> None:
        self._counted = set() if counted is None else counted
        self.id = exchange_id
        self._channel = channel
        self._codec = codec
        self._outgoing = outgoing
        self._incoming = incoming
        self._watch = watch
        self._datagrams: VectorCarrier | None = None
        self._targets: Mapping[int, np.ndarray] | None = None
        self._all_needed: bool | None = None
        self._is_kept = False
        self.reached: tuple[int, ...] = ()
        self.carried: Mapping[int, Traffic] = {}
        self.received: dict[int, Vectors] = {}
        self.shared: set[int] = set()
        self.refused: dict[int, RemoteProtocolError] = {}

    def use_datagrams(
        self,
        datagrams: VectorCarrier | None,
        targets: Mapping[int, np.ndarray] | None,
        *,
        all_needed: bool | None,
        kept: bool,
    ) -> None:
        """Exchange with the peers that they reach by datagrams.

        Args:
            datagrams: The job's; None for none.
            targets: By peer, (n,) int64 what each of its vectors is summed into, -1 for nothing.
            all_needed: No peer may stay away; None: as set for the job.
            kept: Put what arrives on disk: a restarted process does not get it again.
        """
        if datagrams is None:
            return
        self._datagrams, self._targets = datagrams, targets
        self._all_needed, self._is_kept = all_needed, kept
        both = dict.fromkeys((*self._incoming, *self._outgoing))
        self.reached = tuple(peer for peer in both if datagrams.reaches(peer))

    @property
    def outgoing_keys(self) -> frozenset[BlockKey]:
        """The blocks that are sent, or that peers may ask for."""
        return frozenset(header.key for header in self._outgoing.values())

    @property
    def incoming_keys(self) -> frozenset[BlockKey]:
        """The blocks that are awaited, also those that come as datagrams."""
        return frozenset(header.key for header in self._incoming.values())

    @property
    def missing(self) -> tuple[int, ...]:
        """The peers whose vectors have not come."""
        return tuple(peer for peer in self._incoming if not self._is_here(peer))

    def send(
        self,
        vectors: Iterable[tuple[int, Vectors]],
        fixed: FixedVectors | None = None,
        *,
        rows: Mapping[int, np.ndarray] | None = None,
    ) -> Traffic:
        """Hand every peer its vectors; return the bytes that left now.

        Args:
            vectors: By peer, (n, width); one is asked for when the one before has left.
            fixed: The same under the codec ``fixed``, of which datagrams are made.
            rows: By peer, (n,) int64 the inner node whose row each vector is, -1 for none.

        Raises:
            ChannelError: The channel did not take a block.
            LocalProtocolError: A vector is not finite.
        """
        traffic = Traffic()
        headers = {p: self._outgoing[p] for p in self.reached if p in self._outgoing}
        if self._datagrams is not None and fixed is not None and headers:
            self.carried = self._datagrams.send(headers, fixed, rows=rows)
            for peer, moved in self.carried.items():
                self._watch(peer, moved, "out")
                traffic += moved
        for peer, block_vectors in vectors:
            if peer not in self.carried:
                traffic += self._send_block(self._outgoing[peer], block_vectors)
        return traffic

    def expect(self) -> None:
        """Let datagrams of this exchange come."""
        if self._datagrams is None or not self.reached:
            return
        if self._is_kept:
            self.received |= self._datagrams.kept(self.id)
        awaited = [p for p in self.reached if p in self._incoming and p not in self.received]
        headers = {peer: self._incoming[peer] for peer in awaited}
        if headers:
            self._datagrams.expect(headers, self._targets, all_needed=self._all_needed)

    def take_shared(self, peers: Iterable[int]) -> set[int]:
        """Take vectors as received; return the peers whose bytes were not reported yet."""
        awaited = set(self.missing).intersection(peers) - self.refused.keys()
        self.shared |= awaited
        untold = awaited - self._counted
        self._counted |= untold
        return untold

    def receive(self) -> Traffic:
        """Decode what has arrived since the last call; return its bytes, of no peer twice.

        A block whose rows cannot be decoded is logged with its sender, which stays missing.

        Raises:
            PartitionError: A peer lists other edges than this client.
        """
        traffic = self._receive_datagrams()
        for peer in self._incoming:
            if self._is_here(peer) or peer in self.refused:
                continue
            header = self._incoming[peer]
            if self._datagrams and self._datagrams.carries(header.key):
                continue
            block = self.decoded(header)
            if block is not None:
                self.received[peer], moved = block
                if peer not in self._counted:
                    self._counted.add(peer)
                    self._watch(peer, moved, "in")
                    traffic += moved
        return traffic

    def decoded(self, expected: BlockHeader) -> tuple[Vectors, Traffic] | None:
        """Return a client's block and its bytes; None if it is not whole, or refused.

        Raises:
            PartitionError: The two clients do not list the same edges.
        """
        stream = self._channel.receive_block(expected.key)
        try:
            decoded = decode_block(expected, stream) if stream else None
        except RemoteProtocolError as error:
            # One peer's fault must not stop the others: continue as if it had sent nothing.
            _LOG.warning("refused: %s", error)
            self.refused[expected.sender] = error
            return None
        if decoded is None:
            return None
        vectors, counted = decoded
        return vectors, counted_traffic(counted, counted.wire_bytes)

    def _is_here(self, peer: int) -> bool:
        return peer in self.received or peer in self.shared

    def _send_block(self, header: BlockHeader, vectors: Vectors) -> Traffic:
        block = encode_block(header, vectors, codec=self._codec)
        moved = self._channel.send_block(header.key, block.frames)
        # Also where a killed process had sent it already: its answer was never read.
        whole = counted_traffic(block.traffic, block.traffic.wire_bytes)
        self._watch(header.receiver, whole, "out")
        return Traffic() if moved == 0 else counted_traffic(block.traffic, moved)

    def _receive_datagrams(self) -> Traffic:
        traffic = Traffic()
        waiting = {*self.reached} & self._incoming.keys() - self.received.keys()
        if self._datagrams is None or not waiting:
            return traffic
        for unit in self._datagrams.arrived(self.id):
            if not unit.keys() & waiting:
                continue
            if self._is_kept:
                self._datagrams.keep(self.id, {p: vectors for p, (vectors, _) in unit.items()})
            for peer, (vectors, moved) in unit.items():
                self.received[peer] = vectors
                self._watch(peer, moved, "in")
                traffic += moved
        return traffic


def counted_traffic(traffic: BlockTraffic, moved: int | None, *, blocks: int = 1) -> Traffic:
    """Split blocks' bytes by kind; ``moved`` is what the transport took, None if unknown."""
    control = traffic.control_bytes
    return Traffic(
        boundary=Volume(
            messages=blocks,
            raw=traffic.raw_bytes,
            payload=traffic.payload_bytes,
            wire=None if moved is None else moved - control,
        ),
        control=Volume(messages=0, payload=control, wire=None if moved is None else control),
    )
