"""Takes connections of whoever comes, and lets in who proves to be a client of the roster."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress

from retexo_fl.channels.accounts import RefusalLog
from retexo_fl.channels.addresses import scheme_of
from retexo_fl.channels.handshake import Proved, prove
from retexo_fl.channels.limits import LinkLimits
from retexo_fl.channels.patience import loop_time_s
from retexo_fl.channels.secure_stream import SecureStream
from retexo_fl.channels.streams import ByteStream, Listener
from retexo_fl.errors import ChannelUnavailable
from retexo_fl.exchange.link_reasons import Reason, reason_of

#: After the operating system had no more files to give.
_PAUSE_S = 1.0


class _Crowd:
    """Connections of one listener that have proved nothing yet, and since when they are there."""

    def __init__(self, limits: LinkLimits) -> None:
        self._limits = limits
        self._since_s: dict[asyncio.Task[None], float] = {}
        self._has_changed = asyncio.Event()

    def add(self, task: asyncio.Task[None]) -> None:
        self._since_s[task] = loop_time_s()
        task.add_done_callback(self.forget)

    def forget(self, task: asyncio.Task[None]) -> None:
        self._since_s.pop(task, None)
        self._has_changed.set()

    async def make_room(self) -> int:
        """Wait for a place; return how many lost theirs, having had it for too long."""
        num_sent_away = 0
        while len(self._since_s) >= self._limits.max_unproved:
            oldest, begun_s = min(self._since_s.items(), key=lambda item: item[1])
            wait_s = begun_s + self._limits.patience_s - loop_time_s()
            if wait_s <= 0:
                oldest.cancel()
                self.forget(oldest)
                num_sent_away += 1
                continue
            self._has_changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._has_changed.wait()
        return num_sent_away


class Doorway:
    """Bounds the connections that nobody has proved yet, for each listener by itself.

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
        self.refused: Counter[str] = Counter()

    async def keep(self, listener: Listener, tasks: asyncio.TaskGroup) -> None:
        """Take connections until cancelled."""
        limits = self._limits.on(scheme_of(listener.address))
        crowd = _Crowd(limits)
        while True:
            for _ in range(await crowd.make_room()):
                crowded = f"over {limits.max_unproved} have proved nothing yet"
                self._refuse("strangers", Reason.CONNECTIONS, f"{crowded}, the oldest is closed")
            try:
                stream = await listener.accept()
            except ChannelUnavailable as error:
                who = listener.address.removesuffix(":")
                self._log.write(who, Reason.CONNECTION, str(error), loop_time_s())
                await asyncio.sleep(_PAUSE_S)
                continue
            crowd.add(tasks.create_task(self._serve(stream, crowd, limits)))

    async def _serve(self, stream: ByteStream, crowd: _Crowd, limits: LinkLimits) -> None:
        try:
            proved = await prove(stream, self._secure(), within_s=limits.handshake_s)
            task = asyncio.current_task()
            if task is not None:
                crowd.forget(task)
            await self._welcome(proved)
        except Exception as error:
            # Whatever a connection raises ends that connection and no other.
            who = f"stranger at {host_of(stream)}"
            named = self._log.named(who, error)
            self._refuse(who, reason_of(named), str(named))
            await stream.close()
        except asyncio.CancelledError:
            await stream.close()
            raise

    def _refuse(self, who: str, reason: Reason, sentence: str) -> None:
        self.refused[reason] += 1
        self._log.write(who, reason, sentence, loop_time_s())


def host_of(stream: ByteStream) -> str:
    """Return the other end's machine without its port, which differs with each connection."""
    host, _, port = stream.remote.rpartition(":")
    # Other channels' addresses hold colons too, and end in no port.
    return host if stream.channel == "tcp" and port.isdecimal() else stream.remote
