"""One link that runs: a stream, TLS and the link protocol above it, the depot at its end.

Five tasks share it: one reads and takes events, one writes, one keeps frames that came, one waits
for word to leave, one ends the link when it has been idle for long. What is done about blocks, of
this end and of the peer, is in :class:`LinkBlocks`: it offers those to send, answers offers, keeps
what comes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

from retexo_fl.channels.accounts import ChannelCounters, PeerAccount
from retexo_fl.channels.base import BlockKey
from retexo_fl.channels.depot import BlockDepot
from retexo_fl.channels.limits import Holds, LinkLimits, loop_time_s
from retexo_fl.channels.secure_stream import SecureStream
from retexo_fl.channels.streams import ByteStream
from retexo_fl.errors import (
    ChannelClosed,
    ChannelTimedOut,
    ChannelUnavailable,
    PartitionError,
    PeerRefused,
    RemoteProtocolError,
    RetexoError,
)
from retexo_fl.exchange.link.events import (
    BlockAsked,
    BlockDelivered,
    BlockOffered,
    BlockRefused,
    BlockWanted,
    FrameArrived,
    JobAdmitted,
    LinkEvent,
    PeerGreeted,
    PeerLeft,
)
from retexo_fl.exchange.link.messages import RefusalCode
from retexo_fl.exchange.link.reasons import Reason, reason_of, refused
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
        on_refusal: Called with what was refused.
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
        on_refusal: Callable[[Reason, str], None],
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
            on_refusal=on_refusal,
            on_message=self._woken.set,
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


# ---- blocks of both ends -------------------------------------------------------------------------

T = TypeVar("T")

#: Less work than this is done at once: handing it to a thread would cost more.
_SMALL_BYTES: Final = 2**16
#: Frames that wait for the disk while more come: two keep both busy.
_FRAMES_AHEAD: Final = 2
#: Jobs that are announced to the peer once admitted; of more it learns when it tries again.
_MAX_UNKNOWN_JOBS: Final = 64
#: Blocks that a peer had and may ask for once more
_MAX_LOST: Final = 64
#: within this time; more is a flood.
_LOST_WITHIN_S: Final = 60.0
_BLOCK_ERRORS: Final = (PeerRefused, RemoteProtocolError, PartitionError, ChannelUnavailable)


class LinkBlocks:
    """Joins one link's session with the depot.

    Args:
        session: The link.
        peer: The client at its other end.
        depot: This client's blocks.
        holds: What the peer refused, on this link or an earlier one.
        counters: Where blocks and frames are counted.
        on_refusal: Callback for what was refused, by this end or by the peer.
        on_message: Callback for when the session has something to send.
    """

    def __init__(
        self,
        session: LinkSession,
        peer: int,
        depot: BlockDepot,
        *,
        holds: Holds,
        counters: ChannelCounters,
        on_refusal: Callable[[Reason, str], None],
        on_message: Callable[[], None],
    ) -> None:
        self._session = session
        self._peer = peer
        self._depot = depot
        self._holds = holds
        self._counters = counters
        self._on_refusal = on_refusal
        self._on_message = on_message
        #: Whether :meth:`bring_up_to_date` has something to do.
        self.is_stale = True
        self._arrived: asyncio.Queue[FrameArrived] = asyncio.Queue(_FRAMES_AHEAD)
        self._ahead: tuple[tuple[BlockKey, int], asyncio.Task[bytes | None]] | None = None
        self._asked: frozenset[BlockKey] = frozenset()
        self._unknown_jobs: set[str] = set()
        self._lost_s: deque[float] = deque(maxlen=_MAX_LOST + 1)

    def bring_up_to_date(self, now_s: float) -> float:
        """Say what is new in the depot; return when something held may be offered again."""
        self.is_stale = False
        offers = self._depot.offers(self._peer)
        self._holds.keep_only({offer.key for offer in offers})
        for offer in offers:
            is_new = not self._session.offers(offer.key)
            if is_new and self._holds.may_offer(offer.key, now_s):
                self._session.offer(offer)
                self._depot.offered(offer.key)
        asks = self._depot.asks(self._peer)
        for key in sorted(asks - self._asked, key=lambda key: (key.job, key.layer)):
            self._session.ask(key)
        self._asked = asks
        for job in [job for job in self._unknown_jobs if self._depot.knows_job(job)]:
            self._session.admit_job(job)
            self._unknown_jobs.discard(job)
        return self._holds.next_s(now_s)

    @property
    def is_needed(self) -> bool:
        """Whether the link has something to do, now or when the job of a block begins here."""
        owed_or_awaited = self._depot.num_owed(self._peer) or self._depot.awaits(self._peer)
        return bool(owed_or_awaited or self._unknown_jobs)

    @staticmethod
    def is_news(event: LinkEvent) -> bool:
        """Return whether something may be offered now that could not be before."""
        return isinstance(event, BlockWanted | BlockDelivered | BlockRefused | JobAdmitted)

    async def load_frame(self) -> bool:
        """Give the session the frame that it needs next; return False if it needs none."""
        wanted = self._session.frame_wanted()
        if wanted is None:
            return False
        frame = await self._read_frame(*wanted)
        # While it was read, the peer may have answered.
        if frame is None:
            self._session.withdraw(wanted[0])
            self.is_stale = True
        elif self._session.frame_wanted() == wanted:
            self._session.give_frame(frame)
            self._counters.frame_bytes_sent += len(frame)
            self._read_ahead()
        return True

    async def keep_frames(self) -> None:
        """Keep the frames that :meth:`take` has been given, while it takes the next ones.

        Raises:
            PeerRefused: The peer's offers had to be refused too often.
        """
        while True:
            event = await self._arrived.get()
            await self._keep(event)
            self._arrived.task_done()
            self._on_message()

    async def take(self, event: LinkEvent, now_s: float) -> None:
        """Do what an event asks for.

        Raises:
            PeerRefused: The peer's offers had to be refused too often, or it asks too often for
                what it had.
        """
        if isinstance(event, FrameArrived):
            await self._arrived.put(event)
            return
        # The answer to a block may depend on its frames that came before.
        await self._arrived.join()
        match event:
            case BlockOffered():
                await self._answer(event, now_s)
            case BlockWanted():
                self._holds.released(event.key)
            case BlockDelivered():
                self._holds.released(event.key)
                self._counters.blocks_sent += 1
                self._depot.delivered(event.key)
            case BlockRefused():
                self._take_refusal(event, now_s)
            case BlockAsked():
                self._holds.released(event.key)
                if self._depot.delivered(event.key, is_there=False):
                    self._count_lost(now_s)
            case JobAdmitted():
                self._holds.release_job(event.job)

    def _count_lost(self, now_s: float) -> None:
        """Count a block that the peer had and asks for once more."""
        self._lost_s.append(now_s)
        since_s = now_s - self._lost_s[0]
        if len(self._lost_s) > _MAX_LOST and since_s < _LOST_WITHIN_S:
            raise refused(
                Reason.FLOOD, f"within {since_s:.0f} s it lost {_MAX_LOST + 1} blocks that it had"
            )

    def _take_refusal(self, event: BlockRefused, now_s: float) -> None:
        self._holds.refused(event.key, event.code, now_s)
        if event.code is RefusalCode.JOB:
            self._session.withdraw_waiting(event.key.job)
        self._on_refusal(Reason.BY_PEER, event.reason)

    async def _answer(self, event: BlockOffered, now_s: float) -> None:
        offer = event.offer
        try:
            admission = self._depot.admission(offer)
            stored = self._depot.stored_bytes(offer.key)
            sequence = await _off_loop(stored, self._depot.begin, offer, admission)
        except _BLOCK_ERRORS as error:
            self._refuse(event.ref, offer.key, error, now_s)
            return
        if sequence is None:
            self._session.have(event.ref)
        else:
            self._session.want(event.ref, sequence)

    async def _read_frame(self, key: BlockKey, sequence: int) -> bytes | None:
        ahead, self._ahead = self._ahead, None
        try:
            if ahead is not None and ahead[0] == (key, sequence):
                return await ahead[1]
            return await _off_loop(_SMALL_BYTES, self._depot.read_frame, key, sequence)
        except ChannelUnavailable as error:
            self._on_refusal(Reason.STORAGE, str(error))
            # It may be read another time.
            self._holds.refused(key, RefusalCode.BLOCK, loop_time_s())
            return None

    def _read_ahead(self) -> None:
        """Begin to read the frame after the one that is being sent."""
        following = self._session.frame_after()
        if following is not None:
            reading = asyncio.create_task(asyncio.to_thread(self._depot.read_frame, *following))
            # If the link ends first, the result is never read.
            reading.add_done_callback(lambda task: task.cancelled() or task.exception())
            self._ahead = (following, reading)

    async def _keep(self, event: FrameArrived) -> None:
        frame = event.frame
        self._counters.frame_bytes_received += len(frame)
        try:
            is_whole = await _off_loop(len(frame), self._depot.add_frame, event.key, frame)
            if is_whole != event.is_last:
                raise RemoteProtocolError("a block has another number of frames than its offer")
        except _BLOCK_ERRORS as error:
            self._refuse(event.ref, event.key, error, loop_time_s())
            return
        if is_whole:
            self._session.have(event.ref)
            self._counters.blocks_received += 1
            # Should it be lost, it is asked for once more.
            self._asked -= {event.key}

    def _refuse(self, ref: int, key: BlockKey, error: RetexoError, now_s: float) -> None:
        reason = reason_of(error)
        self._on_refusal(reason, str(error))
        code = RefusalCode.JOB if reason is Reason.JOB else RefusalCode.BLOCK
        if code is RefusalCode.JOB and len(self._unknown_jobs) < _MAX_UNKNOWN_JOBS:
            self._unknown_jobs.add(key.job)
        self._session.refuse(ref, code, str(error), now_s)


async def _off_loop(size_bytes: int, work: Callable[..., T], *arguments: object) -> T:
    """Do work on a disk in a thread if it is long, else at once."""
    if size_bytes < _SMALL_BYTES:
        return work(*arguments)
    working = asyncio.create_task(asyncio.to_thread(work, *arguments))
    try:
        return await asyncio.shield(working)
    finally:
        # A thread cannot be stopped: when the link ends, its last frame is kept first.
        if not working.done():
            await asyncio.wait({working})
