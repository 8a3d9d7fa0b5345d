"""One client's outgoing and incoming blocks: plan, codec, session and channel put together."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array, vstack

from retexo_fl.agent.api import Ticket, Traffic
from retexo_fl.agent.headers import StageExchange
from retexo_fl.channels import BlockKey, Channel
from retexo_fl.errors import ExchangeIncomplete
from retexo_fl.exchange import (
    BlockAssembler,
    BlockDone,
    BlockHeader,
    BlockTraffic,
    NeedData,
    ReceivingSession,
    RowsReceived,
    Vectors,
    encode_block,
    to_dense,
)
from retexo_fl.graph import BoundaryPlan, PeerPlan
from retexo_fl.ledger import Volume


class Mailbox:
    """Sends a client's vectors to its peers and decodes theirs, one exchange at a time.

    ``codec`` is how it writes its own; it reads what peers wrote in any.
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
        self._exchange: tuple[int, bytes] | None = None
        self._decoded: dict[int, Vectors] = {}

    def send(self, ticket: Ticket, rows: Vectors) -> Traffic:
        """Hand every peer its vectors of (N, H) ``rows``; return the bytes that left.

        Raises:
            ChannelError: A block could not be handed over.
            LocalProtocolError: A vector is not finite.
        """
        traffic = Traffic()
        for peer in self._plan.peers:
            header = self._exchange_of(ticket, rows.shape[1], str(rows.dtype)).outgoing(peer)
            block = encode_block(header, peer.send.gather(rows), codec=self._codec)
            moved = self._channel.send_block(
                self._key(ticket, self._client, peer.peer), block.frames
            )
            if moved != 0:
                traffic += counted_traffic(block.traffic, moved)
        return traffic

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
        traffic = Traffic()
        for peer in self._plan.peers:
            if peer.peer in self._decoded:
                continue
            stream = self._channel.receive_block(self._key(ticket, peer.peer, self._client))
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
        parts: list[Vectors] = []
        slots: list[np.ndarray] = []
        for peer in self._plan.peers:
            slots.append(peer.receive.slots)
            if peer.peer in closed_without:
                parts.append(csr_array((peer.receive.count, width), dtype=dtype))
            else:
                parts.append(self._decoded[peer.peer])
        return _in_slot_order(parts, slots, width, dtype)

    def drop_decoded(self) -> None:
        """Free the decoded vectors; the channel still has their blocks."""
        self._exchange, self._decoded = None, {}

    def forget(self) -> None:
        """Drop what peers sent to this client in this job."""
        self.drop_decoded()
        self._channel.forget_job(self._job, self._client)

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


def decode_block(expected: BlockHeader, stream: bytes) -> tuple[Vectors | None, BlockTraffic]:
    """Run a session over what has arrived; None while the block is not complete."""
    session = ReceivingSession(expected)
    assembler = BlockAssembler(expected)
    session.receive_data(stream)
    while not isinstance(event := session.next_event(), NeedData):
        if isinstance(event, RowsReceived):
            assembler.add(event)
        if isinstance(event, BlockDone):
            return assembler.finish(), session.traffic
    return None, session.traffic


def counted_traffic(traffic: BlockTraffic, moved: int | None) -> Traffic:
    """Split a block's bytes by kind; ``moved`` is what the transport took, None if not told."""
    control = traffic.control_bytes
    return Traffic(
        boundary=Volume(
            messages=1,
            raw=traffic.raw_bytes,
            payload=traffic.payload_bytes,
            wire=None if moved is None else moved - control,
        ),
        control=Volume(messages=0, payload=control, wire=None if moved is None else control),
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
