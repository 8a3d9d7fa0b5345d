"""Streams of bytes between two machines, and who makes them: one transport for each scheme."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from retexo_fl.exchange.frames import Buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class WireCounters:
    """Bytes of one stream on the wire, with the headers of its network; None: unknown."""

    sent_bytes: int | None
    received_bytes: int | None


class ByteStream(Protocol):
    """A reliable stream of bytes in both directions; its other end is not authenticated."""

    @property
    def channel(self) -> str:
        """Name of the transport, by which ``agent status`` counts: ``tcp``."""
        ...

    @property
    def remote(self) -> str:
        """Where the other end is, for a person."""
        ...

    async def read(self, max_bytes: int) -> bytes:
        """Wait for bytes and return at most ``max_bytes``; ``b""`` when the other end has closed.

        Raises:
            ChannelClosed: The stream broke.
        """
        ...

    async def write(self, data: Buffer) -> None:
        """Hand all bytes to the operating system, waiting as long as it takes none.

        Raises:
            ChannelClosed: The stream broke.
        """
        ...

    async def close(self) -> None:
        """End both directions; what was written before still arrives. Never raises, never hangs.

        Calling it again does nothing.
        """
        ...

    def wire_counters(self) -> WireCounters:
        """Return what has passed, also after :meth:`close`."""
        ...


class Listener(Protocol):
    """Takes streams that others open."""

    @property
    def address(self) -> str:
        """Where it listens, with the port that it was given."""
        ...

    async def accept(self) -> ByteStream:
        """Wait for the next stream.

        Raises:
            ChannelUnavailable: No more can come.
        """
        ...

    async def close(self) -> None:
        """Listen no more; streams that were accepted stay."""
        ...


class Transport(Protocol):
    """Makes streams to the addresses of one scheme."""

    async def connect(self, address: str, peer: int) -> ByteStream:
        """Open a stream to the client ``peer``, whose roster entry has this address.

        Raises:
            ChannelUnavailable: Nobody answers there, or this machine cannot go there.
        """
        ...

    async def listen(self, address: str) -> Listener:
        """Take streams at an address of this machine.

        Raises:
            ChannelUnavailable: It cannot be listened at.
        """
        ...
