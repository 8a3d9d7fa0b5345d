"""RFCOMM sockets: of the standard library, or of PyBluez where Python was built without them.

RFCOMM is Bluetooth's stream of bytes between two devices; a number from 1 to 30, its channel, says
which program of a device is meant. Connecting and accepting return an ordinary socket that does
not block, so all that comes after is the same for both libraries.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum, unique
from functools import partial
from typing import Any, Final, Protocol

from retexo_fl.errors import ChannelUnavailable

#: Numbers of the kernel's interface; the socket module has names for them only where Python was
#: built with Bluetooth. Source: linux, include/linux/socket.h, include/net/bluetooth/bluetooth.h.
AF_BLUETOOTH: Final = 31
BTPROTO_RFCOMM: Final = 3
_SOL_BLUETOOTH: Final = 274
_BT_SECURITY: Final = 4

#: Binding to this address leaves the choice of the adapter to the kernel.
ANY_ADAPTER: Final = "00:00:00:00:00:00"
#: Asking for this channel gets a free one.
FREE_CHANNEL: Final = 0
_BACKLOG: Final = 8
#: While the kernel has data for a device that has just left, every program that connects or closes
#: waits too, until the kernel notices: in threads of their own, so that nothing
#: else of this process does.
_IN_THE_KERNEL: Final = ThreadPoolExecutor(8, thread_name_prefix="rfcomm")
#: How long a close is waited for.
_CLOSE_S: Final = 1.0
#: The message where this Python has no sockets, and what helps.
NO_SOCKETS: Final = "this Python was built without Bluetooth sockets"
SOCKETS_REMEDY: Final = (
    "use the system's python3, or with libbluetooth-dev installed: pip install platypush-pybluez"
)


@unique
class Security(IntEnum):
    """What the kernel demands of a link before it lets bytes pass."""

    #: No more than the other device demands.
    LOW = 1
    #: The link is authenticated by a key that both devices have, and encrypted. Devices that may
    #: make such a key without asking a person make it now: TLS, not this, proves who is there.
    MEDIUM = 2


class RawSocket(Protocol):
    """What the sockets of both libraries have in common."""

    def fileno(self) -> int:
        """Return its file descriptor."""
        ...

    def setblocking(self, flag: bool, /) -> None:
        """Choose whether calls wait."""
        ...

    def setsockopt(self, level: int, option: int, value: bytes, /) -> None:
        """Set an option."""
        ...

    def getsockopt(self, level: int, option: int, /) -> int:
        """Return an option."""
        ...

    def bind(self, address: tuple[str, int], /) -> None:
        """Take an adapter and a channel."""
        ...

    def connect_ex(self, address: tuple[str, int], /) -> int:
        """Begin to connect; return the error's number."""
        ...

    def listen(self, backlog: int, /) -> None:
        """Take connections."""
        ...

    def accept(self) -> tuple[Any, tuple[str, int]]:
        """Return the next connection and the address of its device."""
        ...

    def getsockname(self) -> tuple[str, int]:
        """Return its adapter and channel."""
        ...

    def close(self) -> None:
        """Give it back."""
        ...


class ListeningSocket:
    """Takes connections at one channel.

    Args:
        raw: Bound, listening, does not block.
    """

    def __init__(self, raw: RawSocket) -> None:
        self._raw = raw
        self.adapter, self.channel = raw.getsockname()

    async def accept(self) -> tuple[socket.socket, str]:
        """Wait for the next connection; return it and the address of its device.

        Raises:
            OSError: The system's reason; ``ConnectionError`` where the device has left again.
        """
        while True:
            try:
                raw, (device, _) = self._raw.accept()
            except OSError as error:
                if error.errno != errno.EAGAIN:
                    raise
                await _until_readable(self._raw.fileno())
                continue
            return _ordinary(raw), device.upper()

    def close(self) -> None:
        """Listen no more; what was accepted stays."""
        self._raw.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class RfcommSockets:
    """Connects and listens with the sockets of one library.

    Attributes:
        library: Its name, for a person.
        make: Returns a new socket.
    """

    library: str
    make: Callable[[], RawSocket]

    async def connect(
        self, device: str, channel: int, *, adapter: str, security: Security
    ) -> socket.socket:
        """Connect to a channel of a device.

        Without pairing it may wait as long as a person takes to agree: the caller bounds it.

        Args:
            device: Address of the other device.
            channel: 1 to 30.
            adapter: Address of the adapter here, or :data:`ANY_ADAPTER`.
            security: What the link must have.

        Raises:
            OSError: The system's reason.
        """
        raw = self._secured(security)
        try:
            if adapter != ANY_ADAPTER:
                raw.bind((adapter, 0))
            await _finish(raw, await _connected(raw, (device, channel)))
            return _ordinary(raw)
        except BaseException:
            _IN_THE_KERNEL.submit(raw.close)
            raise

    def listen(self, adapter: str, channel: int, *, security: Security) -> ListeningSocket:
        """Listen at a channel of an adapter.

        Args:
            adapter: Its address, or :data:`ANY_ADAPTER` for all. The kernel takes any address;
                no connection arrives at one that no adapter has.
            channel: 1 to 30, or :data:`FREE_CHANNEL`.
            security: What links must have.

        Raises:
            OSError: The system's reason.
        """
        raw = self._secured(security)
        try:
            raw.bind((adapter, channel))
            raw.listen(_BACKLOG)
            return ListeningSocket(raw)
        except BaseException:
            raw.close()
            raise

    def _secured(self, security: Security) -> RawSocket:
        raw = self.make()
        try:
            raw.setblocking(False)
            raw.setsockopt(_SOL_BLUETOOTH, _BT_SECURITY, struct.pack("BB", security, 0))
        except BaseException:
            raw.close()
            raise
        return raw


def rfcomm_sockets() -> RfcommSockets:
    """Return the sockets that this Python has.

    Raises:
        ChannelUnavailable: It has none; the message says how to get them.
    """
    if hasattr(socket, "AF_BLUETOOTH"):
        make = partial(socket.socket, AF_BLUETOOTH, socket.SOCK_STREAM, BTPROTO_RFCOMM)
        return RfcommSockets(library="standard library", make=make)
    try:
        import bluetooth
    except ImportError as error:
        raise ChannelUnavailable(f"{NO_SOCKETS} ({SOCKETS_REMEDY})") from error
    make_other = partial(bluetooth.BluetoothSocket, bluetooth.RFCOMM)
    return RfcommSockets(library="PyBluez", make=make_other)


async def close_socket(connection: socket.socket) -> None:
    """Close a connection. Never raises, and does not wait for the kernel beyond a moment."""
    closing = asyncio.get_running_loop().run_in_executor(_IN_THE_KERNEL, connection.close)
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(_CLOSE_S):
            await asyncio.shield(closing)


async def _connected(raw: RawSocket, place: tuple[str, int]) -> int:
    return await asyncio.get_running_loop().run_in_executor(_IN_THE_KERNEL, raw.connect_ex, place)


def _ordinary(raw: RawSocket) -> socket.socket:
    """Return a socket of the standard library for one of either library, which it replaces."""
    if isinstance(raw, socket.socket):
        connected = raw
    else:
        # A socket that exists already passes bytes with every Python.
        descriptor = os.dup(raw.fileno())
        raw.close()
        connected = socket.socket(
            AF_BLUETOOTH, socket.SOCK_STREAM, BTPROTO_RFCOMM, fileno=descriptor
        )
    connected.setblocking(False)
    return connected


async def _finish(raw: RawSocket, number: int) -> None:
    """Wait until a connection that has begun, with error ``number``, is there."""
    if number == errno.EINPROGRESS:
        await _until_writable(raw.fileno())
        number = raw.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if number:
        raise OSError(number, os.strerror(number))


async def _until_readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_reader(descriptor, _settle, ready)
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)


async def _until_writable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_writer(descriptor, _settle, ready)
    try:
        await ready
    finally:
        loop.remove_writer(descriptor)


def _settle(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
