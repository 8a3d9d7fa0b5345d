"""What the network grants peers and strangers, in numbers and seconds."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final, Self

from retexo_fl.exchange.link.limits import SessionLimits


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
