"""One link that runs: a stream, TLS and the link protocol above it, the depot at its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from retexo_fl.channels.accounts import PeerAccount
from retexo_fl.channels.depot import BlockDepot
from retexo_fl.channels.limits import LinkLimits
from retexo_fl.channels.link_blocks import LinkBlocks
from retexo_fl.channels.patience import Holds, loop_time_s
from retexo_fl.channels.secure_stream import SecureStream
from retexo_fl.channels.streams import ByteStream
from retexo_fl.errors import ChannelClosed, ChannelTimedOut, RetexoError
from retexo_fl.exchange.link.events import PeerGreeted, PeerLeft
from retexo_fl.exchange.link.reasons import Reason
from retexo_fl.exchange.link.session import LinkSession

#: How long a goodbye may take.
_GOODBYE_S: Final = 1.0
#: Reason that a client gives when it has no use for the link.
_IDLE: Final = "nothing is owed any more"
#: Reason sent to a peer for an error that has no name.
_FAULT: Final = "an error inside the agent"
#: No sign of life is longer.
_SIGN_OF_LIFE_BYTES: Final = 64
#: Where links may be idle for ever.
_LONGEST_SLEEP_S: Final = 3600.0


class PeerLink:
    """One end of a link to a peer that TLS has proved.

    Args:
        stream: Carries TLS.
        secure: Its handshake is done.
        depot: This client's blocks.
        account: Where everything is counted.
        holds: What the peer refused.
        limits: What the peer is granted.
        told: Called with what was refused.
    """

    def __init__(
        self,
        stream: ByteStream,
        secure: SecureStream,
        depot: BlockDepot,
        *,
        account: PeerAccount,
        holds: Holds,
        limits: LinkLimits,
        told: Callable[[Reason, str], None],
    ) -> None:
        self.stream = stream
        self.begun_s = loop_time_s()
        self._secure = secure
        self._limits = limits
        self._account = account
        self._counters = account.channels[stream.channel]
        self._session = LinkSession(
            client=depot.client, peer=account.client, limits=limits.session, now_s=self.begun_s
        )
        self._woken = asyncio.Event()
        self._blocks = LinkBlocks(
            self._session,
            account.client,
            depot,
            holds=holds,
            counters=self._counters,
            told=told,
            said=self._woken.set,
        )
        self._stale_at_s = float("inf")
        self.ended = asyncio.Event()
        self._leaving = asyncio.Event()
        self._goodbye = ""
        self._busy_at_s = self.begun_s
        #: Whether it ended because one of both ends had no use for it.
        self.ended_idle = False

    @property
    def has_greeted(self) -> bool:
        """Whether the peer's greeting has come."""
        return self._session.has_greeted

    def wake(self) -> None:
        """Look at the depot again; called in the thread of the event loop."""
        self._blocks.is_stale = True
        self._woken.set()

    async def run(self) -> None:
        """Exchange blocks until the link ends; does not close the stream.

        Raises:
            ChannelError: Why it ended: broken, silent, or the peer was refused.
            RemoteProtocolError: The peer broke the protocol.
        """
        self._account.channel = self.stream.channel
        parts = (self._read, self._write, self._blocks.keep_frames, self._leave, self._rest)
        tasks = [asyncio.create_task(part()) for part in parts]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except Exception as error:
            named = isinstance(error, RetexoError)
            self._goodbye = self._goodbye or (str(error) if named else _FAULT)
            raise
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._say_goodbye()

    async def leave(self, reason: str) -> None:
        """End the link and wait until its stream is closed."""
        self._goodbye = reason
        self._leaving.set()
        await self.ended.wait()

    # ---- inside -----------------------------------------------------------------------------

    async def _leave(self) -> None:
        await self._leaving.wait()
        raise ChannelClosed(self._goodbye)

    async def _rest(self) -> None:
        """Return once the link has been idle for its limit."""
        while True:
            left_s = self._busy_at_s + self._limits.idle_s - loop_time_s()
            if self._blocks.is_needed:
                left_s = max(left_s, self._limits.idle_s)
            if left_s <= 0:
                self._goodbye, self.ended_idle = _IDLE, True
                return
            await asyncio.sleep(min(left_s, _LONGEST_SLEEP_S))

    async def _read(self) -> None:
        while not self.ended_idle:
            data = self._secure.read()
            if data is None:
                wire = await self.stream.read(self._limits.piece_bytes)
                self._counters.tls_bytes_received += len(wire)
                if len(wire) > _SIGN_OF_LIFE_BYTES:
                    # A part of a frame, which may take minutes.
                    self._busy_at_s = loop_time_s()
                self._secure.receive_data(wire)
                continue
            if not data:
                raise ChannelClosed(f"client {self._account.client} closed the link")
            self._counters.link_bytes_received += len(data)
            self._counters.last_met_unix_s = self._account.wall_clock()
            self._session.receive_data(data, loop_time_s())
            await self._take_events()
            # Bytes that are there are read at once: who never stops sending would stop all others.
            await asyncio.sleep(0)

    async def _take_events(self) -> None:
        while True:
            now_s = loop_time_s()
            event = self._session.next_event(now_s)
            self._woken.set()
            match event:
                case None:
                    return
                case PeerLeft(reason=reason) if reason == _IDLE:
                    self.ended_idle = True
                    return
                case PeerLeft():
                    raise ChannelClosed(
                        f"client {self._account.client} closed the link: {event.reason}"
                    )
                case PeerGreeted():
                    self._counters.links += 1
                case _:
                    self._busy_at_s = now_s
                    await self._blocks.take(event, now_s)
                    self._blocks.is_stale |= self._blocks.is_news(event)

    async def _write(self) -> None:
        while True:
            self._woken.clear()
            now_s = loop_time_s()
            self._session.check_time(now_s)
            is_stale = self._blocks.is_stale or now_s >= self._stale_at_s
            if self._session.has_greeted and is_stale:
                self._stale_at_s = self._blocks.bring_up_to_date(now_s)
            if await self._send_piece(now_s):
                continue
            if await self._blocks.load_frame():
                self._busy_at_s = loop_time_s()
                continue
            wait_s = min(self._session.next_deadline_s(), self._stale_at_s) - loop_time_s()
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, wait_s)):
                    await self._woken.wait()

    async def _send_piece(self, now_s: float) -> bool:
        """Send what the session has to send; return False if it has nothing."""
        left_bytes = self._limits.piece_bytes
        while left_bytes and (data := self._session.data_to_send(left_bytes, now_s)):
            self._secure.write(data)
            self._counters.link_bytes_sent += len(data)
            left_bytes -= len(data)
        wire = self._secure.data_to_send()
        if not wire:
            return False
        try:
            async with asyncio.timeout(self._limits.stall_s):
                await self.stream.write(wire)
        except TimeoutError as error:
            raise ChannelTimedOut(
                f"client {self._account.client} read nothing for {self._limits.stall_s:g} s"
            ) from error
        self._counters.tls_bytes_sent += len(wire)
        return True

    async def _say_goodbye(self) -> None:
        """Send the peer the reason, if it still reads."""
        with suppress(RetexoError, TimeoutError):
            async with asyncio.timeout(_GOODBYE_S):
                self._session.leave(self._goodbye or "the agent stops")
                while data := self._session.data_to_send(2**16, loop_time_s()):
                    self._secure.write(data)
                    self._counters.link_bytes_sent += len(data)
                self._secure.close()
                wire = self._secure.data_to_send()
                await self.stream.write(wire)
                self._counters.tls_bytes_sent += len(wire)
