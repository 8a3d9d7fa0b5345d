"""What the network grants peers and strangers, in numbers and seconds, and how long it waits.

Waits grow with each failure and never end all at once (:class:`Backoff`); blocks that a peer
refused are held so (:class:`Holds`). Time is that of the event loop.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Self

from retexo_fl.channels.addresses import scheme_of
from retexo_fl.channels.base import BlockKey
from retexo_fl.exchange.link.limits import SessionLimits
from retexo_fl.exchange.link.messages import RefusalCode


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLimits:
    """Limits of a client's network; chosen, not tuned.

    Attributes:
        session: Of each link.
        connect_s: For a connection to come about.
        handshake_s: For TLS to prove both ends.
        stall_s: For the operating system to take a piece; a peer that reads nothing is lost.
        max_silent: Connections that have said nothing yet. For one more the oldest goes, of the
            source address that has most of them.
        max_unproved: Connections of strangers that have said something and not proved who they
            are, all together, and
        max_unproved_each: of one source address. One more is closed, unless the oldest is older
            than
        patience_s: this, and goes instead. An address of the roster has places of its own: so many
            for each of its clients.
        max_streams: Connections of one peer, of which one is used.
        both_at_once_s: Two links that begin within this time were opened by both ends at once.
        awaited_only_s: How long a client with nothing to send leaves it to its peer to connect.
        retry_first_s: Wait after the first failure to connect, or after a refused block; it
            doubles with each failure up to
        retry_most_s: this.
        look_every_s: The same for peers that cannot be reached, on all channels; None leaves it to
            the channel.
        idle_s: A link that neither end has used for so long is closed.
        penalty_first_s: How long a peer that misbehaved is refused at first; it doubles up to
        penalty_most_s: this.
        log_every_s: Least time between two lines of one reason and peer in the log.
        piece_bytes: Bytes handled in one go.
    """

    session: SessionLimits = field(default_factory=SessionLimits)
    connect_s: float = 10.0
    handshake_s: float = 10.0
    stall_s: float = 120.0
    max_silent: int = 256
    max_unproved: int = 8
    max_unproved_each: int = 4
    patience_s: float = 2.0
    max_streams: int = 2
    both_at_once_s: float = 10.0
    awaited_only_s: float = 1.0
    retry_first_s: float = 0.5
    retry_most_s: float = 60.0
    look_every_s: float | None = None
    idle_s: float = float("inf")
    penalty_first_s: float = 1.0
    penalty_most_s: float = 300.0
    log_every_s: float = 10.0
    piece_bytes: int = 2**18

    def on(self, channel: str) -> Self:
        """Return what is granted on a channel: where the server carries it, it takes minutes."""
        match channel:
            case "relay":
                return self._carried()
            case "bluetooth":
                return self._by_radio()
        return self

    def _carried(self) -> Self:
        session = replace(
            self.session,
            greeting_s=_CARRIED_S,
            message_s=_CARRIED_S,
            # Between exchanges nothing is carried, for as long as a stage's rounds take.
            ping_after_s=_NEVER_S,
            pong_within_s=_NEVER_S,
        )
        return replace(
            self,
            session=session,
            handshake_s=_CARRIED_S,
            stall_s=_CARRIED_S,
            # The server alone says whose they are: more than one source, and each of one client.
            max_silent=_MAX_CARRIED,
            max_unproved=_MAX_CARRIED,
            max_unproved_each=2,
            patience_s=_CARRIED_PATIENCE_S,
            # A handshake takes several trips, and ends for one end a trip before it does for the
            # other: on a loaded machine each takes ten seconds.
            both_at_once_s=_CARRIED_PATIENCE_S,
        )

    def _by_radio(self) -> Self:
        """Return what fits 0.1 MB/s, shared by all links, and 5 s to find that no peer is near."""
        session = replace(
            self.session,
            greeting_s=max(self.session.greeting_s, _RADIO_S),
            message_s=max(self.session.message_s, 2 * _RADIO_S),
            least_bytes_per_s=min(self.session.least_bytes_per_s, _RADIO_BYTES_PER_S),
            # The adapter notices that a device left after 20 s; some adapters never do.
            ping_after_s=min(self.session.ping_after_s, _RADIO_PING_S),
            pong_within_s=min(self.session.pong_within_s, _RADIO_S),
        )
        return replace(
            self,
            session=session,
            connect_s=max(self.connect_s, _RADIO_S),
            handshake_s=max(self.handshake_s, _RADIO_S),
            stall_s=min(self.stall_s, _RADIO_PING_S + _RADIO_S),
            patience_s=max(self.patience_s, _RADIO_PING_S),
            # Looking for a device that is away takes the radio for 5 s.
            retry_most_s=min(self.retry_most_s, _RADIO_S),
            # A device has seven links at most, and others may wait for one.
            idle_s=min(self.idle_s, _RADIO_S),
            piece_bytes=min(self.piece_bytes, _RADIO_PIECE_BYTES),
        )


#: A server that has not carried anything for so long carries nothing any more.
_CARRIED_S: Final = 3600.0
_NEVER_S: Final = 1e9
_CARRIED_PATIENCE_S: Final = 300.0
#: Of streams that the server carries; each takes up to 0.4 MB until it is proved.
_MAX_CARRIED: Final = 64
#: To page a device, to prove both ends, and for others on the radio; twice what it takes.
_RADIO_S: Final = 30.0
_RADIO_PING_S: Final = 10.0
_RADIO_BYTES_PER_S: Final = 1024.0
#: Goes over the air in a fifth of a second.
_RADIO_PIECE_BYTES: Final = 2**14


# ---- waits after failures ------------------------------------------------------------------------


def loop_time_s() -> float:
    """Return the time of the running event loop, which may be virtual."""
    return asyncio.get_running_loop().time()


def looks_every_s(limits: LinkLimits, addresses: Sequence[str]) -> float:
    """Return how often a peer that is away and wanted is looked for in the long run.

    One attempt tries all addresses, so the channel with the most frequent attempts decides.

    Args:
        limits: Of this client's network.
        addresses: Of the peer.
    """
    if limits.look_every_s is not None:
        return limits.look_every_s
    channels = {scheme_of(address) for address in addresses}
    most_s = (limits.on(channel).retry_most_s for channel in channels)
    return min(most_s, default=limits.retry_most_s)


@dataclass(slots=True)
class Backoff:
    """Doubles from ``first_s`` to ``most_s`` with every failure.

    ``name`` spreads the waits of different peers over a quarter of their length, the same way in
    every run.
    """

    first_s: float
    most_s: float
    name: str
    failures: int = 0
    until_s: float = 0.0

    def failed(self, now_s: float) -> None:
        """Wait from now on."""
        wait_s = min(self.most_s, self.first_s * 2.0 ** min(self.failures, 30))
        part = zlib.crc32(f"{self.name} {self.failures}".encode()) / 2**32
        self.failures += 1
        self.until_s = now_s + wait_s * (1.0 - part / 4)

    def succeeded(self) -> None:
        """Forget the failures."""
        self.failures, self.until_s = 0, 0.0


@dataclass(slots=True)
class Holds:
    """Blocks that a peer refused: when each may be offered again.

    Of a job that the peer has not admitted, one block is offered now and then; when it is wanted,
    all are.
    """

    first_s: float
    most_s: float
    _jobs: dict[str, Backoff] = field(default_factory=dict)
    _blocks: dict[BlockKey, Backoff] = field(default_factory=dict)

    def refused(self, key: BlockKey, code: RefusalCode, now_s: float) -> None:
        """Hold a block, or all of its job, longer than the last time."""
        if code is RefusalCode.JOB:
            self._jobs.setdefault(key.job, self._backoff(key.job)).failed(now_s)
        else:
            name = f"{key.job} {key.layer} {key.weights_digest.hex()}"
            self._blocks.setdefault(key, self._backoff(name)).failed(now_s)

    def may_offer(self, key: BlockKey, now_s: float) -> bool:
        """Return whether a block may be offered now; of a held job it is then the only one."""
        block, job = self._blocks.get(key), self._jobs.get(key.job)
        if block is not None and now_s < block.until_s:
            return False
        if job is None:
            return True
        if now_s < job.until_s:
            return False
        # The others wait for the answer to this one, which may never come.
        job.until_s = now_s + max(self.first_s, self.most_s / 4)
        return True

    def released(self, key: BlockKey) -> None:
        """Note that the peer requested or has a block."""
        self._jobs.pop(key.job, None)
        self._blocks.pop(key, None)

    def release_job(self, job: str) -> None:
        """Note that the peer has admitted a job."""
        self._jobs.pop(job, None)
        self._blocks = {key: held for key, held in self._blocks.items() if key.job != job}

    def keep_only(self, keys: Collection[BlockKey]) -> None:
        """Forget blocks that need not be sent any more, and jobs without any."""
        jobs = {key.job for key in keys}
        self._blocks = {key: held for key, held in self._blocks.items() if key in keys}
        self._jobs = {job: held for job, held in self._jobs.items() if job in jobs}

    def next_s(self, now_s: float) -> float:
        """Return when the next held block may be offered; infinity if none is held."""
        held = (*self._jobs.values(), *self._blocks.values())
        return min((one.until_s for one in held if one.until_s > now_s), default=float("inf"))

    def _backoff(self, name: str) -> Backoff:
        return Backoff(self.first_s, self.most_s, name)
