"""Streams through the server, for clients that cannot reach each other.

What one end writes leaves in parcels with this client's next answer to the server, and reaches the
other end with the server's next message to it. The server passes parcels on and cannot read them:
they carry the same TLS as a TCP connection. It learns who talks to whom, when and how much.

A transport serves one event loop.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import Final

from retexo_fl.channels.streams import WireCounters
from retexo_fl.errors import ChannelClosed, ChannelUnavailable, RemoteProtocolError
from retexo_fl.exchange.frames import Buffer
from retexo_fl.exchange.parcels import STREAM_BYTES, Parcel, ParcelKind, ParcelStream

#: A parcel and the client at its other end: whom it goes to, or whom it comes from.
Addressed = tuple[int, bytes]

#: A writer waits while so much has not left: memory is bounded, a message still well filled.
_MAX_WAITING_BYTES: Final = 2**23
#: Data that leaves with one message of the server.
MAX_MESSAGE_BYTES: Final = 2**23
#: A stream with so much unread data breaks: its reader does not keep up with its sender.
_MAX_UNREAD_BYTES: Final = 2**26
#: Streams that one peer may have open; a link needs one, a broken one may linger.
_MAX_STREAMS: Final = 4
#: Streams that peers have opened and that are not accepted yet: the server alone says whose.
_MAX_NOT_TAKEN: Final = 64
#: Streams that this end has closed and the other has not; of more, the oldest are forgotten.
_MAX_HALF_CLOSED: Final = 64
#: Answers are awaited until nothing has happened for this long,
_QUIET_S: Final = 0.05
#: but no longer than this.
_SETTLE_S: Final = 2.0


class RelayStream:
    """One stream to a peer; a :class:`~retexo_fl.channels.streams.ByteStream`."""

    channel = "relay"

    def __init__(self, transport: RelayTransport, peer: int, parcels: ParcelStream) -> None:
        self._transport = transport
        self._parcels = parcels
        self._incoming = bytearray()
        self._changed = asyncio.Event()
        self._broken: str | None = None
        self._is_closed = False
        self._sent_bytes = 0
        self._received_bytes = 0
        self.peer = peer

    @property
    def remote(self) -> str:
        """See :class:`~retexo_fl.channels.streams.ByteStream`."""
        return f"client {self.peer} by relay"

    async def read(self, max_bytes: int) -> bytes:
        """See :class:`~retexo_fl.channels.streams.ByteStream`."""
        while not self._incoming:
            if self._broken is not None:
                raise ChannelClosed(self._broken)
            if self._is_closed or self._parcels.closed_there:
                return b""
            self._changed.clear()
            await self._changed.wait()
        data = bytes(self._incoming[:max_bytes])
        del self._incoming[:max_bytes]
        self._transport.note_activity()
        return data

    async def write(self, data: Buffer) -> None:
        """See :class:`~retexo_fl.channels.streams.ByteStream`."""
        while self._broken is None and self._parcels.outgoing_bytes > _MAX_WAITING_BYTES:
            self._changed.clear()
            await self._changed.wait()
        if self._broken is not None or self._is_closed:
            raise ChannelClosed(self._broken or "the stream was closed at this end")
        self._parcels.send(bytes(data))
        self._transport.note_activity()

    async def close(self) -> None:
        """See :class:`~retexo_fl.channels.streams.ByteStream`; what was written still leaves."""
        self._is_closed = True
        self._incoming.clear()
        self._parcels.close()
        self._changed.set()
        self._transport.note_activity()

    def wire_counters(self) -> WireCounters:
        """Return the bytes of parcels; the server's messages around them are Flower's."""
        return WireCounters(sent_bytes=self._sent_bytes, received_bytes=self._received_bytes)

    # ---- the transport's side -------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether nothing will pass any more."""
        return self._broken is not None or (self._parcels.closed_there and self._parcels.is_closed)

    @property
    def has_left(self) -> bool:
        """Whether nothing of this end is on its way any more, whatever the other end sends."""
        return self._is_closed and self._parcels.is_closed

    def take(self, max_bytes: int) -> list[bytes]:
        """Return the parcels that leave."""
        if not self._parcels.has_parcels or self._broken is not None:
            return []
        taken = [parcel.to_bytes() for parcel in self._parcels.take(max_bytes)]
        self._sent_bytes += sum(map(len, taken))
        self._changed.set()
        return taken

    def give(self, parcel: Parcel, size_bytes: int) -> None:
        """Take a parcel from the peer; one after a lost one, or too many unread, break the stream.

        What comes after :meth:`close` is dropped: it will not be read.
        """
        self._received_bytes += size_bytes
        if self.is_broken:
            return
        try:
            data = self._parcels.receive(parcel)
        except RemoteProtocolError as error:
            self.break_off(str(error))
            return
        if not self._is_closed:
            self._incoming += data
        if len(self._incoming) > _MAX_UNREAD_BYTES:
            self.break_off(f"more than {_MAX_UNREAD_BYTES} bytes unread")
        self._changed.set()

    @property
    def is_broken(self) -> bool:
        """Whether it ended before its time."""
        return self._broken is not None

    def break_off(self, reason: str) -> None:
        """End the stream at once."""
        self._broken = self._broken or reason
        self._changed.set()


class RelayListener:
    """Takes the streams that peers open."""

    address = "relay:"

    def __init__(self, accepted: asyncio.Queue[RelayStream]) -> None:
        self._accepted = accepted

    async def accept(self) -> RelayStream:
        """See :class:`~retexo_fl.channels.streams.Listener`."""
        return await self._accepted.get()

    async def close(self) -> None:
        """See :class:`~retexo_fl.channels.streams.Listener`."""


class RelayTransport:
    """All relayed streams of one client."""

    def __init__(self) -> None:
        self._streams: dict[tuple[int, bytes], RelayStream] = {}
        self._accepted: asyncio.Queue[RelayStream] = asyncio.Queue()
        self._resets: dict[Addressed, None] = {}
        self._is_open = False
        self._activity = 0

    async def connect(self, address: str, peer: int) -> RelayStream:
        """Open a stream to a peer; it is not known whether that one is there.

        Raises:
            ChannelUnavailable: The server passes nothing on at present.
        """
        if not self._is_open:
            raise ChannelUnavailable(
                f"{address} client {peer} is reachable only during a run with relay = true"
            )
        return self._add(peer, secrets.token_bytes(STREAM_BYTES), opens=True)

    async def listen(self, address: str) -> RelayListener:
        """Take streams; ``address`` is ``relay:``."""
        del address
        return RelayListener(self._accepted)

    async def exchange(self, arrived: Sequence[Addressed]) -> list[Addressed]:
        """Hand parcels in, wait for what they cause, and return the parcels that leave.

        Args:
            arrived: Parcels by the client that they come from, in order.

        Returns:
            Parcels by the client that they go to, in order.
        """
        self._is_open = True
        for peer, content in arrived:
            self._deliver(peer, content)
        await self._settle()
        return self._take()

    def reset(self, reason: str) -> None:
        """Break all streams: what was on its way will not arrive."""
        self._is_open = False
        self._resets.clear()
        for stream in self._streams.values():
            stream.break_off(reason)
        self._streams.clear()

    def note_activity(self) -> None:
        """Note that a stream was read or written."""
        self._activity += 1

    def _deliver(self, peer: int, content: bytes) -> None:
        try:
            parcel = Parcel.parse(content)
        except RemoteProtocolError:
            # Of no stream that could be named; its stream misses it and breaks.
            return
        stream = self._streams.get((peer, parcel.stream))
        if stream is None and parcel.kind is ParcelKind.OPEN and not parcel.sequence:
            stream = self._accept(peer, parcel.stream)
        if stream is not None:
            stream.give(parcel, len(content))
        if (stream is None or stream.is_broken) and parcel.kind is not ParcelKind.RESET:
            # Of a stream that this client had before it was started again, say.
            reset = Parcel(kind=ParcelKind.RESET, stream=parcel.stream, sequence=0)
            self._resets[peer, reset.to_bytes()] = None

    def _accept(self, peer: int, name: bytes) -> RelayStream | None:
        if sum(1 for owner, _ in self._streams if owner == peer) >= _MAX_STREAMS:
            return None
        if self._accepted.qsize() >= _MAX_NOT_TAKEN:
            return None
        stream = self._add(peer, name, opens=False)
        self._accepted.put_nowait(stream)
        return stream

    def _add(self, peer: int, name: bytes, *, opens: bool) -> RelayStream:
        stream = RelayStream(self, peer, ParcelStream(name, opens=opens))
        self._streams[peer, name] = stream
        self.note_activity()
        return stream

    async def _settle(self) -> None:
        """Wait until the streams have read what came and written what they answer."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _SETTLE_S
        while loop.time() < deadline:
            before = self._activity
            await asyncio.sleep(_QUIET_S)
            if self._activity == before:
                return

    def _take(self) -> list[Addressed]:
        taken = list(self._resets)
        self._resets.clear()
        left_bytes = MAX_MESSAGE_BYTES
        for place, stream in list(self._streams.items()):
            parcels = stream.take(left_bytes) if left_bytes > 0 else []
            taken += [(stream.peer, parcel) for parcel in parcels]
            left_bytes -= sum(map(len, parcels))
            if stream.is_over or parcels:
                del self._streams[place]
            if parcels and not stream.is_over:
                # Behind those that found no room in this message.
                self._streams[place] = stream
        half_closed = [place for place, stream in self._streams.items() if stream.has_left]
        for place in half_closed[:-_MAX_HALF_CLOSED]:
            del self._streams[place]
        return taken
