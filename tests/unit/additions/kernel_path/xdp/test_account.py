"""The counting programs: on frames that come from nowhere, and beside TCP's own account."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Generator
from typing import Any

import pytest

from retexo_fl.additions.kernel_path.xdp.account import ByteAccount, Flow, FlowVolume
from retexo_fl.additions.kernel_path.xdp.udp_frame import udp_frame
from retexo_fl.channels.transports.tcp_info import tcp_wire_counters
from retexo_fl.errors import ChannelUnavailable
from tests.support.kernel import require_bpf

MACS = (b"\2to...", b"\2from.")
HERE, THERE = ("203.0.113.1", 7411), ("203.0.113.9", 40_001)
GOES_ON = 2**32 - 1
UDP, TCP = 17, 6


@pytest.fixture
def account() -> Generator[ByteAccount]:
    require_bpf()
    with ByteAccount("lo") as made:
        yield made


def test_bytes_are_counted_by_peer_protocol_and_ports_both_ways(account: ByteAccount) -> None:
    programs = account._object.programs
    to_them, to_us = (udp_frame(MACS, *way, b"x" * 100) for way in ((HERE, THERE), (THERE, HERE)))
    for frame, name in ((to_them, "leaving"), (to_us, "arriving"), (to_us, "arriving")):
        seen = programs[name].test_run(frame)
        assert (seen.code, seen.frame) == (GOES_ON, frame)
    flow = Flow(peer=THERE[0], protocol=UDP, local_port=HERE[1], peer_port=THERE[1])
    assert account.flows()[flow] == FlowVolume(
        sent_bytes=128, sent_packets=1, received_bytes=256, received_packets=2
    )


def test_the_padding_of_a_short_frame_is_not_counted(account: ByteAccount) -> None:
    frame = udp_frame(MACS, THERE, HERE, b"abc").ljust(60, b"\0")
    account._object.programs["arriving"].test_run(frame)
    (volume,) = [one for flow, one in account.flows().items() if flow.peer == THERE[0]]
    assert volume.received_bytes == 31


def test_frames_without_ports_or_without_ipv4_are_no_error(account: ByteAccount) -> None:
    whole = udp_frame(MACS, THERE, HERE, b"x" * 20)
    later_fragment = whole[:20] + b"\x00\x10" + whole[22:]
    icmp = whole[:23] + b"\x01" + whole[24:]
    for frame in (later_fragment, icmp, whole[:12] + b"\x86\xdd" + whole[14:], whole[:34]):
        assert account._object.programs["arriving"].test_run(frame).code == GOES_ON
    found = {flow for flow in account.flows() if flow.peer == THERE[0]}
    assert found == {
        Flow(peer=THERE[0], protocol=protocol, local_port=0, peer_port=0) for protocol in (UDP, 1)
    }


def test_a_connection_is_counted_to_the_byte_as_tcp_counts_it(account: ByteAccount) -> None:
    """Over loopback, where several packets come as one: the headers of all of them count."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as near, listener.accept()[0] as far:
            reader = threading.Thread(target=_read, args=(far, 3_000_000))
            reader.start()
            near.sendall(bytes(3_000_000))
            reader.join(10.0)
            near.sendall(b"!")
            assert far.recv(1) == b"!"
            flow = Flow(
                peer="127.0.0.1", protocol=TCP, local_port=near.getsockname()[1], peer_port=port
            )
            told = tcp_wire_counters(near, is_accepting=False)
            counted = account.flows()[flow]
    assert told is not None
    assert counted.sent_bytes == told.sent_bytes
    # An acknowledgement may have been on its way between the two looks.
    assert told.received_bytes is not None
    assert told.received_bytes <= counted.received_bytes + 52
    # Of segments out of order one tells in up to 36 bytes, which TCP does not count.
    most = told.received_bytes + 52 + 36 * counted.received_packets
    assert counted.received_bytes <= most


@pytest.mark.parametrize(
    ("segments", "untold"),
    [
        ([(1000, 500), (1500, 500)], 0),
        ([(1000, 500), (1000, 500)], 500),
        # What it fills may have been a gap: both are possible.
        ([(1000, 500), (2000, 500), (1500, 500)], 500),
        ([(1000, 500), (1200, 500)], 300),
        # Numbers begin again after the last, and in another connection at the same ports.
        ([(2**32 - 100, 200), (100, 50), (0, 100)], 100),
        ([(1000, 500), ("SYN", 0), (900, 100), (1000, 100)], 0),
        ([(1000, 0), (1000, 0)], 0),
    ],
)
def test_data_that_came_before_is_counted_apart(
    account: ByteAccount, segments: list[tuple[Any, int]], untold: int
) -> None:
    """TCP's counters have its headers alone, and a machine that answers late gets it twice."""
    for number, size in segments:
        account._object.programs["arriving"].test_run(tcp_frame(number, bytes(size)))
    (volume,) = [one for flow, one in account.flows().items() if flow.peer == THERE[0]]
    assert volume.received_bytes == sum(52 + size for _, size in segments)
    assert volume.received_untold_bytes == untold


@pytest.mark.parametrize(("options", "untold"), [(0, 0), (12, 0), (24, 12)])
def test_options_but_for_the_timestamp_are_counted_apart(
    account: ByteAccount, options: int, untold: int
) -> None:
    for way in ("arriving", "leaving"):
        account._object.programs[way].test_run(tcp_frame(1, b"", options=options, way=way))
    (volume,) = [one for flow, one in account.flows().items() if flow.peer == THERE[0]]
    assert (volume.received_untold_bytes, volume.sent_untold_bytes) == (untold, untold)


def test_a_segment_that_comes_twice_is_what_tcp_leaves_out(account: ByteAccount) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0003)) as wire,
    ):
        wire.bind(("lo", 0))
        wire.settimeout(10.0)
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as near, listener.accept()[0] as far:
            near.sendall(b"x" * 1000)
            assert far.recv(1000, socket.MSG_WAITALL) == b"x" * 1000
            while not (frame := wire.recv(9000)).endswith(b"x" * 1000):
                pass
            wire.send(frame)
            flow = Flow(
                peer="127.0.0.1", protocol=TCP, local_port=port, peer_port=near.getsockname()[1]
            )
            # It arrives by way of the processor's queue.
            ends_s = time.monotonic() + 10.0
            while (counted := account.flows()[flow]).received_untold_bytes < 1000:
                assert time.monotonic() < ends_s, counted
            near.sendall(b"!")
            assert far.recv(1) == b"!"
            told, counted = tcp_wire_counters(far, is_accepting=True), account.flows()[flow]
    assert told is not None
    assert counted.received_untold_bytes == 1000
    # An acknowledgement may have been on its way between the two looks.
    assert told.received_bytes is not None
    assert counted.received_bytes - told.received_bytes in {1000, 1000 - 52, 1000 + 52}


def tcp_frame(number: int | str, data: bytes, *, options: int = 12, way: str = "arriving") -> bytes:
    """Return a frame with a segment of TCP, or a SYN, that is to arrive here or leave."""
    (source, to) = (THERE, HERE) if way == "arriving" else (HERE, THERE)
    is_first = number == "SYN"
    words, flags = (5 + options // 4) << 4, 2 if is_first else 16
    header = struct.pack(
        "!HHIIBBHHH", source[1], to[1], 0 if is_first else number, 0, words, flags, 9000, 0, 0
    )
    frame = udp_frame(MACS, source, to, (header + bytes(options) + data)[8:])
    # The same addresses and length; the protocol is another.
    return frame[:23] + bytes([TCP]) + frame[24:34] + header + bytes(options) + data


def test_nothing_is_counted_after_the_end() -> None:
    require_bpf()
    account = ByteAccount("lo")
    account.close()
    account.close()
    with pytest.raises(ChannelUnavailable, match="nowhere0"):
        ByteAccount("nowhere0")


def _read(stream: socket.socket, size: int) -> None:
    while size:
        size -= len(stream.recv(min(size, 1 << 20)))
