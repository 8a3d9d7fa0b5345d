"""Counts Flower's traffic: a forwarder between this machine's SuperNode and the SuperLink.

Bytes pass untouched, so TLS stays between SuperNode and SuperLink.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from retexo_fl.agent.request_times import RequestTimes
from retexo_fl.channels.addresses import TcpAddress, why_not_bound
from retexo_fl.channels.transports.tcp_info import tcp_wire_counters
from retexo_fl.client.log_lines import line
from retexo_fl.errors import ChannelUnavailable

logger = logging.getLogger(__name__)

_CHUNK_BYTES: Final = 2**16
_CONNECT_S: Final = 10.0
_MOST_CONNECTIONS: Final = 64


@dataclass(slots=True)
class MeteredBytes:
    """What passed in one direction.

    Attributes:
        payload: Bytes of the stream.
        wire: With TCP and IP headers, of connections that have ended.
    """

    payload: int = 0
    wire: int = 0


class Meter:
    """Forwards connections.

    Args:
        listen: Host and port that the SuperNode connects to.
        superlink: Host and port of the SuperLink.

    Attributes:
        up: What went to the SuperLink; ``down`` what came from it.
        times: How long its requests took.
    """

    def __init__(self, listen: tuple[str, int], superlink: tuple[str, int]) -> None:
        self._listen = listen
        self._superlink = superlink
        self._open: set[socket.socket] = set()
        self.up, self.down = MeteredBytes(), MeteredBytes()
        self.times = RequestTimes()

    async def run(self, ready: asyncio.Event) -> None:
        """Forward until cancelled.

        Raises:
            ChannelUnavailable: The address cannot be listened on.
        """
        host, port = self._listen
        try:
            server = await asyncio.start_server(self._serve, host, port, limit=_CHUNK_BYTES)
        except OSError as error:
            raise ChannelUnavailable(
                f"meter: {TcpAddress(host=host, port=port)}: {why_not_bound(error)}"
            ) from error
        async with server:
            ready.set()
            await server.serve_forever()

    def totals(self) -> dict[str, dict[str, int | float]]:
        """Return the bytes up and down, those of open connections included, and ``time``.

        ``time`` has the attributes of :class:`~retexo_fl.agent.request_times.RequestTimes`.
        """
        times = self.times
        times.settle(time.monotonic())
        found: dict[str, dict[str, int | float]] = {
            "time": {
                "messages_s": round(times.messages_s, 6),
                "requests": times.requests,
                "connections": times.connections,
                "polls": times.polls,
                "polls_s": round(times.polls_s, 6),
            },
            "up": {"payload": self.up.payload, "wire": self.up.wire},
            "down": {"payload": self.down.payload, "wire": self.down.wire},
        }
        for stream in self._open:
            sent, received = _wire_bytes(stream)
            found["up"]["wire"] += sent
            found["down"]["wire"] += received
        return found

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if len(self._open) < _MOST_CONNECTIONS:
                await self._forward(reader, writer)
        finally:
            writer.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = self._superlink
        watched = self.times.connection(time.monotonic())
        try:
            async with asyncio.timeout(_CONNECT_S):
                inward, outward = await asyncio.open_connection(host, port, limit=_CHUNK_BYTES)
        except (OSError, TimeoutError) as error:
            logger.warning(line("superlink", address=f"{host}:{port}", unreachable=str(error)))
            watched.end()
            return
        stream: socket.socket = outward.get_extra_info("socket")
        self._open.add(stream)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(_pump(reader, outward, self.up, watched.up))
                both.create_task(_pump(inward, writer, self.down, watched.down))
        finally:
            watched.end()
            self._open.discard(stream)
            sent, received = _wire_bytes(stream)
            self.up.wire += sent
            self.down.wire += received
            outward.close()


def _wire_bytes(stream: socket.socket) -> tuple[int, int]:
    """Return what a connection sent and received, with headers; zeros where that is unknown."""
    counted = tcp_wire_counters(stream, is_accepting=False)
    if counted is None:
        return 0, 0
    return counted.sent_bytes or 0, counted.received_bytes or 0


async def _pump(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    passed: MeteredBytes,
    noted: Callable[[int, float], None],
) -> None:
    """Forward one direction until it ends; then say so to the other side."""
    # A connection that breaks ends its direction; the other one ends with it.
    with suppress(OSError):
        while chunk := await reader.read(_CHUNK_BYTES):
            noted(len(chunk), time.monotonic())
            writer.write(chunk)
            await writer.drain()
            passed.payload += len(chunk)
    with suppress(OSError):
        writer.write_eof()
