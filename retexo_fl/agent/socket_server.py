"""The agent's Unix socket: who may connect, message sizes, timeouts; not what answers say."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, Final

from retexo_fl.agent import wire
from retexo_fl.agent.service import Outcome
from retexo_fl.client.log_lines import line
from retexo_fl.errors import (
    AgentUnreachable,
    ClientFailed,
    ConfigurationError,
    PeerRefused,
    RemoteProtocolError,
    RetexoError,
)
from retexo_fl.plugins import plugin_failure
from retexo_fl.units import format_bytes

logger = logging.getLogger(__name__)

#: Interval of the heartbeat to a waiting caller while the agent computes.
_ALIVE_EVERY_S: Final = 2.0
#: Time for a whole question to come, and for its answer to be taken.
_PATIENCE_S: Final = 30.0
_MOST_CONNECTIONS: Final = 64
#: Of each connection, twice this before anything is read of it.
_BUFFER_BYTES: Final = 2**18
#: Heads up to this length, such as the owner's ``status``, are read however full the memory is.
_FREE_BYTES: Final = 2**16
_CREDENTIALS: Final = struct.Struct("3i")

Expecter = Callable[[wire.Announcement], None]
Answerer = Callable[[wire.Request], Awaitable[Outcome]]
Controller = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]


class _Room:
    """Memory for questions that have come and are not answered yet, over all connections."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._taken = 0
        self._freed = asyncio.Event()

    async def take(self, size: int, *, within_s: float) -> Callable[[], None]:
        """Wait until there is room; return what gives it back.

        Raises:
            ConfigurationError: There never is.
            AgentUnreachable: There was none in time.
        """
        if size > self._most:
            raise ConfigurationError(
                f"a message of {format_bytes(size)}; expected at most {format_bytes(self._most)} "
                "(most-memory-mib in this client's agent.toml, less what the process itself takes)"
            )
        try:
            async with asyncio.timeout(within_s):
                while self._taken + size > self._most:
                    self._freed.clear()
                    await self._freed.wait()
        except TimeoutError as error:
            raise AgentUnreachable(
                f"messages of {format_bytes(self._taken)} are being answered; expected at most "
                f"{format_bytes(self._most)} with this one (most-memory-mib in this client's "
                "agent.toml); retry later"
            ) from error
        self._taken += size
        return lambda: self._give(size)

    def _give(self, size: int) -> None:
        self._taken -= size
        self._freed.set()


class SocketServer:
    """Takes one question from each connection.

    Args:
        path: Of the socket; its folder is made if needed, for its owner only.
        answer: Answers a request to a client.
        control: Answers a question about the agent.
        expect: Raises by name what is not to be answered, before its body is read.
        most_bytes: Of all questions together that are read or answered.
        patience_s: Time for a question to come.
    """

    def __init__(
        self,
        path: Path,
        answer: Answerer,
        control: Controller,
        *,
        expect: Expecter,
        most_bytes: int,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        self._path = path
        self._answer = answer
        self._control = control
        self._expect = expect
        self._room = _Room(most_bytes)
        self._patience_s = patience_s
        self._open = 0
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen.

        Raises:
            ConfigurationError: Another agent answers there, or the socket cannot be made.
        """
        listening = _bound(self._path)
        self._server = await asyncio.start_unix_server(
            self._serve, sock=listening, limit=_BUFFER_BYTES
        )

    def close(self) -> None:
        """Take no more questions."""
        if self._server is not None:
            self._server.close()

    def remove(self) -> None:
        """Remove the socket, if it was made."""
        if self._server is not None:
            self._path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            # A caller that disconnected gets no answer; nor does any when the agent stops, whose
            # loop would log a cancelled conversation as an error.
            with suppress(
                ConnectionError, asyncio.IncompleteReadError, TimeoutError, asyncio.CancelledError
            ):
                await self._converse(reader, writer)
        finally:
            self._open -= 1
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        told = None
        try:
            self._check_asker(writer)
            parts, told = await self._reply(reader, writer)
        except RetexoError as error:
            logger.warning(line("refused", name=type(error).__name__, reason=str(error)))
            parts = wire.encode_failure(error)
            _let_go(error)
        await self._write(writer, parts)
        if told is not None:
            told()

    async def _reply(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[wire.Parts, Callable[[], None] | None]:
        """Return an answer, and what logs it once it has gone; of the question nothing stays."""
        with ExitStack() as held:
            asked = await self._read(reader, held)
            if not isinstance(asked, wire.Request):
                return wire.encode_control(await self._control(asked)), None
            begun = time.perf_counter()
            # Its memory is taken until it is answered, whether its caller waits or not.
            outcome = await self._outcome(asked, writer, held.pop_all())
            return outcome.parts, _logs(asked, outcome, begun)

    def _check_asker(self, writer: asyncio.StreamWriter) -> None:
        credentials = writer.get_extra_info("socket").getsockopt(
            socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size
        )
        _, uid, _ = _CREDENTIALS.unpack(credentials)
        if uid not in {0, os.getuid()}:
            raise PeerRefused(
                f"user {uid} may not use this agent; expected user {os.getuid()} or root"
            )
        if self._open > _MOST_CONNECTIONS:
            raise AgentUnreachable(
                f"{self._path}: {_MOST_CONNECTIONS} requests are open; retry later"
            )

    async def _read(
        self, reader: asyncio.StreamReader, held: ExitStack
    ) -> wire.Request | Mapping[str, Any]:
        """Read a question; ``held`` gives back the memory that it takes."""
        try:
            async with asyncio.timeout(self._patience_s):
                prefix = wire.Prefix.parse(await reader.readexactly(wire.PREFIX_BYTES))
                if prefix.kind not in {wire.Kind.REQUEST, wire.Kind.CONTROL}:
                    raise RemoteProtocolError(f"got {prefix.kind.name}; expected a request")
                if prefix.head_bytes > _FREE_BYTES:
                    await self._take(prefix.head_bytes, held)
                head = await reader.readexactly(prefix.head_bytes)
                if prefix.kind is wire.Kind.CONTROL:
                    return wire.decode_control(head)
                return await self._read_body(reader, head, prefix.body_bytes, held)
        except TimeoutError as error:
            raise RemoteProtocolError(
                f"no complete request within {self._patience_s:g} s of connecting"
            ) from error

    async def _read_body(
        self, reader: asyncio.StreamReader, head: bytes, size: int, held: ExitStack
    ) -> wire.Request:
        announced = wire.announced(head, size)
        self._expect(announced)
        await self._take(size, held)
        body, filled = memoryview(bytearray(size)), 0
        while filled < size:
            piece = await reader.read(min(_BUFFER_BYTES, size - filled))
            if not piece:
                raise ConnectionResetError("the connection was closed")
            body[filled : filled + len(piece)] = piece
            filled += len(piece)
        return announced.with_body(body.toreadonly())

    async def _take(self, size: int, held: ExitStack) -> None:
        held.callback(await self._room.take(size, within_s=self._patience_s / 2))

    async def _outcome(
        self, request: wire.Request, writer: asyncio.StreamWriter, held: ExitStack
    ) -> Outcome:
        """Wait for the answer, sending heartbeats meanwhile."""
        task = asyncio.ensure_future(self._answer(request))
        task.add_done_callback(lambda done: held.close())
        # The caller may disconnect; asyncio would log an exception that is never read.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        while not (await asyncio.wait({task}, timeout=_ALIVE_EVERY_S))[0]:
            writer.write(wire.ALIVE)
            await writer.drain()
        error = task.exception()
        if error is not None and not isinstance(error, RetexoError):
            logger.error(line("bug", message=request.message), exc_info=error)
            # Its text stays in the log: it may hold what the owner's files do.
            raise plugin_failure(error, tells_text=False) or ClientFailed(
                f"{type(error).__name__} in the agent, which is a bug of retexo-fl; see its log"
            ) from error
        return task.result()

    async def _write(self, writer: asyncio.StreamWriter, parts: wire.Parts) -> None:
        async with asyncio.timeout(self._patience_s):
            for part in parts:
                writer.write(part)
                await writer.drain()


def _let_go(error: BaseException | None) -> None:
    """Empty the frames that an error came through.

    They hold the question, and the error, which futures of theirs hold, holds them.
    """
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _logs(request: wire.Request, outcome: Outcome, begun: float) -> Callable[[], None]:
    ticket, message = request.ticket, request.message

    def log() -> None:
        logger.info(
            line(
                "answered",
                job=ticket.job,
                attempt=ticket.attempt,
                stage=ticket.stage,
                round=ticket.round,
                message=message,
                compute_s=outcome.compute_s,
                wait_s=outcome.wait_s,
                total_s=time.perf_counter() - begun,
            )
        )

    return log


def _bound(path: Path) -> socket.socket:
    """Return a socket at ``path`` that only this user may connect to; a dead one is replaced."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.is_socket():
            if _answers(path):
                raise ConfigurationError(f"socket: another agent answers at {path}; stop it first")
            path.unlink()
        return listening_at(path)
    except OSError as error:
        raise ConfigurationError(f"socket: {path} cannot be made ({error.strerror})") from error


def listening_at(path: Path) -> socket.socket:
    """Return a socket that only this user may connect to, at a path where nothing is.

    Raises:
        OSError: It cannot be made there.
    """
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Linux makes the socket with this mode at once; a umask would be that of all threads.
        os.fchmod(stream.fileno(), 0o600)
        stream.bind(str(path))
    except OSError:
        stream.close()
        raise
    return stream


def _answers(path: Path) -> bool:
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except TimeoutError:
            return True
        return True
