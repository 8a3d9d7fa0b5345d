"""Who was met over which channel, what passed, and who was refused for what."""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from retexo_fl.errors import RetexoError
from retexo_fl.exchange.link.reasons import Reason, refused

_LOG = logging.getLogger(__name__)
#: Names of strangers are the stranger's choice: no more than so many are remembered.
_MAX_NAMES = 1000
#: Faults whose trace is written; a program has fewer places that can fail.
_MAX_TRACES = 100


@dataclass(slots=True, kw_only=True)
class ChannelCounters:
    """What passed between this client and one peer over one channel.

    Attributes:
        blocks_sent: Blocks that the peer acknowledged; ``blocks_received`` likewise.
        frame_bytes_sent: Exchange frames, those sent again included; ``frame_bytes_received``.
        link_bytes_sent: With the link's own messages; ``link_bytes_received``.
        tls_bytes_sent: With TLS, its handshake included; ``tls_bytes_received``.
        wire_bytes_sent: With the network's headers and retransmissions; None where the system
            does not count them; ``wire_bytes_received``.
        links: Links that came about; all but the first are reconnects.
        last_met_unix_s: When the peer last sent anything over it; None: never.
    """

    blocks_sent: int = 0
    blocks_received: int = 0
    frame_bytes_sent: int = 0
    frame_bytes_received: int = 0
    link_bytes_sent: int = 0
    link_bytes_received: int = 0
    tls_bytes_sent: int = 0
    tls_bytes_received: int = 0
    wire_bytes_sent: int | None = 0
    wire_bytes_received: int | None = 0
    links: int = 0
    last_met_unix_s: float | None = None

    @property
    def reconnects(self) -> int:
        """Links after the first."""
        return max(0, self.links - 1)

    def add_wire(self, sent: int | None, received: int | None) -> None:
        """Add what a stream had on the wire; one unknown number makes the sum unknown."""
        self.wire_bytes_sent = _sum(self.wire_bytes_sent, sent)
        self.wire_bytes_received = _sum(self.wire_bytes_received, received)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerReport:
    """One peer.

    Attributes:
        client: Client index.
        is_connected: Whether there is a link.
        channel: Of the link, or of the last one; empty if there was none.
        last_met_unix_s: When the peer last sent anything, over any channel; None: never.
        next_look_s: Seconds until the next attempt; None: there is a link, or none is needed.
        channels: What passed, by channel.
        refusals: How often something of this peer was refused, by reason.
        last_error: Why the last link ended or could not come about; empty: no error.
    """

    client: int
    is_connected: bool
    channel: str
    last_met_unix_s: float | None
    next_look_s: float | None
    channels: Mapping[str, ChannelCounters]
    refusals: Mapping[str, int]
    last_error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkReport:
    """A client's network.

    Attributes:
        listening: Addresses at which peers can connect.
        peers: By client index, every other client of the roster.
        strangers_refused: Connections that did not prove to be a client, by reason.
    """

    listening: tuple[str, ...]
    peers: Mapping[int, PeerReport]
    strangers_refused: Mapping[str, int]


@dataclass(slots=True, kw_only=True)
class PeerAccount:
    """What is kept of one peer; see :class:`PeerReport`. ``wall_clock`` returns the Unix time."""

    client: int
    wall_clock: Callable[[], float] = time.time
    channel: str = ""
    channels: dict[str, ChannelCounters] = field(
        default_factory=lambda: defaultdict(ChannelCounters)
    )
    refusals: Counter[str] = field(default_factory=Counter)
    last_error: str = ""

    def report(
        self, *, live: tuple[int | None, int | None] | None, next_look_s: float | None
    ) -> PeerReport:
        """Return a copy; ``live`` are the wire bytes of the link there is."""
        channels = {name: replace(counters) for name, counters in list(self.channels.items())}
        met = [one.last_met_unix_s for one in channels.values() if one.last_met_unix_s is not None]
        if live is not None and self.channel in channels:
            channels[self.channel].add_wire(*live)
        return PeerReport(
            client=self.client,
            is_connected=live is not None,
            channel=self.channel,
            last_met_unix_s=max(met, default=None),
            next_look_s=next_look_s,
            channels=channels,
            refusals=dict(self.refusals),
            last_error=self.last_error,
        )


class RefusalLog:
    """Writes a line for what was refused, but not one for each of a flood.

    Args:
        every_s: Least time between two lines of one reason and peer.
    """

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._next_s: dict[tuple[str, Reason], float] = {}
        self._left_out: Counter[tuple[str, Reason]] = Counter()
        self._traced: set[tuple[str, str, int]] = set()

    def named(self, who: str, error: Exception) -> RetexoError:
        """Return an error that has a name; of one that has none, log where it arose, once.

        Args:
            who: Whose link or connection it ended.
            error: What was raised there.
        """
        if isinstance(error, RetexoError):
            return error
        kind, trace = type(error).__name__, error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        place = ("", 0) if trace is None else (trace.tb_frame.f_code.co_filename, trace.tb_lineno)
        if (kind, *place) not in self._traced and len(self._traced) < _MAX_TRACES:
            self._traced.add((kind, *place))
            _LOG.error("%s: %s: %s", who, Reason.FAULT, kind, exc_info=error)
        return refused(Reason.FAULT, f"{kind}, which is a bug of retexo-fl; the log says where")

    def write(
        self,
        who: str,
        reason: Reason,
        sentence: str,
        now_s: float,
        *,
        level: int = logging.WARNING,
        every_s: float | None = None,
    ) -> None:
        """Log one refusal, or count it for the next line.

        Args:
            who: Whom it is about.
            reason: Of the refusal.
            sentence: What happened.
            now_s: The time.
            level: Of the line.
            every_s: Least time until the next line about ``who`` of this reason, if not as usual.
        """
        about = (who, reason)
        if now_s < self._next_s.get(about, 0.0):
            self._left_out[about] += 1
            return
        if len(self._next_s) >= _MAX_NAMES:
            self._next_s.clear()
            self._left_out.clear()
        self._next_s[about] = now_s + (self._every_s if every_s is None else every_s)
        more = self._left_out.pop(about, 0)
        why = sentence.removeprefix(f"{reason}: ")
        repeated = f" ({more} more since the last line)" if more else ""
        _LOG.log(level, "%s: %s: %s%s", who, reason, why, repeated)


def _sum(one: int | None, two: int | None) -> int | None:
    return None if one is None or two is None else one + two
