"""TCP as a transport: sockets of the event loop, nothing more; TLS and links come above it."""

from __future__ import annotations

import asyncio
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Final

from retexo_fl.channels.addresses import TcpAddress, parse_tcp, why_not_bound
from retexo_fl.channels.streams import ByteStream, Listener, WireCounters
from retexo_fl.channels.transports.tcp_info import tcp_wire_counters
from retexo_fl.errors import ChannelClosed, ChannelUnavailable
from retexo_fl.exchange.frames import Buffer

#: Connections that wait until the loop accepts them; the system has a limit of its own.
_BACKLOG: Final = 1024
#: A peer that vanished is noticed by the link's own pings; these help where there are none.
_KEEPALIVE_S: Final = 60
_USER_TIMEOUT_MS: Final = 120_000
#: How long the last bytes of both ends may take when a stream is closed.
_LINGER_S: Final = 1.0
#: Looking up a name cannot be stopped and may take half a minute: it must not take the threads
#: that keep the blocks of others.
_LOOK_UPS: Final = ThreadPoolExecutor(4, thread_name_prefix="names")
_NOT_TOLD: Final = WireCounters(sent_bytes=None, received_bytes=None)


class TcpStream:
    """One TCP connection.

    Args:
        connection: Connected and non-blocking.
        is_accepting: Whether the other end opened it.
    """

    channel = "tcp"

    def __init__(self, connection: socket.socket, *, is_accepting: bool) -> None:
        self._socket = connection
        self._is_accepting = is_accepting
        self._counters = _NOT_TOLD
        self._is_closed = False
        self._remote = _written(connection.getpeername())
        _set_options(connection)

    @property
    def remote(self) -> str:
        """See :class:`~retexo_fl.channels.streams.ByteStream`."""
        return self._remote

    async def read(self, max_bytes: int) -> bytes:
        """See :class:`~retexo_fl.channels.streams.ByteStream`."""
        try:
            return await asyncio.get_running_loop().sock_recv(self._socket, max_bytes)
        except OSError as error:
            raise self._broken(error) from error

    async def write(self, data: Buffer) -> None:
        """See :class:`~retexo_fl.channels.streams.ByteStream`."""
        try:
            await asyncio.get_running_loop().sock_sendall(self._socket, data)
        except OSError as error:
            raise self._broken(error) from error

    async def close(self) -> None:
        """See :class:`~retexo_fl.channels.streams.ByteStream`."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            with suppress(OSError, TimeoutError):
                self._socket.shutdown(socket.SHUT_WR)
                async with asyncio.timeout(_LINGER_S):
                    while await asyncio.get_running_loop().sock_recv(self._socket, 2**16):
                        # What is there is read at once: who never stops sending would stop all.
                        await asyncio.sleep(0)
        finally:
            self._counters = self._read_counters()
            self._socket.close()

    def wire_counters(self) -> WireCounters:
        """See :class:`~retexo_fl.channels.streams.ByteStream`."""
        return self._counters if self._is_closed else self._read_counters()

    def _read_counters(self) -> WireCounters:
        return tcp_wire_counters(self._socket, is_accepting=self._is_accepting) or _NOT_TOLD

    def _broken(self, error: OSError) -> ChannelClosed:
        return ChannelClosed(f"tcp {self._remote}: {error.strerror or error}")


class TcpListener:
    """A listening socket.

    Args:
        listening: Bound, listening and non-blocking.
    """

    def __init__(self, listening: socket.socket) -> None:
        self._socket = listening
        self._address = _written(listening.getsockname())

    @property
    def address(self) -> str:
        """See :class:`~retexo_fl.channels.streams.Listener`."""
        return self._address

    async def accept(self) -> ByteStream:
        """See :class:`~retexo_fl.channels.streams.Listener`."""
        while True:
            # Not by `sock_accept`: cancelled as a connection comes, it loses that, unclosed.
            try:
                connection, _ = self._socket.accept()
            except BlockingIOError:
                await self._readable()
                continue
            except ConnectionError:
                continue
            except OSError as error:
                raise ChannelUnavailable(f"{self._address}: {error.strerror or error}") from error
            try:
                return TcpStream(connection, is_accepting=True)
            except OSError:
                # The other end has disconnected again.
                connection.close()

    async def close(self) -> None:
        """See :class:`~retexo_fl.channels.streams.Listener`."""
        self._socket.close()

    async def _readable(self) -> None:
        """Wait until somebody connects."""
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(self._socket, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(self._socket)


class TcpTransport:
    """Makes TCP streams for addresses ``tcp://HOST:PORT``."""

    async def connect(self, address: str, peer: int) -> ByteStream:
        """See :class:`~retexo_fl.channels.streams.Transport`."""
        del peer
        problem = "no address"
        for family, place in await _resolve(parse_tcp(address)):
            connection = socket.socket(family, socket.SOCK_STREAM)
            try:
                connection.setblocking(False)
                await asyncio.get_running_loop().sock_connect(connection, place)
                if not _is_own_echo(connection):
                    return TcpStream(connection, is_accepting=False)
                problem = "nothing listens there"
            except OSError as error:
                # The event loop puts words of its own in place of the system's.
                problem = os.strerror(error.errno) if error.errno else str(error)
            except BaseException:
                connection.close()
                raise
            connection.close()
        raise ChannelUnavailable(f"{address}: {problem}")

    async def listen(self, address: str) -> Listener:
        """See :class:`~retexo_fl.channels.streams.Transport`."""
        family, place = (await _resolve(parse_tcp(address, least_port=0)))[0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            listening.setblocking(False)
            listening.bind(place)
            listening.listen(_BACKLOG)
        except OSError as error:
            listening.close()
            raise ChannelUnavailable(f"{address}: {why_not_bound(error)}") from error
        return TcpListener(listening)


async def _resolve(target: TcpAddress) -> list[tuple[int, tuple[object, ...]]]:
    look_up = partial(socket.getaddrinfo, target.host, target.port, type=socket.SOCK_STREAM)
    try:
        try:
            found = look_up(flags=socket.AI_NUMERICHOST)
        except socket.gaierror:
            found = await asyncio.get_running_loop().run_in_executor(_LOOK_UPS, look_up)
    except OSError as error:
        raise ChannelUnavailable(f"{target}: {error.strerror}") from error
    except UnicodeError as error:
        raise ChannelUnavailable(f"{target}: not a host name ({error})") from error
    return [(family, place) for family, _, _, _, place in found]


def _is_own_echo(connection: socket.socket) -> bool:
    """Return whether a socket met itself: a free port may go to the one that connects to it."""
    return bool(connection.getsockname() == connection.getpeername())


def _set_options(connection: socket.socket) -> None:
    connection.setblocking(False)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", _KEEPALIVE_S),
        ("TCP_KEEPINTVL", _KEEPALIVE_S // 4),
        ("TCP_USER_TIMEOUT", _USER_TIMEOUT_MS),
    ):
        # Names that not every system has.
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _written(place: tuple[object, ...]) -> str:
    host, port = str(place[0]).removeprefix("::ffff:"), int(str(place[1]))
    return str(TcpAddress(host=host, port=port))
