"""The same packets for several peers: a sender's processor time for each copy, by how it sends."""

from __future__ import annotations

import time
from typing import Final

import numpy as np

from retexo_fl.additions.kernel_path.endpoint import Destination, StreamGrant
from retexo_fl.additions.kernel_path.endpoint.broadcasting import BroadcastKind, Groups
from retexo_fl.additions.kernel_path.endpoint.records import socket_address
from retexo_fl.additions.kernel_path.endpoint.sender import PacketSender
from retexo_fl.additions.kernel_path.endpoint.udp_socket import UdpSocket
from retexo_fl.additions.kernel_path.packets.packets import PacketHead, pack_packets, readdress
from retexo_fl.additions.kernel_path.packets.stream_shape import StreamShape
from retexo_fl.additions.kernel_path.xdp.aggregate import ETHERNET_CELLS, TableSizes
from retexo_fl.additions.kernel_path.xdp.broadcast import TcBroadcast
from retexo_fl.additions.kernel_path.xdp.receiver import XdpReceiver
from retexo_fl.errors import ChannelError
from sims.kernel_path.processes import Helper
from sims.kernel_path.wire import End, Wire, enter
from sims.kernel_path.workload import JOB, STAGE

KINDS: Final[tuple[BroadcastKind, ...]] = ("sendto", "sendmmsg", "gso", "tc")
_PORT: Final = 7411
_BATCH_PACKETS: Final = 128
_TINY: Final = TableSizes(cells=1, seen_blocks=1, slots=1, streams=1, regions=1)
_KEY: Final = b"copies"


class Broadcasts:
    """A sender and what drops its packets at the other end, for a ``with`` block.

    All copies leave by one interface, as from a machine with one network card. What arrives is
    dropped by an XDP program, in the sender's time: no queue can fill.

    Args:
        wire: Between them.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def __enter__(self) -> Broadcasts:
        """Start the processes."""
        self._wire.use_threads(False)
        self._dropper = Helper("spawn", Dropper, self._wire.receiver)
        self._sender = Helper("spawn", Broadcaster, self._wire.sender, self._wire.further)
        return self

    def __exit__(self, *_: object) -> None:
        """End them."""
        self._sender.close()
        self._dropper.close()
        self._wire.use_threads(True)

    def seconds_per_copy(self, kind: BroadcastKind, peers: int, copies: int) -> float:
        """Send about so many copies to so many peers; return the processor time of one.

        Raises:
            ChannelError: Not all of them arrived.
        """
        before = self._dropper.call("dropped")
        seconds, made = self._sender.call("send", kind, peers, copies)
        if (arrived := self._dropper.call("dropped") - before) != made:
            raise ChannelError(f"broadcast by {kind} to {peers}: {arrived} of {made} copies")
        return float(seconds / made)


class Dropper:
    """Drops and counts what arrives: the aggregate program, with no stream open.

    Args:
        end: Where it arrives.
    """

    def __init__(self, end: End) -> None:
        enter(end.namespace)
        self._receiver = XdpReceiver(end.interface, _PORT, sizes=_TINY, mode="native")

    def dropped(self) -> int:
        """Return how many packets it dropped."""
        return self._receiver.counters()["foreign"]

    def close(self) -> None:
        """Detach it."""
        self._receiver.close()


class Broadcaster:
    """Sends batches as an endpoint does, without a window.

    Args:
        end: Where packets leave.
        addresses: Of the peers.
    """

    def __init__(self, end: End, addresses: list[str]) -> None:
        enter(end.namespace)
        self._destinations = [
            Destination(
                address=f"{address}:{_PORT}", grant=StreamGrant(token=number, stream=number)
            )
            for number, address in enumerate(addresses, start=1)
        ]
        self._groups = Groups(TcBroadcast(end.interface), "tc")
        self._socket = UdpSocket(f"{end.address}:0")
        self._shape = StreamShape(_BATCH_PACKETS * ETHERNET_CELLS // 4, 64, ETHERNET_CELLS)
        head = PacketHead(token=1, stream=1, job=JOB, stage=STAGE, sender=0)
        self._packets = np.zeros((_BATCH_PACKETS, self._shape.packet_bytes), np.uint8)
        values = np.ones((self._shape.rows, self._shape.width), np.int32)
        flags = np.zeros(_BATCH_PACKETS, np.uint8)
        seqs = np.arange(_BATCH_PACKETS)
        pack_packets(self._shape, head, values, seqs, self._packets, flags=flags)

    def send(self, kind: BroadcastKind, peers: int, copies: int) -> tuple[float, int]:
        """Send about so many copies; return processor time, and how many copies were made."""
        destinations = self._destinations[:peers]
        sender = PacketSender(self._socket, kind)
        batches = max(1, copies // (_BATCH_PACKETS * peers))
        if kind == "tc":
            return self._clone(sender, destinations, batches), batches * _BATCH_PACKETS * peers
        names = [socket_address(destination.address) for destination in destinations]
        begun = time.process_time()
        for _ in range(batches):
            for destination, name in zip(destinations, names, strict=True):
                readdress(self._packets, destination.grant.token, destination.grant.stream)
                self._hand_over(sender, name, is_cloned=False)
        return time.process_time() - begun, batches * _BATCH_PACKETS * peers

    def close(self) -> None:
        """Close the socket and take the program away."""
        self._groups.close()
        self._socket.close()

    def _clone(self, sender: PacketSender, destinations: list[Destination], batches: int) -> float:
        group = self._groups.set(_KEY, destinations)
        assert group is not None
        begun = time.process_time()
        for _ in range(batches):
            readdress(self._packets, group.token, group.number)
            self._hand_over(sender, group.name, is_cloned=True)
        return time.process_time() - begun

    def _hand_over(self, sender: PacketSender, name: bytes, *, is_cloned: bool) -> None:
        data = self._packets.reshape(-1)
        problem = sender.send(
            data, self._shape.packet_bytes, name, to_many=True, is_cloned=is_cloned
        )
        if problem or sender.is_blocked:
            raise ChannelError(f"broadcast: {problem or 'the buffer of the socket is full'}")
