"""One client's outgoing and incoming blocks: plan, codec, session and channel put together."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.sparse import csr_array, vstack

from retexo_fl.agent.api import Ticket, Traffic
from retexo_fl.agent.blocks import counted_traffic, decode_block
from retexo_fl.agent.headers import StageExchange
from retexo_fl.agent.vectors.control import LAYERS
from retexo_fl.agent.vectors.port import JobVectors
from retexo_fl.channels import BlockKey, Channel
from retexo_fl.errors import ExchangeIncomplete, PartitionError
from retexo_fl.exchange import (
    FIXED,
    FixedVectors,
    Vectors,
    encode_block,
    fixed_vectors,
    in_compact_form,
    sum_shared,
    to_dense,
    wire_codec,
)
from retexo_fl.graph import BoundaryPlan, PeerPlan


class Mailbox:
    """Sends a client's vectors to its peers and decodes theirs, one exchange at a time.

    ``codec`` is how it writes its own; it reads what peers wrote in any. Under ``fixed`` it also
    adds the sums that several peers sent for one node exactly, and vectors may go as ``datagrams``.

    Attributes:
        error_bound: Under ``fixed``, of what was sent last.
    """

    def __init__(
        self,
        client: int,
        job: str,
        plan: BoundaryPlan,
        channel: Channel,
        *,
        codec: str = "lossless",
    ) -> None:
        self._client = client
        self._job = job
        self._plan = plan
        self._peers = {peer.peer for peer in plan.peers}
        self._channel = channel
        self._codec = codec
        #: Carry vectors to and from peers that they reach; only under ``fixed``.
        self.datagrams: JobVectors | None = None
        self._exchange: tuple[int, bytes] | None = None
        self._decoded: dict[int, Vectors] = {}
        self.error_bound: tuple[float, ...] = ()

    def send(self, ticket: Ticket, rows: Vectors) -> Traffic:
        """Hand every peer its vectors of (N, H) ``rows``; return the bytes that left.

        Raises:
            ChannelError: A block could not be handed over.
            LocalProtocolError: A vector is not finite.
        """
        fixed = self.fixed(rows) if self._codec == FIXED else None
        self.error_bound = () if fixed is None else (fixed.error_bound,)
        reached = self._reached_by_datagrams()
        traffic = self._send_datagrams(ticket, reached, fixed)
        for peer, vectors in self._outgoing(rows, fixed):
            if peer.peer in reached:
                continue
            header = self._exchange_of(ticket, rows.shape[1], str(rows.dtype)).outgoing(peer)
            block = encode_block(header, vectors, codec=wire_codec(self._codec))
            moved = self._channel.send_block(
                self._key(ticket, self._client, peer.peer), block.frames
            )
            if moved != 0:
                traffic += counted_traffic(block.traffic, moved)
        return traffic

    def fixed(self, rows: Vectors) -> FixedVectors:
        """Return what ``fixed`` makes of the vectors that (N, H) ``rows`` have for all peers.

        Raises:
            LocalProtocolError: A vector is not finite.
        """
        return fixed_vectors({p.peer: p.send.gather(rows) for p in self._plan.peers})

    def receive(self, ticket: Ticket, width: int, dtype: str) -> Traffic:
        """Decode the blocks that have arrived since the last call; return their bytes.

        Raises:
            RemoteProtocolError: A peer sent something that the plan does not allow.
            PartitionError: Another client lists edges to this one that do not stand in this part.
        """
        exchange = (ticket.stage, ticket.weights_digest)
        if self._exchange != exchange:
            self._exchange, self._decoded = exchange, {}
        self._refuse_strangers(ticket, width, dtype)
        traffic = self._receive_datagrams(ticket, width, dtype)
        for peer in self._plan.peers:
            key = self._key(ticket, peer.peer, self._client)
            if peer.peer in self._decoded or (self.datagrams and self.datagrams.carries(key)):
                continue
            stream = self._channel.receive_block(key)
            if not stream:
                continue
            expected = self._exchange_of(ticket, width, dtype).incoming(peer)
            vectors, counted = decode_block(expected, stream)
            if vectors is not None:
                self._decoded[peer.peer] = vectors
                traffic += counted_traffic(counted, counted.wire_bytes)
        return traffic

    def missing_peers(self) -> tuple[int, ...]:
        """Return the peers whose block of the current exchange is not complete."""
        return tuple(p.peer for p in self._plan.peers if p.peer not in self._decoded)

    def vectors(self, width: int, dtype: str, *, closed_without: tuple[int, ...]) -> Vectors:
        """Return the (B, width) vectors of all slots, zero for peers it was closed without.

        Raises:
            ExchangeIncomplete: The channel no longer has what was there at the closing.
        """
        lost = set(self.missing_peers()) - set(closed_without)
        if lost:
            raise ExchangeIncomplete(
                f"client {self._client}: vectors of clients {sorted(lost)} were there when the "
                "exchange was closed and are gone"
            )
        parts: dict[int, Vectors] = {
            peer.peer: csr_array((peer.receive.count, width), dtype=dtype)
            if peer.peer in closed_without
            else self._decoded[peer.peer]
            for peer in self._plan.peers
        }
        slots = [peer.receive.slots for peer in self._plan.peers]
        if self._codec != FIXED:
            return _in_slot_order(list(parts.values()), slots, width, dtype)
        self._sum_shared(parts, closed_without)
        return in_compact_form(_in_slot_order(list(parts.values()), slots, width, dtype))

    def drop_decoded(self) -> None:
        """Free the decoded vectors; the channel still has their blocks."""
        self._exchange, self._decoded = None, {}

    def forget(self) -> None:
        """Drop what peers sent to this client in this job."""
        self.drop_decoded()
        self._channel.forget_job(self._job, self._client)

    def _reached_by_datagrams(self) -> list[int]:
        if self.datagrams is None:
            return []
        return [peer.peer for peer in self._plan.peers if self.datagrams.reaches(peer.peer)]

    def _send_datagrams(
        self, ticket: Ticket, reached: list[int], fixed: FixedVectors | None
    ) -> Traffic:
        if self.datagrams is None or fixed is None or not reached:
            return Traffic()
        some = fixed.vectors[reached[0]]
        exchange = self._exchange_of(ticket, some.shape[1], str(some.dtype))
        peers = [self._plan.peer(peer) for peer in reached]
        sent = self.datagrams.send(
            {peer.peer: exchange.outgoing(peer) for peer in peers},
            fixed,
            rows={peer.peer: peer.send.targets for peer in peers},
        )
        for peer, moved in sent.items():
            self.datagrams.counted(ticket.stage, peer, moved, "out")
        return sum(sent.values(), Traffic())

    def _receive_datagrams(self, ticket: Ticket, width: int, dtype: str) -> Traffic:
        """Take what has come as datagrams; what came before a restart is on disk."""
        traffic, datagrams = Traffic(), self.datagrams
        reached = [peer for peer in self._reached_by_datagrams() if peer not in self._decoded]
        if datagrams is None or not reached:
            return traffic
        exchange = self._exchange_of(ticket, width, dtype)
        self._decoded |= datagrams.kept(exchange.id)
        headers = {
            peer: exchange.incoming(self._plan.peer(peer))
            for peer in reached
            if peer not in self._decoded
        }
        if headers:
            datagrams.expect(headers, self._plan.incoming_targets)
        for unit in datagrams.arrived(exchange.id):
            if unit.keys() & headers.keys():
                datagrams.keep(exchange.id, {peer: vectors for peer, (vectors, _) in unit.items()})
                for peer, (vectors, moved) in unit.items():
                    self._decoded[peer] = vectors
                    datagrams.counted(ticket.stage, peer, moved, "in")
                    traffic += moved
        return traffic

    def _outgoing(
        self, rows: Vectors, fixed: FixedVectors | None
    ) -> Iterator[tuple[PeerPlan, Vectors]]:
        """Yield what each peer gets; one at a time, unless all have to be known first."""
        for peer in self._plan.peers:
            yield peer, peer.send.gather(rows) if fixed is None else fixed.vectors[peer.peer]

    def _sum_shared(self, parts: dict[int, Vectors], closed_without: tuple[int, ...]) -> None:
        """Add what peers that are there have sent for the same nodes."""
        targets = self._plan.incoming_targets or {}
        there = [peer for peer in parts if peer in targets and peer not in closed_without]
        summed = sum_shared([parts[p] for p in there], [targets[p] for p in there])
        parts.update(zip(there, summed, strict=True))

    def _refuse_strangers(self, ticket: Ticket, width: int, dtype: str) -> None:
        """Look at blocks of clients that are no peers: they list an edge which this part lacks."""
        senders = self._channel.senders(
            self._job, ticket.stage, ticket.weights_digest, receiver=self._client
        )
        for sender in sorted(senders - self._peers):
            stream = self._channel.receive_block(self._key(ticket, sender, self._client))
            if stream:
                nothing = PeerPlan.of_stranger(sender)
                decode_block(self._exchange_of(ticket, width, dtype).incoming(nothing), stream)
        if self._codec == FIXED:
            self._refuse_other_ways(ticket, senders)
        if self.datagrams is not None:
            nothings = self._exchange_of(ticket, width, dtype)
            self.datagrams.refuse_strangers(
                lambda sender: nothings.incoming(PeerPlan.of_stranger(sender)),
                nothings.id,
                known=self._peers,
            )

    def _refuse_other_ways(self, ticket: Ticket, senders: frozenset[int]) -> None:
        """Name a peer that sends blocks where datagrams are awaited, or the other way round."""
        reached = set(self._reached_by_datagrams())
        announcing = self._channel.senders(
            self._job, ticket.stage + LAYERS, ticket.weights_digest, receiver=self._client
        )
        for peer in sorted(self._peers & announcing - reached):
            raise PartitionError(
                f"client {peer} sends datagrams, client {self._client} takes none from it: "
                "expected a udp:// address of both in both rosters, and an agent that listens "
                "there; see docs/kernel-path.md"
            )
        for peer in sorted(self._peers & senders & reached):
            if self.datagrams and self.datagrams.carries(self._key(ticket, peer, self._client)):
                raise PartitionError(
                    f"client {peer} sends blocks, client {self._client} expects datagrams from it: "
                    "expected a udp:// address of both in both rosters, and an agent that listens "
                    "there; see docs/kernel-path.md"
                )

    def _key(self, ticket: Ticket, sender: int, receiver: int) -> BlockKey:
        return BlockKey(
            job=self._job,
            layer=ticket.stage,
            weights_digest=ticket.weights_digest,
            sender=sender,
            receiver=receiver,
        )

    def _exchange_of(self, ticket: Ticket, width: int, dtype: str) -> StageExchange:
        return StageExchange(
            job=self._job,
            layer=ticket.stage,
            weights_digest=ticket.weights_digest,
            client=self._client,
            width=width,
            dtype=dtype,
        )


def _in_slot_order(
    parts: list[Vectors], slots: list[np.ndarray], width: int, dtype: str
) -> Vectors:
    if not parts:
        return csr_array((0, width), dtype=dtype)
    order = np.concatenate(slots)
    if all(not isinstance(part, np.ndarray) for part in parts):
        return csr_array(vstack(parts, format="csr")[np.argsort(order, kind="stable")])
    result = np.zeros((len(order), width), dtype=dtype)
    for part, where in zip(parts, slots, strict=True):
        result[where] = to_dense(part)
    return result
