"""Flower's requests as `packets.py` saw them, and the time that they were under way.

Machines that compute beside each other stretch a deployment's time and shift its requests against
each other. So each request is timed by its own packets alone, and a message takes what its requests
would take if nobody computed: those on one connection one after the other, two connections at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.support.packets import Packet, bursts

#: Bytes of flwr 1.41's requests and answers, in TLS; what a new connection adds is taken off. An
#: agent that is its own SuperNode sends this many fewer: its requests have shorter headers.
SHORTER_OF_AGENT = 92
_LOOK_UP = range(880, 926)
_NOTHING = range(100, 176)
_CONFIRM_UP = range(976, 992)
_PUSH_UP = range(1_300, 1_700)
_PUSH_DOWN = range(440, 900)
_HANDSHAKE_UP, _HANDSHAKE_DOWN = 517 + 80, 844
#: Packets of TLS that nobody waits for: its goodbye, and tickets for sessions to come.
_NOT_AWAITED = (24, 255, 510)


@dataclass(slots=True, kw_only=True)
class Request:
    """One request and its answer.

    Attributes:
        connection: Port of the SuperNode.
        packets: All of it.
        is_fresh: Its connection was opened for it, which is in the packets.
    """

    connection: int
    packets: list[Packet] = field(default_factory=list)
    is_fresh: bool = False

    def bytes_of(self, sender: int) -> int:
        """Return the bytes of the streams that one end sent."""
        return sum(packet.data_bytes for packet in self.packets if packet.sender == sender)

    @property
    def seconds(self) -> float:
        """Time under way."""
        return sum(burst.busy_s for burst in bursts(self.packets, pause_s=0.0))


@dataclass(slots=True, kw_only=True)
class Half:
    """A message as the SuperNode receives it, or a reply as it sends it.

    Attributes:
        is_received: Which of both.
        requests: In the order in which they began.
    """

    is_received: bool
    requests: list[Request] = field(default_factory=list)

    @property
    def opened(self) -> int:
        """Connections opened anew."""
        return sum(request.is_fresh for request in self.requests)

    @property
    def seconds(self) -> float:
        """What the requests take if nobody computes."""
        first, *others = self.requests
        last = [others.pop()] if self.is_received and others else []
        by_connection: dict[int, float] = {}
        for one in others:
            before = by_connection.get(one.connection, 0.0)
            by_connection[one.connection] = before + one.seconds
        alone_s = sum(one.seconds for one in (first, *last))
        return alone_s + max(by_connection.values(), default=0.0)


def halves(
    found: Sequence[Packet], *, client: int, server: int, shorter_bytes: int = 0
) -> list[Half]:
    """Return the messages and replies among the packets of a client and the server.

    Args:
        found: Their packets.
        client: Place of the client's host.
        server: Place of the server's host.
        shorter_bytes: How much shorter each request is than a SuperNode's.
    """
    known: list[Half] = []
    confirmed: set[int] = set()
    for request in _requests(found, client=client):
        up, down = request.bytes_of(client) + shorter_bytes, request.bytes_of(server)
        if request.is_fresh:
            up, down = up - _HANDSHAKE_UP, down - _HANDSHAKE_DOWN
        if up in _CONFIRM_UP:
            confirmed.add(len(known) - 1)
        if up in _LOOK_UP and down in _NOTHING:
            continue
        if up in _LOOK_UP:
            known.append(Half(is_received=True))
        elif up in _PUSH_UP and down in _PUSH_DOWN:
            known.append(Half(is_received=False))
        if known:
            known[-1].requests.append(request)
    # A look that found something else, as at a SuperNode's start, is not confirmed.
    return [
        half
        for place, half in enumerate(known)
        if len(half.requests) > 1 and (place in confirmed or not half.is_received)
    ]


def _requests(found: Sequence[Packet], *, client: int) -> list[Request]:
    """Cut each connection where the client speaks again after an answer."""
    made: list[Request] = []
    by_connection: dict[int, Request] = {}
    answers: dict[int, int] = {}
    for packet in found:
        if packet.data_bytes in _NOT_AWAITED:
            continue
        place = packet.connection
        request = by_connection.get(place)
        speaks = packet.sender == client and packet.data_bytes > 0
        if packet.opens or request is None or (speaks and _is_answered(request, answers[place])):
            request = Request(connection=place, is_fresh=packet.opens)
            by_connection[place], answers[place] = request, 0
            made.append(request)
        if packet.sender != client:
            answers[place] += packet.data_bytes
        request.packets.append(packet)
    return made


def _is_answered(request: Request, answer_bytes: int) -> bool:
    """Say whether more than a handshake has come."""
    return answer_bytes > (_HANDSHAKE_DOWN + 40 if request.is_fresh else 0)
