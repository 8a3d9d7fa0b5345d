"""One client's outgoing and incoming blocks: plan, codec, session and channel put together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeAlias

import numpy as np
from scipy.sparse import csr_array, vstack

from retexo_fl.channels.base import Channel
from retexo_fl.client.api import Ticket
from retexo_fl.client.peer_exchange import (
    Headers,
    PeerExchange,
    StageExchange,
    counted_traffic,
)
from retexo_fl.client.vector_carrier import CONTROL_LAYERS, ExchangeId, VectorCarrier
from retexo_fl.errors import ConfigurationError, ExchangeIncomplete
from retexo_fl.exchange import (
    BlockHeader,
    Edges,
    FixedVectors,
    Vectors,
    fixed_vectors,
    grid_bits,
    in_compact_form,
    sum_shared,
    to_dense,
    wire_codec,
)
from retexo_fl.graph.plan.boundary import BoundaryPlan
from retexo_fl.graph.plan.vectors import PeerPlan, is_everything, with_sums
from retexo_fl.ledger import Traffic

#: Before each stage crosses the same.
_ALIKE: Final[Mapping[int, BoundaryPlan]] = MappingProxyType({})

#: Called with stage, peer, bytes, and ``out`` or ``in``.
WatchBlocks: TypeAlias = Callable[[int, int, Traffic, str], None]


class Mailbox:
    """Sends a client's vectors to its peers and decodes theirs, one exchange at a time.

    ``codec`` is how it writes its own; it reads what peers wrote in any. Under ``fixed`` and
    ``fixed8`` it also adds the sums that several peers sent for one node exactly, and vectors may
    go as ``datagrams``. ``plans`` has, by stage, what crosses before it where that is not all of
    ``plan``, to and from the same peers.

    Attributes:
        reads_once: Free what was decoded as it is handed over; it is decoded again if asked.
        is_rounded: Vectors are of numbers that datagrams may carry, and add up (``fixed``).
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
        plans: Mapping[int, BoundaryPlan] = _ALIKE,
    ) -> None:
        self._client = client
        self.reads_once = False
        self._job = job
        self._plan, self._plans = plan, plans
        self._incoming_edges: dict[int, dict[int, Edges]] = {}
        self._peers = {peer.peer for peer in plan.peers}
        self._channel = channel
        self._grid_bits = grid_bits(codec)
        self.is_rounded = self._grid_bits > 0
        self._wire_codec = wire_codec(codec)
        #: Carry vectors to and from peers that they reach; only under ``fixed``.
        self.datagrams: VectorCarrier | None = None
        #: Called for every block that leaves or was decoded, for one maybe more than once.
        self.watch: WatchBlocks = lambda *block: None
        #: Whose vectors are being received.
        self._exchange: PeerExchange | None = None
        #: By exchange, the peers whose bytes were reported: what is decoded again came once.
        self._counted: dict[ExchangeId, set[int]] = {}
        self.error_bound: tuple[float, ...] = ()
        #: By exchange that the channel took whole, its error bound: it is not encoded again.
        self._sent: dict[ExchangeId, tuple[float, ...]] = {}

    def send(self, ticket: Ticket, rows: Vectors) -> Traffic:
        """Hand every peer its vectors of (N, H) ``rows``, once; return the bytes that left now.

        Raises:
            ChannelError: The channel did not take a block.
            LocalProtocolError: A vector is not finite.
        """
        stage = self._stage_of(ticket, rows.shape[1], str(rows.dtype))
        if stage.id in self._sent:
            self.error_bound = self._sent[stage.id]
            return Traffic()
        traffic = self._share(stage, rows, self._plan_of(stage.layer).receivers)
        if traffic is None:
            return self._send_to_peers(stage, rows)
        self._sent[stage.id] = self.error_bound
        return traffic

    def _plan_of(self, stage: int) -> BoundaryPlan:
        return self._plans.get(stage, self._plan)

    def _share(
        self, stage: StageExchange, rows: Vectors, peers: Sequence[PeerPlan]
    ) -> Traffic | None:
        """Let peers in this process have the rows as they are; None where blocks must say them."""
        pile = self._channel.pile(*stage.id)
        if pile is None or self.is_rounded:
            return None
        if not peers:
            return Traffic()
        rows, chosen = with_sums(rows, peers)
        shared = pile.share(
            rows,
            chosen,
            {peer.peer: (peer.num_edges, peer.digest, peer.send.count) for peer in peers},
            sender=self._client,
            codec=self._wire_codec,
        )
        if shared is None:
            return None
        blocks, traffic = shared
        return counted_traffic(traffic, traffic.wire_bytes, blocks=blocks)

    def _send_to_peers(self, stage: StageExchange, rows: Vectors) -> Traffic:
        fixed = self.fixed(rows, stage.layer) if self.is_rounded else None
        self.error_bound = () if fixed is None else (fixed.error_bound,)
        peers = self._plan_of(stage.layer).receivers
        targets = {peer.peer: peer.send.targets for peer in peers}
        exchange = self._exchange_of(stage)
        traffic = exchange.send(_outgoing(peers, rows, fixed), fixed, rows=targets)
        # Datagrams may be lost, blocks not: a channel keeps what it took as long as the job lasts.
        if not exchange.carried:
            self._sent[stage.id] = self.error_bound
        return traffic

    def fixed(self, rows: Vectors, stage: int = 0) -> FixedVectors:
        """Return what ``fixed`` makes of the vectors that (N, H) ``rows`` have for all peers.

        Raises:
            LocalProtocolError: A vector is not finite.
        """
        vectors = {p.peer: p.send.gather(rows) for p in self._plan_of(stage).receivers}
        return fixed_vectors(vectors, self._grid_bits)

    def receive(
        self, ticket: Ticket, width: int, dtype: str, *, told: frozenset[int] = frozenset()
    ) -> Traffic:
        """Decode the blocks that have arrived since the last call; return their bytes.

        A block that cannot be decoded is logged with its sender, which stays missing.

        Args:
            ticket: Names the exchange.
            width: Values per vector.
            dtype: ``float32`` or ``float64``.
            told: Peers whose bytes another process has reported; theirs are not returned again.

        Raises:
            PartitionError: Another client lists edges to this one that this part does not have.
            ConfigurationError: A peer sends datagrams where blocks are awaited.
        """
        stage = self._stage_of(ticket, width, dtype)
        self._counted.setdefault(stage.id, set()).update(told)
        if self._exchange is None or self._exchange.id != stage.id:
            self._exchange = self._exchange_of(stage)
        self._refuse_strangers(self._exchange, stage)
        self._exchange.expect()
        pile = self._channel.pile(*stage.id)
        if pile is None:
            return self._exchange.receive()
        untold = self._exchange.take_shared(
            pile.shared_with(
                self._client, self._edges_before(stage.layer), width=width, dtype=dtype
            )
        )
        shared = pile.traffic(self._client, untold)
        traffic = counted_traffic(shared, shared.wire_bytes, blocks=len(untold))
        return traffic + self._exchange.receive()

    def _edges_before(self, stage: int) -> dict[int, Edges]:
        stage = stage if stage in self._plans else -1
        if stage not in self._incoming_edges:
            peers = self._plan_of(stage).senders
            edges = {p.peer: (p.num_edges, p.digest, p.receive.count) for p in peers}
            self._incoming_edges[stage] = edges
        return self._incoming_edges[stage]

    def missing_peers(self) -> tuple[int, ...]:
        """Return the peers whose block of the current exchange is not complete."""
        if self._exchange is None:
            return tuple(peer.peer for peer in self._plan.peers)
        return self._exchange.missing

    @property
    def told_peers(self) -> frozenset[int]:
        """The peers of the current exchange whose bytes were reported."""
        return frozenset(() if self._exchange is None else self._counted[self._exchange.id])

    def vectors(self, width: int, dtype: str, *, closed_without: tuple[int, ...]) -> Vectors:
        """Return the (B, width) vectors of all slots of the exchange that is being received.

        Those of peers it was closed without are zero, and those that do not cross before its stage.

        Raises:
            ExchangeIncomplete: The channel no longer has what was there at the closing.
        """
        lost = set(self.missing_peers()) - set(closed_without)
        if lost:
            raise ExchangeIncomplete(
                f"client {self._client}: vectors of clients {sorted(lost)} were lost after the "
                "exchange was closed"
            )
        plan = self._plan if self._exchange is None else self._plan_of(self._exchange.id[1])
        slots = {peer.peer: peer.receive.slots for peer in plan.senders}
        received = {} if self._exchange is None else {**self._exchange.received}
        if self._exchange is not None and self._exchange.shared:
            pile = self._channel.pile(*self._exchange.id)
            assert pile is not None, "a channel has a pile, or has none"
            if self._exchange.shared == slots.keys() and not closed_without:
                rows = pile.gathered(self._client, list(slots))
                return _placed(rows, np.concatenate(list(slots.values())), plan.num_slots)
            received |= {p: pile.gathered(self._client, [p]) for p in self._exchange.shared}
        parts: dict[int, Vectors] = {
            peer: csr_array((len(places), width), dtype=dtype)
            if peer in closed_without
            else received[peer]
            for peer, places in slots.items()
        }
        if self.reads_once:
            self.drop_decoded()
        # Nothing else holds a peer's vectors from here on: each is freed once it is in its slots.
        del received
        if not self.is_rounded:
            return _in_slot_order(parts, slots, (plan.num_slots, width), dtype)
        self._sum_shared(parts, closed_without)
        return in_compact_form(_in_slot_order(parts, slots, (plan.num_slots, width), dtype))

    def drop_decoded(self) -> None:
        """Free the decoded vectors; the channel still has their blocks."""
        self._exchange = None

    def _exchange_of(self, stage: StageExchange) -> PeerExchange:
        plan = self._plan_of(stage.layer)
        exchange = PeerExchange(
            stage.id,
            self._channel,
            codec=self._wire_codec,
            outgoing=Headers(plan.receivers, stage.outgoing),
            incoming=Headers(plan.senders, stage.incoming),
            watch=lambda peer, traffic, way: self.watch(stage.layer, peer, traffic, way),
            counted=self._counted.setdefault(stage.id, set()),
        )
        exchange.use_datagrams(self.datagrams, plan.incoming_targets, all_needed=None, kept=True)
        return exchange

    def _sum_shared(self, parts: dict[int, Vectors], closed_without: tuple[int, ...]) -> None:
        """Add what peers that are there have sent for the same nodes."""
        targets = self._plan.incoming_targets or {}
        there = [peer for peer in parts if peer in targets and peer not in closed_without]
        summed = sum_shared([parts[p] for p in there], [targets[p] for p in there])
        parts.update(zip(there, summed, strict=True))

    def _refuse_strangers(self, exchange: PeerExchange, stage: StageExchange) -> None:
        """Look at blocks of clients of whom none is awaited.

        They are no peers, and list an edge which this part lacks; or peers of whom it reads no row.
        """
        senders = self._channel.senders(
            self._job, stage.layer, stage.weights_digest, receiver=self._client
        )
        awaited, plan = self._edges_before(stage.layer).keys(), self._plan_of(stage.layer)

        def header_of(sender: int) -> BlockHeader:
            is_peer = sender in self._peers
            return stage.incoming(plan.peer(sender) if is_peer else PeerPlan.of_stranger(sender))

        for sender in sorted(senders - awaited - exchange.refused.keys()):
            exchange.decoded(header_of(sender))
        if self.is_rounded:
            self._refuse_other_ways(exchange, stage)
        if self.datagrams is not None:
            self.datagrams.refuse_strangers(header_of, stage.id, known=awaited)

    def _refuse_other_ways(self, exchange: PeerExchange, stage: StageExchange) -> None:
        """Name a peer that sends datagrams where blocks are awaited."""
        announcing = self._channel.senders(
            self._job, stage.layer + CONTROL_LAYERS, stage.weights_digest, receiver=self._client
        )
        for peer in sorted(self._peers & announcing - set(exchange.reached)):
            raise ConfigurationError(
                f"client {peer} sends datagrams, client {self._client} takes none from it: "
                "expected a udp:// address of both in both rosters, and an agent that listens "
                "there; see docs/kernel-path.md"
            )

    def _stage_of(self, ticket: Ticket, width: int, dtype: str) -> StageExchange:
        return StageExchange(
            job=self._job,
            layer=ticket.stage,
            weights_digest=ticket.weights_digest,
            client=self._client,
            width=width,
            dtype=dtype,
        )


def _outgoing(
    peers: Sequence[PeerPlan], rows: Vectors, fixed: FixedVectors | None
) -> Iterator[tuple[int, Vectors]]:
    """Yield what each peer gets; one at a time, unless all have to be known first."""
    for peer in peers:
        yield peer.peer, peer.send.gather(rows) if fixed is None else fixed.vectors[peer.peer]


def _in_slot_order(
    parts: dict[int, Vectors], slots: dict[int, np.ndarray], shape: tuple[int, int], dtype: str
) -> Vectors:
    """Put vectors, by peer, where their slots are; each is let go once it is there."""
    if not parts:
        return csr_array(shape, dtype=dtype)
    order = np.concatenate(list(slots.values()))
    if all(not isinstance(part, np.ndarray) for part in parts.values()):
        return _placed(vstack(list(parts.values()), format="csr"), order, shape[0])
    result = np.zeros(shape, dtype=dtype)
    for peer, where in slots.items():
        result[where] = to_dense(parts.pop(peer))
    return result


def _placed(rows: Vectors, order: np.ndarray, count: int) -> Vectors:
    """Return (count, width) rows: each of (n, width) in the place that the (n,) ``order`` says.

    Others are zero.
    """
    if is_everything(order, count):
        return rows
    chosen = rows[np.argsort(order, kind="stable")]
    if len(order) == count:
        return chosen if isinstance(chosen, np.ndarray) else csr_array(chosen)
    if isinstance(chosen, np.ndarray):
        found = np.zeros((count, chosen.shape[1]), dtype=chosen.dtype)
        found[np.sort(order)] = chosen
        return found
    ends = np.zeros(count + 1, dtype=chosen.indptr.dtype)
    ends[np.sort(order) + 1] = np.diff(chosen.indptr)
    shape = (count, chosen.shape[1])
    return csr_array((chosen.data, chosen.indices, ends.cumsum(dtype=ends.dtype)), shape=shape)
