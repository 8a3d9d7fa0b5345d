"""What a client keeps of one peer: its account, what it refused, and the one link to it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from retexo_fl.channels.accounts import PeerAccount, PeerReport, RefusalLog
from retexo_fl.channels.depot import BlockDepot
from retexo_fl.channels.doorway import Proved
from retexo_fl.channels.limits import Backoff, Holds, LinkLimits, looks_every_s, loop_time_s
from retexo_fl.channels.peer_link import PeerLink
from retexo_fl.channels.roster import Member
from retexo_fl.errors import RetexoError
from retexo_fl.exchange.link.reasons import PUNISHED, Reason, reason_of, refused

#: A link that ended earlier than this counts as a failure to connect.
_STEADY_S = 5.0
#: Least time between two lines of the log about a peer that is away: it may be for days.
_AWAY_LINES_S = 3600.0


class Peer:
    """One client of the roster, other than this one.

    Args:
        member: Its entry in the roster.
        depot: This client's blocks.
        limits: What peers are granted.
        log: Where refusals are written.
        wall_clock: Returns the Unix time.
    """

    def __init__(
        self,
        member: Member,
        depot: BlockDepot,
        *,
        limits: LinkLimits,
        log: RefusalLog,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.member = member
        self.woken = asyncio.Event()
        self.link: PeerLink | None = None
        self._depot = depot
        self._limits = limits
        self._log = log
        name = f"{depot.client} {member.client}"
        self._account = PeerAccount(client=member.client, wall_clock=wall_clock)
        self._holds = Holds(limits.retry_first_s, limits.retry_most_s)
        self._dialling = Backoff(limits.retry_first_s, limits.retry_most_s, name)
        self._penalty = Backoff(limits.penalty_first_s, limits.penalty_most_s, name)
        self._opened_by = member.client
        self._num_streams = 0
        self._has_left = False
        self._awaited_since_s: float | None = None
        self._num_owed = 0
        self._next_look_at_s = float("inf")
        self._hurried_at_s = float("-inf")

    @property
    def name(self) -> str:
        """How the log calls it."""
        return f"client {self.member.client}"

    def wake(self) -> None:
        """Look at the depot again; for new blocks, try to connect at once."""
        num_owed = self._depot.num_owed(self.member.client)
        if num_owed > self._num_owed:
            self._dialling.succeeded()
        self._num_owed = num_owed
        self.woken.set()
        if self.link is not None:
            self.link.wake()

    def connect_in_s(self) -> float:
        """Return how long to wait before connecting; infinity while no link is needed."""
        now_s = loop_time_s()
        self._next_look_at_s = self._connect_at_s(now_s)
        return self._next_look_at_s - now_s

    def _connect_at_s(self, now_s: float) -> float:
        client = self.member.client
        num_owed = self._depot.num_owed(client)
        # What is new is left for wake() to notice.
        self._num_owed = min(self._num_owed, num_owed)
        if self.link is not None or self._num_streams or not self.member.addresses:
            return float("inf")
        begin_s = now_s
        if not num_owed:
            if not self._depot.awaits(client):
                self._awaited_since_s = None
                return float("inf")
            if self._awaited_since_s is None:
                self._awaited_since_s = now_s
            begin_s = self._awaited_since_s + self._limits.awaited_only_s
        return max(begin_s, self._dialling.until_s, self._penalty.until_s)

    def tried(self, *, steady: bool) -> None:
        """Note how an attempt to connect ended."""
        if steady:
            self._dialling.succeeded()
        else:
            self._dialling.most_s = looks_every_s(self._limits, self.member.addresses)
            self._dialling.failed(loop_time_s())

    def note_refusal(self, reason: Reason, sentence: str) -> None:
        """Count and log that something was refused."""
        self._account.refusals[reason] += 1
        self._account.last_error = sentence
        self._log.write(self.name, reason, sentence, loop_time_s())

    def failed(self, sentence: str) -> None:
        """Keep why there is no link."""
        self._account.last_error = sentence
        now_s = loop_time_s()
        self._log.write(self.name, Reason.CONNECTION, sentence, now_s, level=logging.INFO)

    def not_found(self, sentence: str) -> None:
        """Keep why it could not be reached; peers that stay away are seldom logged."""
        self._account.last_error = sentence
        self._log.write(
            f"{self.name}, looked for",
            Reason.CONNECTION,
            sentence,
            loop_time_s(),
            level=logging.INFO,
            every_s=_AWAY_LINES_S,
        )

    async def meet(self, proved: Proved, *, opened_by: int) -> bool:
        """Run a link over a proved stream; return whether it was of use. Closes the stream.

        Never raises for what the peer does: that is counted, logged, and may be punished.
        """
        begun_s, link = loop_time_s(), None
        self._num_streams += 1
        try:
            if await self._make_way(opened_by):
                link = self._begin(proved, opened_by)
                await link.run()
                self._account.last_error = ""
        except Exception as error:
            # Whatever a link raises ends that link and no other.
            self._ended(self._log.named(self.name, error))
        finally:
            try:
                await proved.stream.close()
            finally:
                self._num_streams -= 1
                self._count(proved)
                if link is not None:
                    self.link = None
                    link.ended.set()
                    came = link.has_greeted and opened_by == self.member.client
                    if came and not link.ended_idle and self._may_hurry():
                        # It is near, so it is worth a look.
                        self._dialling.succeeded()
                self.woken.set()
        is_steady = loop_time_s() - begun_s >= _STEADY_S
        # A block that a peer holds off is offered later, by a link that it may soon end again.
        return is_steady and link is not None and link.has_greeted and not link.ended_idle

    def _may_hurry(self) -> bool:
        """Return whether to retry at once: not where links break as soon as they are made."""
        now_s, before_s = loop_time_s(), self._hurried_at_s
        self._hurried_at_s = now_s
        return now_s - before_s >= _STEADY_S

    async def leave(self, reason: str) -> None:
        """End the link, if there is one; none begins any more."""
        self._has_left = True
        if self.link is not None:
            await self.link.leave(reason)

    def report(self, now_s: float | None = None) -> PeerReport:
        """Return what is known of it; ``now_s`` is the time of the event loop, if that runs."""
        link = self.link
        if link is None:
            next_look_s = None
            if now_s is not None and self._next_look_at_s < float("inf"):
                next_look_s = max(0.0, self._next_look_at_s - now_s)
            return self._account.report(live=None, next_look_s=next_look_s)
        live = link.stream.wire_counters()
        return self._account.report(live=(live.sent_bytes, live.received_bytes), next_look_s=None)

    async def _make_way(self, opened_by: int) -> bool:
        """End the link that a new one replaces; return False if the new one must not be.

        Both ends must choose alike: of two links that were opened at once, the one that the lower
        client opened; else the newer one, since the end that connects has lost the older.

        Raises:
            PeerRefused: The peer has to wait, or has enough connections.
        """
        now_s = loop_time_s()
        if now_s < self._penalty.until_s:
            wait_s = self._penalty.until_s - now_s
            raise refused(Reason.PENALTY, f"it misbehaved and is refused for {wait_s:.0f} s more")
        if self._num_streams > self._limits.max_streams:
            raise refused(Reason.CONNECTIONS, f"it has {self._limits.max_streams} connections")
        while (link := self.link) is not None:
            lower = min(self.member.client, self._depot.client)
            at_once_s = self._limits.on(link.stream.channel).both_at_once_s
            is_new = now_s - link.begun_s < at_once_s
            if is_new and self._opened_by == lower != opened_by:
                return False
            await link.leave("replaced by another link")
        return not self._has_left

    def _begin(self, proved: Proved, opened_by: int) -> PeerLink:
        link = PeerLink(
            proved.stream,
            proved.secure,
            self._depot,
            account=self._account,
            holds=self._holds,
            limits=self._limits.on(proved.stream.channel),
            on_refusal=self.note_refusal,
        )
        self.link, self._opened_by = link, opened_by
        return link

    def _count(self, proved: Proved) -> None:
        """Add what the link does not see: the handshake, and all bytes on the wire."""
        counters = self._account.channels[proved.stream.channel]
        counters.tls_bytes_sent += proved.sent_bytes
        counters.tls_bytes_received += proved.received_bytes
        wire = proved.stream.wire_counters()
        counters.add_wire(wire.sent_bytes, wire.received_bytes)

    def _ended(self, error: RetexoError) -> None:
        """Keep why a link ended; a peer that misbehaved has to wait."""
        reason, now_s = reason_of(error), loop_time_s()
        if reason is Reason.CONNECTION:
            self.failed(str(error))
            return
        self.note_refusal(reason, str(error))
        if reason in PUNISHED:
            if now_s > self._penalty.until_s + self._limits.penalty_most_s:
                self._penalty.succeeded()
            self._penalty.failed(now_s)
