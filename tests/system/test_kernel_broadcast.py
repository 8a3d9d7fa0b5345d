"""One send reaches every member of a group: cloned in the kernel, between network namespaces."""

from __future__ import annotations

import array
import fcntl
import socket
import struct
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest

from retexo_fl.additions.kernel_path.packets.packets import PacketHead, ping_packet, readdress
from retexo_fl.additions.kernel_path.xdp.broadcast import BroadcastMember, TcBroadcast
from retexo_fl.errors import ChannelUnavailable
from tests.support.host import Host
from tests.support.hosts import Hosts
from tests.support.inside import inside
from tests.support.loss import BadCable
from tests.support.part import wait_until

pytestmark = [pytest.mark.system]

PORT = 7411
GROUP = 12
PACKETS = 40
_WAIT_S = 5.0
#: asm/socket.h, linux/udp.h, linux/sockios.h, linux/ethtool.h.
_SO_NO_CHECK = 11
_SOL_UDP, _UDP_SEGMENT = 17, 103
_SIOCETHTOOL, _ETHTOOL_STXCSUM = 0x8946, 0x17


@pytest.fixture(scope="module")
def hosts() -> Generator[Hosts]:
    with Hosts(["sender", *(f"peer{number}" for number in range(8))]) as made:
        yield made


@pytest.mark.parametrize("has_checksum", [False, True])
@pytest.mark.parametrize("count", [2, 4, 8])
def test_members_get_each_packet_once_with_own_token_and_stream(
    hosts: Hosts, count: int, has_checksum: bool
) -> None:
    peers = list(hosts)[1 : 1 + count]
    with Group(hosts["sender"], peers) as group:
        group.sender.setsockopt(socket.SOL_SOCKET, _SO_NO_CHECK, not has_checksum)
        packets = [payload(number) for number in range(PACKETS)]
        for packet in packets:
            group.send(packet)
        for number, listener in enumerate(group.listeners):
            # The kernel drops a datagram with a wrong checksum before the socket sees it.
            got = sorted(listener.recv(2048) for _ in range(PACKETS))
            assert got == sorted(turned_to(number, packet) for packet in packets)
        assert group.broadcast.counters() == counted(copies=PACKETS * count)
        assert group.nothing_more()


def test_a_checksum_by_the_interface_is_right_at_every_member(hosts: Hosts) -> None:
    peers = list(hosts)[1:4]
    with Group(hosts["sender"], peers) as group, checksums_left_to_the_interface(hosts["sender"]):
        # The sum is not filled in yet when the program readdresses the packet; it is by the switch.
        group.send(payload(1))
        for number, listener in enumerate(group.listeners):
            assert listener.recv(2048) == turned_to(number, payload(1))


def test_a_group_is_changed_and_removed_between_two_packets(hosts: Hosts) -> None:
    with Group(hosts["sender"], list(hosts)[1:4]) as group:
        group.send(payload(1))
        for number, listener in enumerate(group.listeners):
            assert listener.recv(2048) == turned_to(number, payload(1))
        group.set(group.members[1:2])
        group.send(payload(2))
        assert group.listeners[1].recv(2048) == turned_to(1, payload(2))
        assert group.nothing_more()
        group.broadcast.remove_group(GROUP)
        group.send(payload(3))
        assert group.nothing_more()
        assert group.broadcast.counters() == counted(copies=4, no_group=1)


def test_what_must_not_be_cloned_is_dropped_and_counted(hosts: Hosts) -> None:
    with Group(hosts["sender"], list(hosts)[1:3]) as group:
        group.send(payload(1), token=group.broadcast.token ^ 1)
        two = payload(1) + payload(2)
        group.sender.setsockopt(_SOL_UDP, _UDP_SEGMENT, len(payload(1)))
        group.send(two)
        assert group.nothing_more()
        assert group.broadcast.counters() == counted(refused=1, segmented=1)


def test_other_packets_pass_untouched_and_nothing_stays_behind(hosts: Hosts) -> None:
    with Group(hosts["sender"], list(hosts)[1:3]) as group:
        group.sender.sendto(payload(1), (group.peers[0].address, PORT))
        assert group.listeners[0].recv(2048) == payload(1)
        group.sender.sendto(b"not ours", (group.peers[1].address, group.broadcast.port))
        assert group.broadcast.counters() == counted()
    shown = hosts["sender"].run(["tc", "filter", "show", "dev", "eth0", "egress"])
    assert "broadcast" not in shown


def test_a_member_that_the_interface_does_not_reach_is_refused(hosts: Hosts) -> None:
    sender = hosts["sender"]
    with Group(sender, list(hosts)[1:3]) as group:
        own = BroadcastMember(address=sender.address, port=PORT, token=1, stream=1)
        with pytest.raises(ChannelUnavailable, match="this machine"):
            group.set([own])
        nobody = BroadcastMember(address="10.77.0.200", port=PORT, token=1, stream=1)
        with pytest.raises(ChannelUnavailable, match="no Ethernet address at eth0"):
            group.set([nobody], timeout_s=0.05)


def test_a_bad_cable_loses_and_doubles_as_its_seed_says(hosts: Hosts) -> None:
    """The tests' own program: what others rely on when they count losses."""
    sender, peer = hosts["sender"], hosts["peer0"]
    counts = []
    for _ in range(2):
        with (
            Group(sender, [peer]) as group,
            BadCable(sender, udp_port=PORT, lost=0.2, doubled=0.1, seed=7) as cable,
        ):
            for number in range(200):
                group.sender.sendto(number.to_bytes(8, "big"), (peer.address, PORT))
            # A send returns before its frame is at the far end of the cable.
            wait_until(lambda: cable.counters()["seen"] == 200, "frames are still under way")
            seen = cable.counters()
            got = [group.listeners[0].recv(64) for _ in range(200 - seen["lost"] + seen["doubled"])]
            assert group.nothing_more()
            assert len(set(got)) == 200 - seen["lost"]
            assert seen["seen"] == 200
            assert 20 < seen["lost"] < 60
            assert 8 < seen["doubled"] < 40
            assert not seen["failed"]
            counts.append((seen, sorted(got)))
    assert counts[0] == counts[1]


@contextmanager
def checksums_left_to_the_interface(host: Host) -> Iterator[None]:
    _set_checksum_offload(host, 1)
    yield
    _set_checksum_offload(host, 0)


def _set_checksum_offload(host: Host, value: int) -> None:
    setting = array.array("I", (_ETHTOOL_STXCSUM, value))
    request = struct.pack("16sP16x", b"eth0", setting.buffer_info()[0])
    with inside(host.namespace), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCETHTOOL, request)


class Group:
    """A sender with the program at its interface, and its peers' sockets."""

    def __init__(self, host: Host, peers: Sequence[Host]) -> None:
        self.host, self.peers = host, peers
        self.members = [
            BroadcastMember(
                address=peer.address, port=PORT, token=token_of(number), stream=100 + number
            )
            for number, peer in enumerate(peers)
        ]

    def __enter__(self) -> Group:
        self._stack = ExitStack()
        with self._stack:
            self.listeners = [self._socket(peer) for peer in self.peers]
            self.sender = self._socket(self.host)
            with inside(self.host.namespace):
                self.broadcast = TcBroadcast("eth0")
            self._stack.callback(self.broadcast.close)
            self.set(self.members)
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _socket(self, host: Host) -> socket.socket:
        with inside(host.namespace):
            made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._stack.enter_context(made)
        made.bind((host.address, PORT))
        made.settimeout(_WAIT_S)
        return made

    def set(self, members: Sequence[BroadcastMember], *, timeout_s: float = 1.0) -> None:
        with inside(self.host.namespace):
            self.broadcast.set_group(GROUP, members, timeout_s=timeout_s)

    def send(self, packet: bytes, *, token: int | None = None) -> None:
        whole = np.frombuffer(packet, dtype=np.uint8).copy()
        readdress(whole, self.broadcast.token if token is None else token, GROUP)
        self.sender.sendto(whole.tobytes(), (self.peers[0].address, self.broadcast.port))

    def nothing_more(self) -> bool:
        """Say whether no peer has anything to read."""
        for listener in self.listeners:
            listener.settimeout(0.02)
            try:
                listener.recv(2048)
            except TimeoutError:
                continue
            finally:
                listener.settimeout(_WAIT_S)
            return False
        return True


def payload(number: int) -> bytes:
    """Return a packet of ours; each number's is another."""
    return ping_packet(PacketHead(token=0, stream=0, job=3, stage=2, sender=1), number)


def turned_to(number: int, packet: bytes) -> bytes:
    """Return a packet as the member of a group must get it."""
    whole = np.frombuffer(packet, dtype=np.uint8).copy()
    readdress(whole, token_of(number), 100 + number)
    return whole.tobytes()


def token_of(number: int) -> int:
    return 2**64 - 1 - 1000 * number


def counted(**counts: int) -> dict[str, int]:
    nothing = dict.fromkeys(("copies", "failed", "no_group", "segmented", "refused"), 0)
    return nothing | counts
