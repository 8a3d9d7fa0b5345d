"""All streams on their way: which of them has something to do, and when the next one will."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Final

import numpy as np
from numpy.typing import NDArray

from retexo_fl.additions.kernel_path.endpoint.acks import Heard
from retexo_fl.additions.kernel_path.endpoint.broadcasting import Group
from retexo_fl.additions.kernel_path.endpoint.records import Destination, SendState, parse_endpoint
from retexo_fl.additions.kernel_path.endpoint.route import Peer, Route
from retexo_fl.additions.kernel_path.endpoint.sender import PacketSender
from retexo_fl.additions.kernel_path.endpoint.sending_stream import SendingStream
from retexo_fl.additions.kernel_path.packets.pacing import WindowTimes
from retexo_fl.errors import LocalProtocolError

#: Streams that are served between two looks at the socket.
_STREAMS_IN_A_ROW: Final = 8

_Deadline = tuple[float, int, SendingStream]


class Outgoing:
    """Streams by their keys; not thread-safe.

    Args:
        sender: Sends packets.
        changed: Called when a stream was acknowledged, or stalled.
        times: Of all windows.
    """

    def __init__(
        self, sender: PacketSender, *, changed: Callable[[], None], times: WindowTimes | None
    ) -> None:
        self._sender = sender
        self._changed = changed
        self._times = times
        self._streams: dict[bytes, SendingStream] = {}
        self._by_token: dict[int, tuple[SendingStream, Route]] = {}
        # What was learnt of a machine holds for all that is sent to it.
        self._peers: dict[str, Peer] = {}
        # In order of their turns; a dictionary forgets and finds in no time.
        self._ready: dict[SendingStream, None] = {}
        self._deadlines: list[_Deadline] = []
        self._order = count()
        self.acks = 0
        self.foreign_acks = 0

    def send(  # noqa: PLR0913 - all of what packets say, by name
        self,
        key: bytes,
        values: NDArray[np.int32] | NDArray[np.uint8],
        destinations: Sequence[Destination],
        *,
        job: int,
        stage: int,
        sender: int,
        packet_cells: int,
        group: Group | None,
    ) -> None:
        """Send a stream, or to further destinations; see :meth:`DatagramEndpoint.send`."""
        now_s = time.monotonic()
        for destination in destinations:
            parse_endpoint(destination.address)
        stream = SendingStream(
            values, packet_cells=packet_cells, job=job, stage=stage, sender=sender
        )
        present = self._streams.get(key)
        if present is not None:
            if present.terms != stream.terms:
                raise LocalProtocolError(f"sending {key.hex()}: started before with other values")
            stream = present
        # A receiver that started anew no longer has the stream that it granted before.
        self._forget_tokens(stream)
        for destination in destinations:
            peer = self._peers.setdefault(destination.address, Peer())
            stream.add(destination, peer, now_s, self._times)
        for route in stream.routes.values():
            self._by_token[route.destination.grant.token] = (stream, route)
        stream.group = group
        self._streams[key] = stream
        self._ready[stream] = None

    def state(self, key: bytes) -> SendState:
        """Say what became of a stream."""
        if (stream := self._streams.get(key)) is None:
            raise LocalProtocolError(f"sending {key.hex()}: unknown")
        return stream.state

    def forget(self, key: bytes) -> None:
        """Send no more of a stream; an unknown key is no error."""
        stream = self._streams.pop(key, None)
        if stream is None:
            return
        self._ready.pop(stream, None)
        self._forget_tokens(stream)
        for route in stream.routes.values():
            route.close()
        stream.deadline_s = math.inf

    # ---- what the thread does --------------------------------------------------------------------

    @property
    def wants_write(self) -> bool:
        """Whether the socket's buffer is full."""
        return self._sender.is_blocked

    def hear(self, ack: Heard) -> None:
        """Take an acknowledgement."""
        stream, route = self._by_token.get(ack.token, (None, None))
        if stream is None or route is None or route.ack_terms != ack.terms:
            self.foreign_acks += 1
            return
        self.acks += 1
        route.hear(ack, time.monotonic())
        if route.window.done:
            self._changed()
        if not stream.done:
            self._ready[stream] = None

    def advance(self, now_s: float) -> bool:
        """Send what may be sent; True where some streams wait for their turn."""
        self._sender.flush()
        while self._deadlines and self._deadlines[0][0] <= now_s:
            _, _, stream = heapq.heappop(self._deadlines)
            stream.scheduled_s = math.inf
            if stream.deadline_s <= now_s:
                self._ready[stream] = None
            else:
                self._schedule(stream)
        for stream in list(self._ready)[:_STREAMS_IN_A_ROW]:
            if self._sender.is_blocked:
                return False
            del self._ready[stream]
            self._advance(stream, now_s)
        return bool(self._ready) and not self._sender.is_blocked

    def next_deadline_s(self) -> float:
        """Return when :meth:`advance` is due."""
        if self._sender.is_blocked:
            return math.inf
        return -math.inf if self._ready else self._deadlines[0][0] if self._deadlines else math.inf

    def counters(self) -> dict[str, int]:
        """Return what was counted."""
        return {
            "packets_sent": self._sender.packets,
            "packets_refused": self._sender.refused,
            "acks_heard": self.acks,
            "acks_foreign": self.foreign_acks,
        }

    def _advance(self, stream: SendingStream, now_s: float) -> None:
        was_stalled = stream.stalled
        stream.advance(self._sender, now_s)
        if stream.stalled > was_stalled:
            self._changed()
        if stream.deadline_s == -math.inf:
            self._ready[stream] = None
        else:
            self._schedule(stream)

    def _schedule(self, stream: SendingStream) -> None:
        """Look at a stream at its deadline; one that became later is found when it is looked at."""
        if stream.deadline_s < stream.scheduled_s:
            stream.scheduled_s = stream.deadline_s
            heapq.heappush(self._deadlines, (stream.deadline_s, next(self._order), stream))

    def _forget_tokens(self, stream: SendingStream) -> None:
        for route in stream.routes.values():
            self._by_token.pop(route.destination.grant.token, None)
