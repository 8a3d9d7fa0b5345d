"""Connections that have proved nothing yet: how many there may be, and TLS within a bounded time.

A listener's stream first has to say something, then finds room among those that spoke, then both
ends prove who they are, then it is welcome. A stream that this end opened is only proved.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass

from retexo_fl.channels.accounts import RefusalLog
from retexo_fl.channels.addresses import scheme_of, source_of
from retexo_fl.channels.limits import LinkLimits, loop_time_s
from retexo_fl.channels.secure_stream import SecureStream
from retexo_fl.channels.streams import ByteStream, Listener
from retexo_fl.errors import ChannelClosed, RetexoError
from retexo_fl.exchange.link.reasons import Reason, reason_of, refused

#: After the operating system had no more files to give.
_PAUSE_S = 1.0
_PIECE_BYTES = 2**14
#: A handshake of two certificates has about 3 kB; more is no handshake.
_MAX_HANDSHAKE_BYTES = 2**16


class _Silent:
    """Connections of one listener that have said nothing yet, by whence they come, oldest first.

    A client speaks as soon as it is connected. So idle connections, which cost little, displace
    each other, and take no place of those who speak.

    Args:
        most: How many.
        sent_away: Called with the source of one that goes.
    """

    def __init__(self, most: int, *, sent_away: Callable[[str], None]) -> None:
        self._most = most
        self._sent_away = sent_away
        self._by_source: defaultdict[str, list[asyncio.Task[None]]] = defaultdict(list)
        self._count = 0

    def add(self, task: asyncio.Task[None], source: str) -> None:
        if self._count >= self._most:
            fullest = max(self._by_source, key=lambda one: len(self._by_source[one]))
            oldest = self._by_source[fullest][0]
            oldest.cancel()
            self._sent_away(fullest)
            self.forget(oldest, fullest)
        self._by_source[source].append(task)
        self._count += 1
        task.add_done_callback(lambda done: self.forget(done, source))

    def forget(self, task: asyncio.Task[None], source: str) -> None:
        if task in self._by_source.get(source, ()):
            self._by_source[source].remove(task)
            self._count -= 1
            if not self._by_source[source]:
                del self._by_source[source]


class _Crowd:
    """Connections of one listener that spoke and have proved nothing: whence, and since when.

    Args:
        limits: How many, and for how long.
        clients_at: Returns how many clients of the roster are at a source address.
        sent_away: Called with the source of one that had its place for too long.
    """

    def __init__(
        self,
        limits: LinkLimits,
        *,
        clients_at: Callable[[str], int],
        sent_away: Callable[[str], None],
    ) -> None:
        self._limits = limits
        self._clients_at = clients_at
        self._sent_away = sent_away
        self._begun: dict[asyncio.Task[None], tuple[str, float]] = {}

    def add(self, task: asyncio.Task[None], source: str) -> None:
        self._begun[task] = (source, loop_time_s())
        task.add_done_callback(self.forget)

    def forget(self, task: asyncio.Task[None]) -> None:
        self._begun.pop(task, None)

    def has_room(self, source: str) -> bool:
        """Make room for one more, if need be in place of one that is there for too long."""
        each, clients = self._limits.max_unproved_each, self._clients_at(source)
        if clients:
            return self._has_room(each * clients, lambda other: other == source)
        return self._has_room(each, lambda other: other == source) and self._has_room(
            self._limits.max_unproved, lambda other: not self._clients_at(other)
        )

    def _has_room(self, most: int, counts: Callable[[str], bool]) -> bool:
        begun = {task: since for task, (source, since) in self._begun.items() if counts(source)}
        if len(begun) < most:
            return True
        oldest = min(begun, key=begun.__getitem__)
        if loop_time_s() - begun[oldest] < self._limits.patience_s:
            return False
        oldest.cancel()
        self._sent_away(self._begun[oldest][0])
        self.forget(oldest)
        return True


class Doorway:
    """Bounds the connections that are not proved yet, for each listener by itself.

    Args:
        limits: How many and for how long.
        log: Where refusals are written.
        secure: Makes the accepting end of TLS.
        welcome: Takes over a stream whose other end was proved.
    """

    def __init__(
        self,
        limits: LinkLimits,
        log: RefusalLog,
        *,
        secure: Callable[[], SecureStream],
        welcome: Callable[[Proved], Awaitable[None]],
    ) -> None:
        self._limits = limits
        self._log = log
        self._secure = secure
        self._welcome = welcome
        #: Clients of the roster by the source addresses that it names.
        self.places: Mapping[str, Set[int]] = {}
        self._met_at: dict[tuple[int, str], str] = {}
        self.refused: Counter[str] = Counter()

    async def keep(self, listener: Listener, tasks: asyncio.TaskGroup) -> None:
        """Take connections until cancelled."""
        limits = self._limits.on(scheme_of(listener.address))
        silent = _Silent(limits.max_silent, sent_away=self._crowded)
        crowd = _Crowd(limits, clients_at=self._clients_at, sent_away=self._crowded)
        while True:
            try:
                stream = await listener.accept()
            except Exception as error:
                who = listener.address.removesuffix(":")
                named = self._log.named(who, error)
                self._log.write(who, Reason.CONNECTION, str(named), loop_time_s())
                await asyncio.sleep(_PAUSE_S)
                continue
            source = source_of(stream.remote)
            serving = self._serve(stream, source, silent, crowd, limits)
            silent.add(tasks.create_task(serving), source)
            # Many may be there at once: each begins before the next, and others have their turns.
            await asyncio.sleep(0)

    async def _serve(
        self, stream: ByteStream, source: str, silent: _Silent, crowd: _Crowd, limits: LinkLimits
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            heard = await first_words(stream, within_s=limits.handshake_s)
            silent.forget(task, source)
            if not crowd.has_room(source):
                self._crowded(source)
                await _drop(stream)
                return
            crowd.add(task, source)
            within_s = limits.handshake_s
            proved = await prove(stream, self._secure(), within_s=within_s, heard=heard)
            crowd.forget(task)
            self._met_at[proved.client, stream.channel] = source
            await self._welcome(proved)
        except Exception as error:
            # Whatever a connection raises ends that connection and no other.
            who = f"stranger at {host_of(stream)}"
            named = self._log.named(who, error)
            self._refuse(who, reason_of(named), str(named))
            await stream.close()
        except asyncio.CancelledError:
            await _drop(stream)
            raise

    def _clients_at(self, source: str) -> int:
        """Count the clients whose address it is by the roster, or was when they came last."""
        here = {client for (client, _), place in self._met_at.items() if place == source}
        return len(here | self.places.get(source, frozenset()))

    def _crowded(self, source: str) -> None:
        """Count a connection that is closed so that there is room for others."""
        # Sources are many, and by relay the server's words: they share a line of the log.
        sentence = f"{source} has, or all have, too many connections before their handshake"
        self._refuse("strangers", Reason.CONNECTIONS, sentence)

    def _refuse(self, who: str, reason: Reason, sentence: str) -> None:
        self.refused[reason] += 1
        self._log.write(who, reason, sentence, loop_time_s())


async def _drop(stream: ByteStream) -> None:
    """Close a stream; nobody waits for the goodbye of one of a flood."""
    with suppress(TimeoutError):
        async with asyncio.timeout(0):
            await stream.close()


def host_of(stream: ByteStream) -> str:
    """Return the other end's machine without its port, which differs with each connection."""
    host, _, port = stream.remote.rpartition(":")
    # Other channels' addresses hold colons too, and end in no port.
    return host if stream.channel == "tcp" and port.isdecimal() else stream.remote


# ---- TLS on a fresh stream -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Proved:
    """A stream whose other end has proved who it is.

    Attributes:
        client: Who it is.
        stream: Carries TLS.
        secure: Its handshake is done.
        sent_bytes: Of the handshake; ``received_bytes`` likewise.
    """

    client: int
    stream: ByteStream
    secure: SecureStream
    sent_bytes: int
    received_bytes: int


async def prove(
    stream: ByteStream, secure: SecureStream, *, within_s: float, heard: bytes = b""
) -> Proved:
    """Do the handshake; the other end has said what was ``heard`` already.

    Raises:
        PeerRefused: It is not in the roster, or was too slow.
        ChannelClosed: The stream broke.
    """
    try:
        async with asyncio.timeout(within_s):
            return await _prove(stream, secure, heard)
    except TimeoutError as error:
        raise refused(Reason.SLOW, f"no handshake within {within_s:g} s") from error


async def first_words(stream: ByteStream, *, within_s: float) -> bytes:
    """Return what the other end says first.

    Raises:
        PeerRefused: It says nothing in time.
        ChannelClosed: The stream broke.
    """
    try:
        async with asyncio.timeout(within_s):
            return await stream.read(_PIECE_BYTES)
    except TimeoutError as error:
        raise refused(Reason.SLOW, f"no handshake within {within_s:g} s") from error


async def _prove(stream: ByteStream, secure: SecureStream, heard: bytes) -> Proved:
    if heard:
        secure.receive_data(heard)
    sent_bytes, received_bytes = 0, len(heard)
    while True:
        try:
            client = secure.handshake()
        except RetexoError:
            # OpenSSL has written an alert with the reason for the other end.
            with suppress(ChannelClosed):
                await stream.write(secure.data_to_send())
            raise
        wire = secure.data_to_send()
        await stream.write(wire)
        sent_bytes += len(wire)
        if client is not None:
            return Proved(
                client=client,
                stream=stream,
                secure=secure,
                sent_bytes=sent_bytes,
                received_bytes=received_bytes,
            )
        data = await stream.read(_PIECE_BYTES)
        received_bytes += len(data)
        if received_bytes > _MAX_HANDSHAKE_BYTES:
            raise refused(Reason.OVERSIZE, f"a handshake of over {_MAX_HANDSHAKE_BYTES} bytes")
        secure.receive_data(data)
