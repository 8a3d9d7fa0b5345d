"""What `shaper.py` recorded: when something was under way between two hosts, and how much.

Neither the speed of this machine nor who was asleep is in these figures: a frame is under way from
its arrival at the switch to its time at the other end.
"""

from __future__ import annotations

import math
import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_TCP, _SYN, _ACK = 6, 2, 16
_NS = 1e9
#: A sender that waited for an acknowledgement sends at once when it has it: the kernel does that.
_AT_ONCE_S = 0.01
#: Least data of a packet of a large transfer.
_FULL_BYTES = 1_000
#: A connection opened so long before a transfer was opened for it.
_OPENING_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Packet:
    """One TCP packet.

    Attributes:
        sender: Place of the host in the order of the hosts; ``receiver`` likewise.
        left_s: When it arrived at the switch; Unix time.
        arrived_s: When it was given to the receiver.
        port: The lower of both ports: the one that is listened at.
        connection: The other port.
        data_bytes: Bytes of the stream.
        opens: It is the first of a connection.
        is_opening: It is the first or its answer.
    """

    sender: int
    receiver: int
    left_s: float
    arrived_s: float
    port: int
    connection: int
    data_bytes: int
    opens: bool
    is_opening: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """Packets with no longer pause between them.

    Attributes:
        begun_s: When the first left; ``ended_s``: when the last arrived.
        busy_s: Seconds in which data was under way, or an acknowledgement that data waited for.
        data_bytes: Bytes of the streams by sender.
        opened: Connections that were begun.
    """

    begun_s: float
    ended_s: float
    busy_s: float
    data_bytes: dict[int, int]
    opened: int


def packets(record: Path) -> list[Packet]:
    """Read all TCP packets of a record, in the order in which they left."""
    found = []
    for line in record.read_text(encoding="ascii").splitlines():
        sender, receiver, left, arrived, head = line.split()
        ip = bytes.fromhex(head)
        if ip[9] != _TCP:
            continue
        (total,) = struct.unpack_from("!H", ip, 2)
        ports = struct.unpack_from("!HH", ip, 20)
        found.append(
            Packet(
                sender=int(sender),
                receiver=int(receiver),
                left_s=int(left) / _NS,
                arrived_s=int(arrived) / _NS,
                port=min(ports),
                connection=max(ports),
                data_bytes=total - 20 - 4 * (ip[32] >> 4),
                opens=ip[33] & (_SYN | _ACK) == _SYN,
                is_opening=bool(ip[33] & _SYN),
            )
        )
    return sorted(found, key=lambda packet: packet.left_s)


def bursts(found: Sequence[Packet], *, pause_s: float) -> list[Burst]:
    """Cut the packets of two hosts where nothing was under way for so long.

    Acknowledgements count where data followed at once that had waited for them: else somebody
    computes, and nothing that is waited for is under way.
    """
    groups: list[list[Packet]] = []
    until_s = 0.0
    for packet in _that_matter(found):
        if not groups or packet.left_s > until_s + pause_s:
            groups.append([])
        groups[-1].append(packet)
        until_s = max(until_s, packet.arrived_s)
    return [_burst(group) for group in groups]


def _that_matter(found: Sequence[Packet]) -> Iterator[Packet]:
    sent: dict[tuple[int, int], list[float]] = {}
    for packet in found:
        if packet.data_bytes:
            sent.setdefault((packet.sender, packet.connection), []).append(packet.left_s)
    for packet in found:
        if packet.data_bytes or packet.is_opening:
            yield packet
            continue
        times = sent.get((packet.receiver, packet.connection), [])
        place = bisect_left(times, packet.arrived_s - _AT_ONCE_S / 10)
        if place < len(times) and times[place] <= packet.arrived_s + _AT_ONCE_S:
            yield packet


def _burst(group: Sequence[Packet]) -> Burst:
    ended_s = max(packet.arrived_s for packet in group)
    busy_s, until_s = 0.0, group[0].left_s
    data_bytes: dict[int, int] = {}
    for packet in group:
        busy_s += max(0.0, packet.arrived_s - max(packet.left_s, until_s))
        until_s = max(until_s, packet.arrived_s)
        data_bytes[packet.sender] = data_bytes.get(packet.sender, 0) + packet.data_bytes
    return Burst(
        begun_s=group[0].left_s,
        ended_s=ended_s,
        busy_s=busy_s,
        data_bytes=data_bytes,
        opened=sum(packet.opens for packet in group),
    )


def transfers(found: Sequence[Packet], *, sender: int, pause_s: float = 1.0) -> list[float]:
    """Return the seconds that each large transfer of one end was under way, in their order.

    From the first full packet, or from the opening of the connection just before it, to the arrival
    of the last one; packets with less data are questions and acknowledgements.

    Args:
        found: Packets of two hosts.
        sender: The end that sends them.
        pause_s: After so long without a full packet, another transfer begins.
    """
    runs: list[list[Packet]] = []
    for packet in found:
        if packet.sender != sender or packet.data_bytes < _FULL_BYTES:
            continue
        if not runs or packet.left_s - runs[-1][-1].left_s > pause_s:
            runs.append([])
        runs[-1].append(packet)
    openings = [packet.left_s for packet in found if packet.opens and packet.sender == sender]
    return [
        _carried_s(found, sender, _begun_s(run[0].left_s, openings), run[-1].left_s) for run in runs
    ]


def _carried_s(found: Sequence[Packet], sender: int, begun_s: float, ended_s: float) -> float:
    """Return how long one end's data was under way, and what it waited for."""
    carried = [packet for packet in found if begun_s <= packet.left_s <= ended_s]
    # What the other end sends of its own is not waited for; its handshake and greeting are.
    carried = [one for one in carried if one.sender == sender or one.data_bytes < _FULL_BYTES]
    (burst,) = bursts(carried, pause_s=math.inf)
    return burst.busy_s


def _begun_s(first_s: float, openings: Sequence[float]) -> float:
    before = [opened_s for opened_s in openings if 0 < first_s - opened_s < _OPENING_S]
    return before[-1] if before else first_s
