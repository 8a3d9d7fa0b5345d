"""Network time of a deployment: what one exchange and one message of Flower take on their links.

Time in which something is under way; computing, disks and Flower's sleeps are not in it. Objects of
a message go two at a time, each on a connection of its own, so that weights take the time of their
bytes beside the small objects. docs/links.md, "Network time of a deployment", describes it to
users.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Final

from retexo_fl.simulation.tcp_time import Path, connect_s, request_s, transfer_s, with_tls
from retexo_fl.training.messages import Record

#: TLS between two agents, EC P-256 certificates of both, measured: ClientHello; ServerHello to
#: Finished of the end that accepts; Certificate to Finished of the end that connects.
_HELLO_BYTES: Final = 517
_ACCEPTING_BYTES: Final = 1_000
_CONNECTING_BYTES: Final = 800
#: Messages of the link between agents (exchange/link/messages.py), headers included.
_GREET_BYTES: Final = 16
_HAVE_BYTES: Final = 12
_OFFER_BYTES: Final = 85
#: Frames of a block: HELLO's payload, and of each frame its header and that of its message.
_HELLO_PAYLOAD_BYTES: Final = 106
_FRAME_MORE_BYTES: Final = 36
_FRAME_BYTES: Final = 2**20

#: Requests of flwr 1.41's SuperNode over HTTP/1.1 and TLS and their answers, as the meter saw them.
_PULL_MESSAGES: Final = (897, 720)
_PULL_OBJECT: Final = (971, 340)
_CONFIRM: Final = (984, 150)
_PUSH_MESSAGES: Final = (1_531, 682)
_PUSH_OBJECT: Final = (1_200, 174)
#: Its TLS handshake: ClientHello, and the answer with the SuperLink's certificate.
_TLS: Final = (517, 843)
#: What a new connection adds to its first request: TLS's Finished; and the session tickets.
_FINISHED: Final = (80, 510)
#: Objects are pulled and pushed on so many connections at a time.
_WORKERS: Final = 2
#: Objects of every message beside its records: itself, and the list of them. An array beside a
#: record is three: its bytes, then two more. They are pushed in the order of the records, the
#: message itself last, and pulled in an order by chance.
_OBJECTS: Final = 2
_OBJECTS_BESIDE_ARRAY: Final = 2
#: Connections that may have to be opened anew for one way of a message: none, one or both.
#: httpx and uvicorn close one that was idle for 5 s.
OPENED: Final = (0, 1, 2)


# ---- between clients ----------------------------------------------------------------------------


def link_s(path: Path) -> float:
    """Return the seconds until a client that connects may offer blocks: TCP, TLS, greeting.

    Args:
        path: From the client that connects to its peer.
    """
    return (
        connect_s(path)
        + request_s(path, _HELLO_BYTES, _ACCEPTING_BYTES)
        + request_s(path, _CONNECTING_BYTES + with_tls(_GREET_BYTES), with_tls(_GREET_BYTES))
    )


def block_s(path: Path, payload_bytes: int) -> float:
    """Return the seconds from offering a block on a link to its last byte at the receiver.

    Args:
        path: From the sender to the receiver.
        payload_bytes: Its vectors as coded.
    """
    frames = 2 + math.ceil(payload_bytes / _FRAME_BYTES)
    more_bytes = _OFFER_BYTES + _HELLO_PAYLOAD_BYTES + frames * _FRAME_MORE_BYTES
    return transfer_s(path, with_tls(payload_bytes + more_bytes))


def acknowledgement_s(path: Path) -> float:
    """Return the seconds from then to the acknowledgement, if nothing else is sent that way.

    Args:
        path: From the sender of the block to its receiver.
    """
    return transfer_s(path.reverse, with_tls(_HAVE_BYTES))


# ---- Flower's messages --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowerMessage:
    """A message of the server and its reply.

    Attributes:
        down: Records of the message.
        up: Records of the reply.
        is_first: The first message of a run: the SuperNode asks for the run and its app, too.
    """

    down: tuple[Record, ...] = (Record(),)
    up: tuple[Record, ...] = (Record(),)
    is_first: bool = False


def receive_s(path: Path, message: FlowerMessage, *, opened: int = 0) -> float:
    """Return the seconds in which a SuperNode asks for a message, gets it and confirms.

    Args:
        path: From the client to the server.
        message: What is received.
        opened: Connections that have to be opened anew, up to two.
    """
    asked = 3 if message.is_first else 1
    fixed_s = asked * request_s(path, *_PULL_MESSAGES) + request_s(path, *_CONFIRM)
    objects = objects_of(message.down)
    small_s = _pull_s(path, 0)
    large_s = [_pull_s(path, more_bytes) for more_bytes in objects if more_bytes]
    orders_s = []
    for places in permutations(range(len(objects)), len(large_s)):
        at = dict(zip(places, large_s, strict=True))
        times = [at.get(place, small_s) for place in range(len(objects))]
        orders_s.append(_in_parallel(path, times, opened=opened))
    return fixed_s + sum(orders_s) / len(orders_s)


def send_s(path: Path, message: FlowerMessage, *, opened: int = 0) -> float:
    """Return the seconds in which a SuperNode sends its reply.

    Args:
        path: From the client to the server.
        message: What is replied to.
        opened: Connections that have to be opened anew, up to two.
    """
    times = [_push_s(path, more_bytes) for more_bytes in objects_of(message.up)]
    return request_s(path, *_PUSH_MESSAGES) + _in_parallel(path, times, opened=opened)


def objects_of(records: Sequence[Record]) -> list[int]:
    """Return the objects of a message in the order in which they are pushed.

    Of each, the bytes of an array that are in it.
    """
    found: list[int] = []
    for record in records:
        found.append(record.coded_bytes)
        if record.array_bytes is not None:
            found += [record.array_bytes, *[0] * _OBJECTS_BESIDE_ARRAY]
    return found + [0] * _OBJECTS


def _pull_s(path: Path, more_bytes: int) -> float:
    up_bytes, down_bytes = _PULL_OBJECT
    return request_s(path, up_bytes, _grown(down_bytes, more_bytes))


def _push_s(path: Path, more_bytes: int) -> float:
    up_bytes, down_bytes = _PUSH_OBJECT
    return request_s(path, _grown(up_bytes, more_bytes), down_bytes)


def _grown(size_bytes: int, more_bytes: int) -> int:
    """Return the bytes of a request or answer, as the meter saw it, with those of an array."""
    return with_tls(size_bytes + more_bytes) if more_bytes else size_bytes


def _in_parallel(path: Path, times: Sequence[float], *, opened: int) -> float:
    """Return how long both workers take, with the connections opened that are not there.

    The first connection serves what comes before and the first worker: it is opened first.
    """
    open_s = connect_s(path) + request_s(path, *_TLS)
    open_s += float(path.there.byte_s) * _FINISHED[0] + float(path.back.byte_s) * _FINISHED[1]
    free = [(0.0, worker) for worker in range(_WORKERS)]
    late_s = {1: open_s if opened else 0.0}
    for seconds in times:
        at_s, worker = heapq.heappop(free)
        heapq.heappush(free, (at_s + late_s.pop(worker, 0.0) + seconds, worker))
    return max(free)[0] + (open_s if opened == len(OPENED) - 1 else 0.0)
