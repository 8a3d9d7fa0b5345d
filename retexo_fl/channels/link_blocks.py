"""What a running link does with blocks: offers those to send, answers offers, keeps what comes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, TypeVar

from retexo_fl.channels.accounts import ChannelCounters
from retexo_fl.channels.base import BlockKey
from retexo_fl.channels.depot import BlockDepot
from retexo_fl.channels.patience import Holds, loop_time_s
from retexo_fl.errors import (
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
)
from retexo_fl.exchange.link.messages import RefusalCode
from retexo_fl.exchange.link.reasons import Reason, reason_of, refused
from retexo_fl.exchange.link.session import LinkSession

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
        told: Callback for what was refused, by this end or by the peer.
        said: Callback for when the session has something to send.
    """

    def __init__(
        self,
        session: LinkSession,
        peer: int,
        depot: BlockDepot,
        *,
        holds: Holds,
        counters: ChannelCounters,
        told: Callable[[Reason, str], None],
        said: Callable[[], None],
    ) -> None:
        self._session = session
        self._peer = peer
        self._depot = depot
        self._holds = holds
        self._counters = counters
        self._told = told
        self._said = said
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
            self._said()

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
        self._told(Reason.BY_PEER, event.reason)

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
            self._told(Reason.STORAGE, str(error))
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
        self._told(reason, str(error))
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
