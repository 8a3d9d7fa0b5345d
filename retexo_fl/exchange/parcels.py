"""Parcels: pieces of a byte stream between two clients, carried by a third party, sans-IO.

Where two clients cannot reach each other, the server passes pieces of their stream on, inside its
own messages. It may pass one twice; one that is lost breaks the stream, which then begins anew
(blocks resume at their first missing frame, see :mod:`.link`). What a parcel carries is TLS: the
carrier sees who, when and how much.

Parcel, little-endian::

    version u8 | kind u8 | stream 8 bytes | sequence u32 | data

``stream`` is chosen by the client that opened it; its first parcel has sequence 0 from either end.
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass
from enum import IntEnum, unique
from typing import Final, Self

from retexo_fl.errors import LocalProtocolError, RemoteProtocolError
from retexo_fl.units import counted

STREAM_BYTES: Final = 8
#: Data of one parcel; a server's message carries many.
MAX_DATA_BYTES: Final = 2**18
_VERSION: Final = 1
_HEADER: Final = struct.Struct("<BB8sI")
HEADER_BYTES: Final = _HEADER.size


@unique
class ParcelKind(IntEnum):
    """What a parcel is; the numbers are those on the wire."""

    #: The first of the client that opens the stream, perhaps with data.
    OPEN = 1
    DATA = 2
    #: No more data comes from this end.
    CLOSE = 3
    #: This end has no such stream, or no longer: its process was restarted.
    RESET = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """One piece of a stream.

    Attributes:
        kind: What it is.
        stream: 8 bytes that name the stream.
        sequence: Number among the parcels of its sender, from 0.
        data: At most :data:`MAX_DATA_BYTES`.
    """

    kind: ParcelKind
    stream: bytes
    sequence: int
    data: bytes = b""

    def to_bytes(self) -> bytes:
        """Return the parcel as it is carried."""
        return _HEADER.pack(_VERSION, self.kind, self.stream, self.sequence) + self.data

    @classmethod
    def parse(cls, content: bytes) -> Self:
        """Read a parcel.

        Raises:
            RemoteProtocolError: It is none.
        """
        if len(content) < HEADER_BYTES:
            raise RemoteProtocolError(
                f"parcel of {counted(len(content), 'byte')}; expected a header"
            )
        version, kind, stream, sequence = _HEADER.unpack_from(content)
        data = content[HEADER_BYTES:]
        if version != _VERSION:
            raise RemoteProtocolError(f"parcel of version {version}; expected {_VERSION}")
        if kind not in ParcelKind.__members__.values():
            raise RemoteProtocolError(f"parcel of kind {kind} is unknown")
        if len(data) > MAX_DATA_BYTES:
            raise RemoteProtocolError(
                f"parcel of {len(data)} bytes of data; expected at most {MAX_DATA_BYTES}"
            )
        return cls(kind=ParcelKind(kind), stream=stream, sequence=sequence, data=data)


class ParcelStream:
    """One end of a stream: bytes in, parcels out, and the reverse.

    Args:
        stream: 8 bytes that name it.
        opens: This end opens the stream.
    """

    def __init__(self, stream: bytes, *, opens: bool) -> None:
        if len(stream) != STREAM_BYTES:
            size = counted(len(stream), "byte")
            raise LocalProtocolError(f"stream: {size}; expected {STREAM_BYTES}")
        self.stream = stream
        self._opens = opens
        self._outgoing: deque[bytes] = deque()
        self._outgoing_bytes = 0
        self._next_out = 0
        self._next_in = 0
        self._closing = False
        self._closed_here = False
        #: The other end will send no more.
        self.closed_there = False

    @property
    def outgoing_bytes(self) -> int:
        """Bytes that were given and have not left."""
        return self._outgoing_bytes

    @property
    def is_closed(self) -> bool:
        """Whether this end has announced that it sends no more."""
        return self._closed_here

    @property
    def has_parcels(self) -> bool:
        """Whether :meth:`take` has anything to return."""
        opens = self._opens and not self._next_out
        return opens or bool(self._outgoing) or (self._closing and not self._closed_here)

    def send(self, data: bytes) -> None:
        """Give bytes for the other end.

        Raises:
            LocalProtocolError: This end was closed.
        """
        if self._closing:
            raise LocalProtocolError("the stream was closed at this end")
        for first in range(0, len(data), MAX_DATA_BYTES):
            self._outgoing.append(bytes(data[first : first + MAX_DATA_BYTES]))
        self._outgoing_bytes += len(data)

    def close(self) -> None:
        """Send no more after what was given."""
        self._closing = True

    def take(self, max_bytes: int) -> list[Parcel]:
        """Return the parcels that leave now, of at most ``max_bytes`` of data, but at least one."""
        parcels: list[Parcel] = []
        size_bytes = 0
        while self._outgoing and (not parcels or size_bytes + len(self._outgoing[0]) <= max_bytes):
            data = self._joined(max_bytes - size_bytes)
            size_bytes += len(data)
            parcels.append(self._parcel(self._kind(), data))
        if self._opens and not self._next_out:
            parcels.append(self._parcel(ParcelKind.OPEN, b""))
        if self._closing and not self._outgoing and not self._closed_here:
            self._closed_here = True
            parcels.append(self._parcel(ParcelKind.CLOSE, b""))
        return parcels

    def receive(self, parcel: Parcel) -> bytes:
        """Return the bytes that a parcel brings; nothing for one that came before.

        Raises:
            RemoteProtocolError: One before it was lost, it comes after the end, or the other end
                knows the stream no more.
        """
        if parcel.kind is ParcelKind.RESET:
            raise RemoteProtocolError("the other end knows this stream no more")
        if parcel.sequence < self._next_in:
            return b""
        if parcel.sequence > self._next_in:
            raise RemoteProtocolError(
                f"parcel {parcel.sequence} arrived; expected {self._next_in}: one was lost"
            )
        if self.closed_there:
            raise RemoteProtocolError("a parcel arrived after the end of its stream")
        opening = parcel.kind is ParcelKind.OPEN
        if opening != (not self._opens and parcel.sequence == 0):
            raise RemoteProtocolError(f"parcel {parcel.sequence} is {parcel.kind.name}")
        self._next_in += 1
        self.closed_there = parcel.kind is ParcelKind.CLOSE
        return parcel.data

    def _kind(self) -> ParcelKind:
        return ParcelKind.OPEN if self._opens and not self._next_out else ParcelKind.DATA

    def _joined(self, max_bytes: int) -> bytes:
        """Return the next bytes: small pieces together, as far as one parcel may be long."""
        limit = min(max_bytes, MAX_DATA_BYTES)
        pieces = [self._outgoing.popleft()]
        size = len(pieces[0])
        while self._outgoing and size + len(self._outgoing[0]) <= limit:
            pieces.append(self._outgoing.popleft())
            size += len(pieces[-1])
        self._outgoing_bytes -= size
        return b"".join(pieces)

    def _parcel(self, kind: ParcelKind, data: bytes) -> Parcel:
        parcel = Parcel(kind=kind, stream=self.stream, sequence=self._next_out, data=data)
        self._next_out += 1
        return parcel
