"""A switch in user space: frames between hosts with a delay, a rate and losses for each way.

The kernel's own means (netem) is not in every kernel. This program holds one packet socket for each
port, keeps every frame until its time, and gives it to the port of its destination. Between two
frames it sleeps; it ends when its standard input ends.

It is told what to do in one JSON text on standard input, `Orders.to_json()`; it prints `ready`.
"""

from __future__ import annotations

import ctypes
import heapq
import json
import os
import random
import select
import socket
import struct
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TextIO

#: Header of an Ethernet frame; a rate counts what stands behind it, the IP packet.
ETHERNET_BYTES = 14
#: A lane with a rate holds this much of sending time, or this many bytes if that is more.
QUEUE_S = 1.0
QUEUE_BYTES = 262_144
#: A lane without a rate holds this much.
UNLIMITED_QUEUE_BYTES = 67_108_864

_ALL_PROTOCOLS = 3
_SO_RCVBUFFORCE, _SO_SNDBUFFORCE, _SO_TIMESTAMPNS = 33, 32, 35
_SOL_PACKET, _ADD_MEMBERSHIP, _IGNORE_OUTGOING, _PROMISCUOUS = 263, 1, 23, 1
_SOCKET_BYTES = 33_554_432
_FRAMES_AT_ONCE = 256
_PR_SET_TIMERSLACK = 29
_NS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """What one direction between two hosts does to frames.

    Attributes:
        rate_bit_s: Bits of IP packets a second; None for no limit.
        delay_s: Seconds from the sender to the receiver.
        loss: Probability that a frame does not arrive, in [0, 1).
    """

    rate_bit_s: float | None = None
    delay_s: float = 0.0
    loss: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What the program is to do.

    Attributes:
        ports: Address of the host behind each interface, as ``02:00:...``, by the interface.
        ways: What is between two hosts, by ``"sender>receiver"`` of their interfaces; all others
            let everything pass at once.
        seed: Decides which frames are lost, for each way apart.
        record: File for one line for each frame that arrives; empty: none. See `packets.py`.
    """

    ports: Mapping[str, str]
    ways: Mapping[str, Way]
    seed: int = 0
    record: str = ""

    def to_json(self) -> str:
        """Return one line for the program."""
        ways = {name: asdict(way) for name, way in self.ways.items()}
        told = {"ports": dict(self.ports), "seed": self.seed, "record": self.record}
        return json.dumps({**told, "ways": ways})

    @classmethod
    def from_json(cls, text: str) -> Orders:
        """Read what :meth:`to_json` wrote."""
        told = json.loads(text)
        ways = {name: Way(**way) for name, way in told["ways"].items()}
        return cls(ports=told["ports"], ways=ways, seed=told["seed"], record=told["record"])


@dataclass(slots=True)
class _Lane:
    """One direction: when it is free again, and how many bytes wait in it."""

    way: Way
    chance: random.Random
    free_ns: int = 0
    waiting_bytes: int = 0

    def due_ns(self, arrived_ns: int, size_bytes: int) -> int | None:
        """Return when a frame arrives at the other end; None if it does not."""
        if self.way.loss and self.chance.random() < self.way.loss:
            return None
        packet_bytes = size_bytes - ETHERNET_BYTES
        if self.waiting_bytes + packet_bytes > self._room_bytes():
            return None
        begins = max(self.free_ns, arrived_ns)
        if self.way.rate_bit_s is not None:
            begins += round(packet_bytes * 8 * _NS / self.way.rate_bit_s)
        self.free_ns = begins
        return begins + round(self.way.delay_s * _NS)

    def _room_bytes(self) -> float:
        if self.way.rate_bit_s is None:
            return UNLIMITED_QUEUE_BYTES
        # What is under way on a long line does not stand in the queue before it.
        return max(QUEUE_BYTES, (QUEUE_S + self.way.delay_s) * self.way.rate_bit_s / 8)


@dataclass(slots=True)
class Switch:
    """The ports, the lanes between them, and the frames that wait for their time."""

    orders: Orders
    _ports: list[socket.socket] = field(default_factory=list)
    _lanes: dict[tuple[int, int], _Lane] = field(default_factory=dict)
    _by_address: dict[bytes, int] = field(default_factory=dict)
    _waiting: list[tuple[int, int, int, int, bytes]] = field(default_factory=list)
    _numbers: int = 0
    _record: TextIO | None = None

    def open(self) -> None:
        """Take hold of the interfaces."""
        names = list(self.orders.ports)
        if self.orders.record:
            # Open as long as the program runs.
            self._record = Path(self.orders.record).open("a", buffering=1)  # noqa: SIM115
        for number, name in enumerate(names):
            self._ports.append(_packet_socket(name))
            address = bytes.fromhex(self.orders.ports[name].replace(":", ""))
            self._by_address[address] = number
        for one, sender in enumerate(names):
            for other, receiver in enumerate(names):
                key = f"{sender}>{receiver}"
                way = self.orders.ways.get(key, Way())
                chance = random.Random(f"{self.orders.seed} {key}")
                self._lanes[one, other] = _Lane(way, chance)

    def serve(self, control: int) -> None:
        """Move frames until nothing more can be read from ``control``."""
        numbers = {port.fileno(): number for number, port in enumerate(self._ports)}
        while True:
            wait_s = None
            if self._waiting:
                wait_s = max(0.0, (self._waiting[0][0] - time.time_ns()) / _NS)
            readable, _, _ = select.select([control, *numbers], [], [], wait_s)
            if control in readable and not os.read(control, 4096):
                return
            for descriptor in readable:
                if descriptor != control:
                    self._take(numbers[descriptor])
            self._give()

    def _take(self, port: int) -> None:
        for _ in range(_FRAMES_AT_ONCE):
            try:
                frame, notes, _, _ = self._ports[port].recvmsg(2048, 64)
            except BlockingIOError:
                return
            except OSError:  # the interface went down; it may come back
                return
            receiver = self._by_address.get(frame[:6])
            if receiver is None or receiver == port:
                continue
            lane = self._lanes[port, receiver]
            arrived = _arrival_ns(notes)
            due = lane.due_ns(arrived, len(frame))
            if due is not None:
                if self._record is not None:
                    # Protocol, ports, sizes and flags: the first 60 bytes have no options of IP.
                    self._record.write(f"{port} {receiver} {arrived} {due} {frame[14:60].hex()}\n")
                lane.waiting_bytes += len(frame) - ETHERNET_BYTES
                self._numbers += 1
                entry = (due, self._numbers, port, receiver, frame)
                heapq.heappush(self._waiting, entry)

    def _give(self) -> None:
        now = time.time_ns()
        while self._waiting and self._waiting[0][0] <= now:
            _, _, sender, receiver, frame = heapq.heappop(self._waiting)
            self._lanes[sender, receiver].waiting_bytes -= len(frame) - ETHERNET_BYTES
            try:
                self._ports[receiver].send(frame)
            except OSError:  # the interface is down or its queue full: the frame is lost
                continue


def _packet_socket(interface: str) -> socket.socket:
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    for buffer in (_SO_RCVBUFFORCE, _SO_SNDBUFFORCE):
        port.setsockopt(socket.SOL_SOCKET, buffer, _SOCKET_BYTES)
    # The kernel's time of arrival: a frame is not late because this program was.
    port.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    port.setsockopt(_SOL_PACKET, _IGNORE_OUTGOING, 1)
    number = socket.if_nametoindex(interface)
    membership = struct.pack("iHH8s", number, _PROMISCUOUS, 0, b"")
    port.setsockopt(_SOL_PACKET, _ADD_MEMBERSHIP, membership)
    port.bind((interface, _ALL_PROTOCOLS))
    port.setblocking(False)
    return port


def _arrival_ns(notes: list[tuple[int, int, bytes]]) -> int:
    for level, kind, value in notes:
        if (level, kind) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS):
            seconds, nanoseconds = struct.unpack("ll", value)
            return int(seconds) * _NS + int(nanoseconds)
    return time.time_ns()


def main() -> None:
    """Read the orders, move frames, end with standard input."""
    # A sleep may end 50 us late otherwise.
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1000, 0, 0, 0)
    switch = Switch(Orders.from_json(sys.stdin.readline()))
    switch.open()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    switch.serve(sys.stdin.fileno())


if __name__ == "__main__":
    main()
