"""One stream on its way: packed straight from its vectors, to all its destinations together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from retexo_fl.additions.kernel_path.endpoint.broadcasting import Group
from retexo_fl.additions.kernel_path.endpoint.records import Destination, SendState, StreamGrant
from retexo_fl.additions.kernel_path.endpoint.route import Peer, Route
from retexo_fl.additions.kernel_path.endpoint.sender import PacketSender
from retexo_fl.additions.kernel_path.packets.pacing import WindowTimes
from retexo_fl.additions.kernel_path.packets.packets import (
    PacketHead,
    pack_packets,
    ping_packet,
    readdress,
)
from retexo_fl.additions.kernel_path.packets.stream_shape import StreamShape
from retexo_fl.additions.kernel_path.packets.window import SendWindow, ack_flags
from retexo_fl.errors import LocalProtocolError

#: Packets sent in one go: two or three messages at the MTU of Ethernet.
BATCH_PACKETS: Final = 128
#: New packets wait for company so long, unless the window is nearly empty.
_GATHER_S: Final = 0.001

_Seqs = NDArray[np.int64]


class SendingStream:
    """What is sent under one key.

    Args:
        values: (rows, width) int32, contiguous; read whenever a packet is sent.
        packet_cells: Cells of each packet but the last.
        job: Said by all packets; ``stage`` and ``sender`` likewise.
        stage: See above.
        sender: See above.

    Attributes:
        routes: The way to each destination, by its address.
        group: Reaches all destinations at once, if there is such a thing.
        deadline_s: When :meth:`advance` is due.
        scheduled_s: When it is looked whether it is.
    """

    def __init__(
        self,
        values: NDArray[np.int32] | NDArray[np.uint8],
        *,
        packet_cells: int,
        job: int,
        stage: int,
        sender: int,
    ) -> None:
        is_known = values.dtype in {np.dtype(np.int32), np.dtype(np.uint8)}
        if values.ndim != 2 or not is_known or not values.flags.c_contiguous:
            raise LocalProtocolError(
                f"vectors to send: {values.dtype} {values.shape}, "
                "expected contiguous int32 or uint8 [rows, width]"
            )
        self.values = values
        self.shape = StreamShape.in_room(
            len(values), values.shape[1], packet_cells, in_bytes=values.dtype == np.uint8
        )
        self.terms = (self.shape, job, stage, sender)
        self.routes: dict[str, Route] = {}
        self.group: Group | None = None
        self.deadline_s = -math.inf
        self.scheduled_s = math.inf

    def add(
        self, destination: Destination, peer: Peer, now_s: float, times: WindowTimes | None
    ) -> None:
        """Send to one more destination; to one that is known, anew if its grant has changed."""
        present = self.routes.get(destination.address)
        if present is not None and present.destination.grant == destination.grant:
            return
        if present is not None:
            present.close()
        window = SendWindow(self.shape.packets, now_s=now_s, times=times)
        head = self._head(destination.grant)
        self.routes[destination.address] = Route(
            destination, head, window, packets=self.shape.packets, peer=peer
        )

    @property
    def done(self) -> bool:
        """Whether all destinations have acknowledged everything."""
        return all(route.window.done for route in self.routes.values())

    @property
    def stalled(self) -> int:
        """How many destinations have stopped answering."""
        return sum(route.window.stalled for route in self.routes.values())

    @property
    def state(self) -> SendState:
        """What became of it."""
        states = {address: route.state for address, route in self.routes.items()}
        return SendState(
            done=all(state.done for state in states.values()),
            stalled=any(state.stalled for state in states.values()),
            packets=self.shape.packets,
            sent=sum(state.sent for state in states.values()),
            retransmitted=sum(state.retransmitted for state in states.values()),
            by_destination=states,
        )

    # ---- sending ---------------------------------------------------------------------------------

    def advance(self, sender: PacketSender, now_s: float) -> None:
        """Send what may be sent, one batch for each destination at most; sets the deadline."""
        waiting = [route for route in self.routes.values() if not route.window.done]
        for route in waiting:
            self._repeat(route, sender, now_s)
        together = [route for route in waiting if route.keeps_up(now_s)]
        front = max((route.new_sent for route in together), default=0)
        level = [route for route in together if route.new_sent == front]
        has_more = self._send_together(level, sender, now_s)
        for route in waiting:
            if route not in level:
                self._catch_up(route, front - route.new_sent, sender, now_s)
        self.deadline_s = self._next_deadline_s(waiting, now_s, has_more=has_more)

    def _repeat(self, route: Route, sender: PacketSender, now_s: float) -> None:
        """Send again what was lost on one way, and send a PING after long silence."""
        window = route.window
        lost = window.lost_to_send(now_s, BATCH_PACKETS)
        self._send_alone(route, lost, sender)
        if window.wants_ping(now_s):
            self._ping(route, window.ping_seq, sender)
            window.pinged(now_s)
            route.peer.asked()

    def _catch_up(self, route: Route, behind: int, sender: PacketSender, now_s: float) -> None:
        """Send a destination alone what the others have had."""
        new = route.window.new_to_send(now_s, max(min(behind, route.room, BATCH_PACKETS), 0))
        route.new_sent += len(new)
        self._send_alone(route, new, sender)

    def _send_together(self, routes: Sequence[Route], sender: PacketSender, now_s: float) -> bool:
        """Send new packets to destinations that are level; True where more may be sent at once."""
        if not routes:
            return False
        room = min(route.room for route in routes)
        on_their_way = max(route.window.on_their_way for route in routes)
        is_rest = routes[0].new_sent + room == self.shape.packets
        if not room or (3 * room < on_their_way and not is_rest and now_s < self.deadline_s):
            return False
        news = [route.window.new_to_send(now_s, min(room, BATCH_PACKETS)) for route in routes]
        for route in routes:
            route.new_sent += len(news[0])
        self._send_new(routes, news[0], sender)
        return room > BATCH_PACKETS

    def _send_new(self, routes: Sequence[Route], seqs: _Seqs, sender: PacketSender) -> None:
        group = self.group
        if group and len(routes) > 1 and group.members.issuperset(_destinations(routes)):
            head = self._head(StreamGrant(token=group.token, stream=group.number))
            data = self._packed(head, seqs, sender)
            problem = sender.send(data, self.shape.packet_bytes, group.name, is_cloned=True)
            for route in routes:
                route.reason = problem
        else:
            data = self._packed(routes[0].head, seqs, sender)
            for place, route in enumerate(routes):
                if place:
                    self._readdress(data, len(seqs), route.head)
                route.reason = sender.send(
                    data, self.shape.packet_bytes, route.name, to_many=len(self.routes) > 1
                )
        for route in routes:
            self._follow(route, seqs, sender)

    def _send_alone(self, route: Route, seqs: _Seqs, sender: PacketSender) -> None:
        if len(seqs):
            data = self._packed(route.head, seqs, sender)
            route.reason = sender.send(data, self.shape.packet_bytes, route.name)
            self._follow(route, seqs, sender)

    def _follow(self, route: Route, seqs: _Seqs, sender: PacketSender) -> None:
        """Do what a batch asks for besides: a question, or a stop where packets are too long."""
        if route.peer.user_space:
            self._ping(route, int(seqs[-1]), sender)
        if sender.is_too_long(route.reason):
            # Pings are short enough: they ask whether there is another way now.
            route.window.stalled = True

    def _ping(self, route: Route, seq: int, sender: PacketSender) -> None:
        ping = ping_packet(route.head, route.ping_seq(seq), user_ack=route.peer.user_space)
        problem = sender.send(np.frombuffer(ping, np.uint8), len(ping), route.name)
        route.reason = route.reason or problem

    # ---- packets ---------------------------------------------------------------------------------

    def _packed(self, head: PacketHead, seqs: _Seqs, sender: PacketSender) -> NDArray[np.uint8]:
        """Return packets as one buffer; valid until the next call for any stream."""
        table = sender.table(len(seqs), self.shape.packet_bytes)
        lengths = pack_packets(self.shape, head, self.values, seqs, table, flags=ack_flags(seqs))
        return table.reshape(-1)[: int(lengths.sum())]

    def _readdress(self, data: NDArray[np.uint8], count: int, head: PacketHead) -> None:
        """Turn packets to another destination; the last may be shorter than its row."""
        size = self.shape.packet_bytes
        whole = (count - 1) * size
        if whole:
            readdress(data[:whole].reshape(count - 1, size), head.token, head.stream)
        readdress(data[whole:], head.token, head.stream)

    def _head(self, grant: StreamGrant) -> PacketHead:
        _, job, stage, sender = self.terms
        return PacketHead(
            token=grant.token,
            stream=grant.stream,
            job=job,
            stage=stage,
            sender=sender,
            in_bytes=self.shape.in_bytes,
        )

    def _next_deadline_s(self, waiting: Sequence[Route], now_s: float, *, has_more: bool) -> float:
        if has_more:
            return -math.inf
        deadline_s = min((route.window.next_deadline_s() for route in waiting), default=math.inf)
        # What can be sent now was kept back to go with more of its kind.
        return max(deadline_s, now_s + _GATHER_S)


def _destinations(routes: Sequence[Route]) -> list[Destination]:
    return [route.destination for route in routes]
