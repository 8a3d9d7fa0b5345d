"""Answers those who watch an agent, by HTTP: ``/health``, ``/ready`` and ``/metrics``.

It runs in the event loop, so ``/health`` says that the loop turns. Nobody who asks can hold up a
training: requests are short, few at a time and have a few seconds, an answer is made once a second
at most, and a reader that does not take it is cut off.
"""

from __future__ import annotations

import asyncio
import http
import logging
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from retexo_fl.agent.settings import is_path
from retexo_fl.agent.socket_server import listening_at
from retexo_fl.channels.addresses import why_not_bound
from retexo_fl.client.log_lines import line
from retexo_fl.errors import ChannelUnavailable
from retexo_fl.server_address import host_and_port

logger = logging.getLogger(__name__)

#: For a request to come and its answer to be taken.
_PATIENCE_S: Final = 5.0
_MOST_CONNECTIONS: Final = 8
#: Of a request's head; it has no body.
_REQUEST_BYTES: Final = 4096
_FRESH_S: Final = 1.0
#: Of Prometheus' text format.
_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(slots=True, kw_only=True)
class Watching:
    """Serves until it is cancelled.

    Attributes:
        place: ``HOST:PORT``, or the path of a Unix socket.
        why_not_ready: Returns why the agent cannot take part; empty if it can.
        metrics: Returns all figures, in Prometheus' text format.
        patience_s: For a whole conversation.
    """

    place: str
    why_not_ready: Callable[[], str]
    metrics: Callable[[], bytes]
    patience_s: float = _PATIENCE_S
    _open: int = field(default=0, init=False)
    _made: dict[bytes, tuple[float, bytes]] = field(default_factory=dict, init=False)

    async def run(self, ready: asyncio.Event) -> None:
        """Serve; ``ready`` is set when it listens.

        Raises:
            ChannelUnavailable: The place cannot be listened at.
        """
        try:
            server = await self._listen()
        except OSError as error:
            raise ChannelUnavailable(f"metrics: {self.place}: {why_not_bound(error)}") from error
        try:
            async with server:
                ready.set()
                await server.serve_forever()
        finally:
            if is_path(self.place):
                Path(self.place).unlink(missing_ok=True)

    async def _listen(self) -> asyncio.Server:
        if is_path(self.place):
            path = Path(self.place)
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Whoever owns the state folder is the only agent with these settings.
            if path.is_socket():
                path.unlink()
            stream = listening_at(path)
            return await asyncio.start_unix_server(self._serve, sock=stream, limit=_REQUEST_BYTES)
        host, port = host_and_port(self.place, "metrics")
        server = await asyncio.start_server(self._serve, host, port, limit=_REQUEST_BYTES)
        if not all(_is_local(listening) for listening in server.sockets):
            logger.warning(line("metrics", listen=self.place, readers="whoever reaches it"))
        return server

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= _MOST_CONNECTIONS:
                with suppress(ConnectionError, TimeoutError, asyncio.CancelledError):
                    async with asyncio.timeout(self.patience_s):
                        # So that all of it is taken before the conversation is over.
                        writer.transport.set_write_buffer_limits(0)
                        writer.write(await self._reply(reader))
                        await writer.drain()
                        return
            writer.transport.abort()
        finally:
            self._open -= 1
            writer.close()

    async def _reply(self, reader: asyncio.StreamReader) -> bytes:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return _response(http.HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, b"too long\n")
        except asyncio.IncompleteReadError as error:
            raise ConnectionResetError from error
        method, _, rest = head.split(b"\r\n", 1)[0].partition(b" ")
        path, _, version = rest.partition(b" ")
        if not version.startswith(b"HTTP/1."):
            return _response(http.HTTPStatus.BAD_REQUEST, b"expected HTTP/1.1\n")
        if method not in {b"GET", b"HEAD"}:
            return _response(http.HTTPStatus.METHOD_NOT_ALLOWED, b"expected GET\n")
        response = self._page(path.partition(b"?")[0])
        return response if method == b"GET" else response.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"

    def _page(self, path: bytes) -> bytes:
        match path:
            case b"/health":
                return _response(http.HTTPStatus.OK, b"ok\n")
            case b"/ready":
                return self._fresh(path, self._readiness)
            case b"/metrics":
                return self._fresh(path, self._figures)
        return _response(http.HTTPStatus.NOT_FOUND, b"expected /health, /ready or /metrics\n")

    def _readiness(self) -> bytes:
        if reason := self.why_not_ready():
            return _response(http.HTTPStatus.SERVICE_UNAVAILABLE, f"{reason}\n".encode())
        return _response(http.HTTPStatus.OK, b"ok\n")

    def _figures(self) -> bytes:
        return _response(http.HTTPStatus.OK, self.metrics(), kind=_TEXT)

    def _fresh(self, path: bytes, make: Callable[[], bytes]) -> bytes:
        """Return an answer that was made within the last second, or a new one."""
        made_at, answer = self._made.get(path, (float("-inf"), b""))
        if time.monotonic() - made_at > _FRESH_S:
            answer = make()
            self._made[path] = time.monotonic(), answer
        return answer


def _is_local(listening: socket.socket) -> bool:
    host = str(listening.getsockname()[0])
    return host == "::1" or host.startswith("127.")


def _response(status: http.HTTPStatus, body: bytes, *, kind: str = "text/plain") -> bytes:
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode("ascii") + body
