"""The broadcast program on frames that come from nowhere: what it rewrites, drops and lets pass."""

from __future__ import annotations

import socket
import struct
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from retexo_fl.additions.kernel_path.packets.packets import (
    PacketHead,
    parse_header,
    ping_packet,
    readdress,
)
from retexo_fl.additions.kernel_path.xdp import broadcast as module
from retexo_fl.additions.kernel_path.xdp.broadcast import (
    GROUP_PORT,
    MAX_GROUPS,
    BroadcastMember,
    TcBroadcast,
)
from retexo_fl.additions.kernel_path.xdp.capabilities import drop_after_loading
from retexo_fl.additions.kernel_path.xdp.libbpf import BpfProgram
from retexo_fl.additions.kernel_path.xdp.neighbours import ethernet_address, interface_towards
from retexo_fl.additions.kernel_path.xdp.udp_frame import udp_frame
from retexo_fl.errors import ChannelUnavailable
from tests.support.kernel import require_bpf

OWN, PEER, FIRST = b"\2own..", b"\2peer.", b"\2first"
SOURCE, FIRST_PEER = ("192.0.2.1", 7411), ("192.0.2.2", GROUP_PORT)
MEMBER = BroadcastMember(address="203.0.113.77", port=65_000, token=2**64 - 2, stream=2**32 - 3)
GROUP = 7
DROPS, GOES_ON = 2, 2**32 - 1


class Loaded:
    """The program of one interface, without peers: groups of one have no copies to send."""

    def __init__(self) -> None:
        self.broadcast = TcBroadcast("lo")

    def forget(self) -> None:
        for number in range(MAX_GROUPS + 1):
            self.broadcast.remove_group(number)
        self.broadcast._counters[:] = 0

    @property
    def program(self) -> BpfProgram:
        return self.broadcast._program

    def packet(self, token: int | None = None, stream: int = GROUP) -> bytes:
        """Return a packet to a group."""
        head = PacketHead(token=1, stream=1, job=9, stage=3, sender=4)
        whole = np.frombuffer(ping_packet(head, 5), dtype=np.uint8).copy()
        readdress(whole, self.broadcast.token if token is None else token, stream)
        return whole.tobytes()

    def frame(self, packet: bytes, *, has_checksum: bool = False) -> bytes:
        return udp_frame((FIRST, OWN), SOURCE, FIRST_PEER, packet, has_checksum=has_checksum)

    def counted(self, **counts: int) -> bool:
        nothing = dict.fromkeys(self.broadcast.counters(), 0)
        return self.broadcast.counters() == nothing | counts


@pytest.fixture(scope="module")
def attached() -> Generator[Loaded]:
    require_bpf()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ethernet_address", lambda _interface: OWN)
        patch.setattr(module, "neighbour_mac", lambda *_, **__: PEER)
        made = Loaded()
        yield made
        made.broadcast.close()


@pytest.fixture
def loaded(attached: Loaded) -> Loaded:
    attached.forget()
    return attached


@pytest.mark.parametrize("has_checksum", [False, True])
def test_the_last_member_gets_the_packet_itself_readdressed(
    loaded: Loaded, has_checksum: bool
) -> None:
    loaded.broadcast.set_group(GROUP, [MEMBER])
    packet = loaded.packet()
    seen = loaded.program.test_run(loaded.frame(packet, has_checksum=has_checksum))
    turned = np.frombuffer(packet, dtype=np.uint8).copy()
    readdress(turned, MEMBER.token, MEMBER.stream)
    wanted = udp_frame(
        (PEER, OWN),
        SOURCE,
        (MEMBER.address, MEMBER.port),
        turned.tobytes(),
        has_checksum=has_checksum,
    )
    assert (seen.code, seen.frame) == (GOES_ON, wanted)
    header = parse_header(seen.frame[42:])
    assert header is not None, "our own checksum leaves out what was rewritten"
    assert (header.head.token, header.head.stream) == (MEMBER.token, MEMBER.stream)
    assert loaded.counted(copies=1)


def test_checksums_fit_any_address_port_token_and_stream(loaded: Loaded) -> None:
    generator = np.random.default_rng(3)
    for _ in range(300):
        address = socket.inet_ntoa(generator.bytes(4))
        port, stream, token = (int(generator.integers(1, 2**bits)) for bits in (16, 32, 63))
        member = BroadcastMember(address=address, port=port, token=token, stream=stream)
        loaded.broadcast.set_group(GROUP, [member])
        packet = loaded.packet()
        turned = np.frombuffer(packet, dtype=np.uint8).copy()
        readdress(turned, token, stream)
        wanted = udp_frame(
            (PEER, OWN), SOURCE, (address, port), turned.tobytes(), has_checksum=True
        )
        assert loaded.program.test_run(loaded.frame(packet, has_checksum=True)).frame == wanted


def test_a_packet_of_no_group_or_of_another_token_goes_nowhere(loaded: Loaded) -> None:
    loaded.broadcast.set_group(GROUP, [MEMBER])
    other = loaded.frame(loaded.packet(stream=GROUP + 1))
    assert loaded.program.test_run(other).code == DROPS
    forged = loaded.frame(loaded.packet(token=loaded.broadcast.token ^ 1))
    assert loaded.program.test_run(forged).code == DROPS
    loaded.broadcast.remove_group(GROUP)
    assert loaded.program.test_run(loaded.frame(loaded.packet())).code == DROPS
    assert loaded.counted(no_group=2, refused=1)


def test_every_other_frame_goes_on_untouched(loaded: Loaded) -> None:
    loaded.broadcast.set_group(GROUP, [MEMBER])
    whole = loaded.frame(loaded.packet())
    others = {
        "a port of its own": udp_frame((FIRST, OWN), SOURCE, ("192.0.2.2", 7411), loaded.packet()),
        "no packet of ours": loaded.frame(b"something else".ljust(112, b".")),
        "of another version": changed(whole, 46, b"\x02"),
        "too short for a header": whole[:60],
        "IPv6": changed(whole, 12, b"\x86\xdd"),
        "IP with options": changed(whole, 14, b"\x46"),
        "a fragment": changed(whole, 20, b"\x20\x00"),
        "a later fragment": changed(whole, 20, b"\x00\x01"),
        "TCP": changed(whole, 23, b"\x06"),
    }
    for name, frame in others.items():
        seen = loaded.program.test_run(frame)
        assert (seen.code, seen.frame) == (GOES_ON, frame), name
    assert loaded.counted()


def test_a_damaged_payload_is_copied_as_it_is(loaded: Loaded) -> None:
    """What the checksum says is the receiver's to judge: nothing of it is made right here."""
    loaded.broadcast.set_group(GROUP, [MEMBER])
    packet = changed(loaded.packet(), 60, b"\xff")
    seen = loaded.program.test_run(loaded.frame(packet))
    assert seen.frame[42 + 20 :] == packet[20:]
    assert parse_header(seen.frame[42:]) is None


def test_groups_that_do_not_fit_are_refused(loaded: Loaded) -> None:
    for size in (0, 65):
        with pytest.raises(ChannelUnavailable, match="expected 1 to 64"):
            loaded.broadcast.set_group(GROUP, [MEMBER] * size)
    for number in range(MAX_GROUPS):
        loaded.broadcast.set_group(number, [MEMBER])
    with pytest.raises(ChannelUnavailable, match="groups"):
        loaded.broadcast.set_group(MAX_GROUPS, [MEMBER])
    loaded.broadcast.remove_group(0)
    loaded.broadcast.set_group(MAX_GROUPS, [MEMBER])


def test_groups_are_changed_by_who_has_dropped_all_privileges(loaded: Loaded) -> None:
    def change() -> None:
        # Of this thread alone.
        drop_after_loading()
        loaded.broadcast.set_group(GROUP + 1, [MEMBER])
        loaded.broadcast.set_group(GROUP, [MEMBER, MEMBER])
        loaded.broadcast.set_group(GROUP, [MEMBER])
        loaded.broadcast.remove_group(GROUP + 1)
        assert interface_towards("127.0.0.1") == "lo"

    with ThreadPoolExecutor(1) as pool:
        pool.submit(change).result(10.0)
    assert loaded.program.test_run(loaded.frame(loaded.packet())).code == GOES_ON
    assert loaded.program.test_run(loaded.frame(loaded.packet(stream=GROUP + 1))).code == DROPS


def test_an_interface_that_is_not_there_or_not_ethernet_is_named() -> None:
    with pytest.raises(ChannelUnavailable, match="nowhere0: No such device"):
        ethernet_address("nowhere0")
    with pytest.raises(ChannelUnavailable, match="lo: .*expected an Ethernet"):
        ethernet_address("lo")


def changed(data: bytes, place: int, by: bytes) -> bytes:
    return data[:place] + by + data[place + len(by) :]


def test_the_frames_of_these_tests_have_right_checksums() -> None:
    frame = udp_frame((FIRST, OWN), SOURCE, FIRST_PEER, b"abc", has_checksum=True)
    words = struct.unpack("!10H", frame[14:34])
    assert sum(words) % 0xFFFF == 0
    pseudo = frame[26:34] + struct.pack("!HH", 17, 11) + frame[34:] + b"\0"
    assert sum(struct.unpack(f"!{len(pseudo) // 2}H", pseudo)) % 0xFFFF == 0
