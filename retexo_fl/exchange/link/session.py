"""A link between two agents, sans-IO: both ends send each other blocks over one stream of bytes.

It owns no socket, no clock, no thread and no file. The stream must be reliable and its two ends
proved to each other, as TLS does. Every new link starts afresh: both ends greet; each offers its
blocks, and the other answers from which frame on it wants one, or that it has it. Frames follow.
By when something of it has to happen, or the peer is lost, is in :class:`LinkClock`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from retexo_fl.errors import ChannelTimedOut, LocalProtocolError, PeerRefused, RemoteProtocolError
from retexo_fl.exchange.block import BlockKey
from retexo_fl.exchange.frames import Buffer
from retexo_fl.exchange.link.events import (
    BlockAsked,
    BlockDelivered,
    BlockOffered,
    BlockRefused,
    BlockWanted,
    JobAdmitted,
    LinkEvent,
    PeerGreeted,
    PeerLeft,
)
from retexo_fl.exchange.link.limits import SessionLimits
from retexo_fl.exchange.link.messages import (
    Message,
    MessageKind,
    MessageQueue,
    MessageReader,
    Offer,
    RefusalCode,
    encode,
    encode_greet,
    encode_key,
    encode_line,
    encode_ref,
    encode_refuse,
    encode_want,
    parse_greet,
    parse_job,
    parse_key,
    parse_line,
    parse_offer,
    parse_ref,
    parse_refuse,
    parse_want,
)
from retexo_fl.exchange.link.offers import IncomingOffers, OutgoingOffers
from retexo_fl.exchange.link.reasons import Reason, refused

#: Messages that wait to be sent beside one frame; a peer that lets more pile up never reads.
_MAX_QUEUED_BYTES: Final = 2**18


class LinkSession:
    """One end of a link; both ends are alike.

    Feed :meth:`receive_data`, then call :meth:`next_event` until it returns None. Pull
    what is to be sent with :meth:`data_to_send`; when that is empty, give it the frame that
    :meth:`frame_wanted` names. Call :meth:`check_time` at :meth:`next_deadline_s`.

    Args:
        client: This end.
        peer: The client at the other end, as its certificate proved.
        limits: What the peer is granted.
        now_s: The time; seconds of any clock that never goes back.
    """

    def __init__(
        self, *, client: int, peer: int, now_s: float, limits: SessionLimits | None = None
    ) -> None:
        limits = limits or SessionLimits()
        self._peer = peer
        self._client = client
        self._reader = MessageReader(limits.max_frame_bytes)
        self._clock = LinkClock(limits, now_s)
        self._incoming = IncomingOffers(client, peer, limits)
        self._queue = MessageQueue()
        self._tell = self._queue.tell
        self._outgoing = OutgoingOffers(limits, self._tell)
        self._queue.tell(encode_greet(client))
        self._max_queued_bytes = _MAX_QUEUED_BYTES + limits.max_frame_bytes
        self._has_greeted = False
        self._error: Exception | None = None

    @property
    def has_greeted(self) -> bool:
        """Whether the peer's greeting has come."""
        return self._has_greeted

    # ---- what arrives -----------------------------------------------------------------------

    def receive_data(self, data: Buffer, now_s: float) -> None:
        """Give the session bytes; they must not change before ``next_event`` returned None."""
        if self._error is None:
            self._clock.heard(now_s)
            self._reader.give(data)

    def next_event(self, now_s: float) -> LinkEvent | None:
        """Return the next event from the bytes so far, None when more are needed.

        Raises:
            RemoteProtocolError: The peer broke the protocol; the link is of no more use.
            PeerRefused: It took more than it is granted, or speaks for another; likewise.
        """
        if self._error is not None:
            raise self._error
        is_new = False
        try:
            while (message := self._reader.next_message()) is not None:
                is_new = True
                event = self._take(message)
                if event is not None:
                    self._clock.message(self._reader.started_bytes, now_s, is_new=True)
                    return event
        except (RemoteProtocolError, PeerRefused) as error:
            self._error = error
            raise
        self._clock.message(self._reader.started_bytes, now_s, is_new=is_new)
        return None

    def want(self, ref: int, sequence: int) -> None:
        """Answer an offer: send the frames from ``sequence`` on."""
        if self._incoming.want(ref, sequence):
            self._tell(encode_want(ref, sequence))

    def have(self, ref: int) -> None:
        """Acknowledge a block."""
        if self._incoming.close(ref):
            self._tell(encode_ref(MessageKind.HAVE, ref))

    def refuse(self, ref: int, code: RefusalCode, reason: str, now_s: float) -> None:
        """Refuse an offer, or the rest of its frames.

        Raises:
            PeerRefused: Too many of its offers had to be refused; the link is of no more use.
        """
        if self._incoming.close(ref):
            self._tell(encode_refuse(ref, code, reason))
            self._incoming.count_refusal(now_s)

    # ---- what is said -----------------------------------------------------------------------

    def offer(self, offer: Offer) -> None:
        """Offer a block, now or when others are done; one that is on offer already is no error.

        Raises:
            LocalProtocolError: It is not one of this end for the other.
        """
        if (offer.key.sender, offer.key.receiver) != (self._client, self._peer):
            raise LocalProtocolError(f"a link to client {self._peer} cannot carry {offer.key}")
        self._outgoing.add(offer)

    def offers(self, key: BlockKey) -> bool:
        """Return whether a block is on offer or waits to be."""
        return self._outgoing.holds(key)

    def withdraw(self, key: BlockKey) -> None:
        """Take an offer back."""
        self._outgoing.withdraw(key)

    def withdraw_waiting(self, job: str) -> None:
        """Withdraw the waiting offers of a job that the peer has not admitted."""
        self._outgoing.withdraw_waiting(job)

    def ask(self, key: BlockKey) -> None:
        """Report to the peer that one of its blocks is missing here."""
        self._tell(encode(MessageKind.ASK, encode_key(key)))

    def admit_job(self, job: str) -> None:
        """Report to the peer that a job whose blocks were refused is admitted now."""
        self._tell(encode(MessageKind.ADMITTED, job.encode("ascii")))

    def leave(self, reason: str) -> None:
        """Say goodbye; nothing more is sent after it."""
        self._queue.close(encode(MessageKind.BYE, encode_line(reason)))

    def data_to_send(self, max_bytes: int, now_s: float) -> Buffer:
        """Return the next bytes, at most ``max_bytes``; empty if there are none."""
        data = self._queue.pull(max_bytes)
        if data:
            self._clock.sent(now_s)
        return data

    def frame_wanted(self) -> tuple[BlockKey, int] | None:
        """Return block and sequence of the frame to send next, once everything else is sent."""
        if self._queue or self._queue.is_closed:
            return None
        return self._outgoing.next_frame()

    def frame_after(self) -> tuple[BlockKey, int] | None:
        """Return the frame that will probably be wanted after what waits to be sent."""
        return None if self._queue.is_closed else self._outgoing.next_frame()

    def give_frame(self, frame: bytes) -> None:
        """Hand over the frame that :meth:`frame_wanted` named."""
        self._outgoing.give_frame(frame)

    # ---- time -------------------------------------------------------------------------------

    def next_deadline_s(self) -> float:
        """Return when :meth:`check_time` must be called at the latest."""
        return self._clock.next_deadline_s()

    def check_time(self, now_s: float) -> None:
        """Ask for a sign of life where it is time.

        Raises:
            PeerRefused: The peer was too slow.
            ChannelTimedOut: The peer is silent.
        """
        if self._clock.check(now_s):
            self._tell(encode(MessageKind.PING))

    # ---- inside -----------------------------------------------------------------------------

    def _take(self, message: Message) -> LinkEvent | None:
        if self._has_greeted == (message.kind is MessageKind.GREET):
            raise RemoteProtocolError(
                f"{message.kind.name} {'after' if self._has_greeted else 'before'} the greeting"
            )
        if self._queue.num_bytes > self._max_queued_bytes:
            raise refused(Reason.FLOOD, "it sends messages without reading the answers")
        return _TAKERS[message.kind](self, message.body)

    def _take_greet(self, body: Buffer) -> LinkEvent:
        client = parse_greet(body)
        if client != self._peer:
            raise refused(
                Reason.IMPERSONATION,
                f"greets as client {client}, its certificate is that of client {self._peer}",
            )
        self._has_greeted = True
        self._clock.greeted()
        self._outgoing.start()
        return PeerGreeted(client=client)

    def _take_offer(self, body: Buffer) -> LinkEvent:
        ref, offer = parse_offer(body)
        self._incoming.add(ref, offer)
        return BlockOffered(ref=ref, offer=offer)

    def _take_want(self, body: Buffer) -> LinkEvent | None:
        key = self._outgoing.wanted(*parse_want(body))
        return None if key is None else BlockWanted(key=key)

    def _take_have(self, body: Buffer) -> LinkEvent | None:
        key = self._outgoing.answered(parse_ref(body)[0])
        return None if key is None else BlockDelivered(key=key)

    def _take_refuse(self, body: Buffer) -> LinkEvent | None:
        ref, code, reason = parse_refuse(body)
        key = self._outgoing.answered(ref)
        return None if key is None else BlockRefused(key=key, code=code, reason=reason)

    def _take_withdraw(self, body: Buffer) -> None:
        self._incoming.withdraw(parse_ref(body)[0])

    def _take_frame(self, body: Buffer) -> LinkEvent | None:
        return self._incoming.frame(*parse_ref(body))

    def _take_ask(self, body: Buffer) -> LinkEvent:
        key = parse_key(body)
        if key.sender != self._client or key.receiver != self._peer:
            raise refused(
                Reason.IMPERSONATION,
                f"asks for a block of client {key.sender} for client {key.receiver}",
            )
        return BlockAsked(key=key)

    def _take_admitted(self, body: Buffer) -> LinkEvent:
        return JobAdmitted(job=parse_job(body))

    def _take_ping(self, _: Buffer) -> None:
        self._tell(encode(MessageKind.PONG))

    def _take_bye(self, body: Buffer) -> LinkEvent:
        return PeerLeft(reason=parse_line(body))


_TAKERS: Final[dict[MessageKind, Callable[[LinkSession, Buffer], LinkEvent | None]]] = {
    MessageKind.GREET: LinkSession._take_greet,
    MessageKind.OFFER: LinkSession._take_offer,
    MessageKind.WANT: LinkSession._take_want,
    MessageKind.HAVE: LinkSession._take_have,
    MessageKind.REFUSE: LinkSession._take_refuse,
    MessageKind.WITHDRAW: LinkSession._take_withdraw,
    MessageKind.FRAME: LinkSession._take_frame,
    MessageKind.ASK: LinkSession._take_ask,
    MessageKind.ADMITTED: LinkSession._take_admitted,
    MessageKind.PING: LinkSession._take_ping,
    MessageKind.PONG: lambda session, _: session._clock.answered(),
    MessageKind.BYE: LinkSession._take_bye,
}


# ---- deadlines -----------------------------------------------------------------------------------


class LinkClock:
    """Knows by when something has to happen; seconds of any clock that never goes back.

    Args:
        limits: How long each may take.
        now_s: When the link began.
    """

    def __init__(self, limits: SessionLimits, now_s: float) -> None:
        self._limits = limits
        self._greet_by_s = now_s + limits.greeting_s
        self._begun_s = now_s
        self._message_by_s = math.inf
        self._heard_s = now_s
        self._pong_by_s = math.inf
        self._ping_waits = False
        self._num_pings = 0

    def heard(self, now_s: float) -> None:
        """Note that bytes came."""
        self._heard_s, self._pong_by_s, self._ping_waits = now_s, math.inf, False

    def greeted(self) -> None:
        """Note that the peer has greeted."""
        self._greet_by_s = math.inf

    def message(self, started_bytes: int, now_s: float, *, is_new: bool) -> None:
        """Note how large the message is that has begun; 0 if none has."""
        if not started_bytes:
            self._message_by_s = math.inf
            return
        if is_new or self._message_by_s == math.inf:
            self._begun_s = now_s
        allowed_s = self._limits.message_s + started_bytes / self._limits.least_bytes_per_s
        self._message_by_s = self._begun_s + allowed_s

    def sent(self, now_s: float) -> None:
        """Note that bytes went to the transport; an answer to PING cannot come before."""
        if self._ping_waits:
            self._pong_by_s = now_s + self._limits.pong_within_s

    def answered(self) -> None:
        """Note that PONG came.

        Raises:
            RemoteProtocolError: Nobody asked for it.
        """
        if not self._num_pings:
            raise RemoteProtocolError("PONG without PING")
        self._num_pings -= 1

    def next_deadline_s(self) -> float:
        """Return when :meth:`check` has something to do at the latest."""
        ping_s = math.inf if self._ping_waits else self._heard_s + self._limits.ping_after_s
        return min(self._greet_by_s, self._message_by_s, self._pong_by_s, ping_s)

    def check(self, now_s: float) -> bool:
        """Return whether the peer must be asked for a sign.

        Raises:
            PeerRefused: It was too slow.
            ChannelTimedOut: The peer is silent.
        """
        if now_s >= self._greet_by_s:
            raise refused(Reason.SLOW, f"no greeting within {self._limits.greeting_s:g} s")
        if now_s >= self._message_by_s:
            raise refused(Reason.SLOW, "a message was not complete before its deadline")
        if now_s >= self._pong_by_s:
            raise ChannelTimedOut(f"nothing was received for {now_s - self._heard_s:.0f} s")
        if self._ping_waits or now_s < self._heard_s + self._limits.ping_after_s:
            return False
        self._ping_waits = True
        self._num_pings += 1
        self._pong_by_s = now_s + self._limits.pong_within_s
        return True
