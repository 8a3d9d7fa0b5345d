"""Streams and listeners over RFCOMM, for both Bluetooth libraries."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Final

from retexo_fl.additions.bluetooth.sockets import ANY_ADAPTER, ListeningSocket, close_socket
from retexo_fl.channels.addresses import BluetoothAddress
from retexo_fl.channels.streams import ByteStream, WireCounters
from retexo_fl.errors import ChannelClosed, ChannelUnavailable
from retexo_fl.exchange.frames import Buffer

if TYPE_CHECKING:
    from retexo_fl.additions.bluetooth.directory import Publication

#: The kernel takes so much at once on any link.
_CHUNK_BYTES: Final = 4096
_NOT_TOLD: Final = WireCounters(sent_bytes=None, received_bytes=None)


class RfcommStream:
    """One connection to a device.

    Args:
        connection: Connected and non-blocking.
        remote: Where its other end is.
    """

    channel = "bluetooth"

    def __init__(self, connection: socket.socket, remote: str) -> None:
        self._socket = connection
        self._remote = remote
        self._has_ended = False

    @property
    def remote(self) -> str:
        """See :class:`~retexo_fl.channels.streams.ByteStream`."""
        return self._remote

    async def read(self, max_bytes: int) -> bytes:
        """See :class:`~retexo_fl.channels.streams.ByteStream`."""
        if self._has_ended:
            return b""
        try:
            data = await asyncio.get_running_loop().sock_recv(self._socket, max_bytes)
        except ConnectionResetError:
            # The kernel reports this once, for a closed stream as for a broken one: the caller
            # knows which by the goodbye. Later reads would wait for ever.
            data = b""
        except OSError as error:
            self._has_ended = True
            raise self._broken(error) from error
        self._has_ended = not data
        return data

    async def write(self, data: Buffer) -> None:
        """See :class:`~retexo_fl.channels.streams.ByteStream`."""
        loop, view = asyncio.get_running_loop(), memoryview(data)
        try:
            for start in range(0, len(view), _CHUNK_BYTES):
                await loop.sock_sendall(self._socket, view[start : start + _CHUNK_BYTES])
        except OSError as error:
            self._has_ended = True
            raise self._broken(error) from error

    async def close(self) -> None:
        """See :class:`~retexo_fl.channels.streams.ByteStream`.

        The kernel sends what was written, then the end; there is no end of one direction.
        """
        self._has_ended = True
        await close_socket(self._socket)

    def wire_counters(self) -> WireCounters:
        """Return that the kernel does not count a stream's bytes on the air."""
        return _NOT_TOLD

    def _broken(self, error: OSError) -> ChannelClosed:
        return ChannelClosed(f"{self._remote}: {error.strerror or error}")


class RfcommListener:
    """A listening socket.

    Args:
        listening: Takes the connections.
    """

    def __init__(self, listening: ListeningSocket) -> None:
        self._listening = listening
        adapter = "" if listening.adapter == ANY_ADAPTER else listening.adapter
        self._address = str(BluetoothAddress(adapter=adapter, channel=listening.channel))

    @property
    def address(self) -> str:
        """See :class:`~retexo_fl.channels.streams.Listener`."""
        return self._address

    async def accept(self) -> ByteStream:
        """See :class:`~retexo_fl.channels.streams.Listener`."""
        while True:
            try:
                connection, device = await self._listening.accept()
            except ConnectionError:
                continue
            except OSError as error:
                raise ChannelUnavailable(f"{self._address}: {error.strerror or error}") from error
            remote = BluetoothAddress(adapter=device, channel=None)
            return RfcommStream(connection, str(remote))

    async def close(self) -> None:
        """See :class:`~retexo_fl.channels.streams.Listener`."""
        self._listening.close()


class PublishedListener:
    """A listener whose channel other devices can look up.

    Args:
        listener: Listens at it.
        publication: Its record in the directory for others.
    """

    def __init__(self, listener: RfcommListener, publication: Publication) -> None:
        self._listener = listener
        self._publication = publication

    @property
    def address(self) -> str:
        """See :class:`~retexo_fl.channels.streams.Listener`."""
        return self._listener.address

    async def accept(self) -> ByteStream:
        """See :class:`~retexo_fl.channels.streams.Listener`."""
        return await self._listener.accept()

    async def close(self) -> None:
        """See :class:`~retexo_fl.channels.streams.Listener`."""
        await self._listener.close()
        await self._publication.close()
