"""Which frames the AF_XDP program hands over, and what its socket refuses."""

from __future__ import annotations

import socket
from collections.abc import Generator

import numpy as np
import pytest

from retexo_fl.additions.kernel_path.packets.layout import Tables
from retexo_fl.additions.kernel_path.packets.packets import (
    PacketHead,
    ack_packet,
    ping_packet,
)
from retexo_fl.additions.kernel_path.xdp import af_xdp
from retexo_fl.additions.kernel_path.xdp.af_xdp import AfXdpReceiver
from retexo_fl.additions.kernel_path.xdp.interfaces import InterfaceFacts
from retexo_fl.additions.kernel_path.xdp.libbpf import BpfObject
from retexo_fl.additions.kernel_path.xdp.udp_frame import udp_frame
from retexo_fl.additions.kernel_path.xdp.xdp_socket import Frames, XdpSocket
from retexo_fl.errors import ChannelUnavailable
from tests.support.kernel import require_bpf

PORT = 7411
MACS = (b"\2to...", b"\2from.")
SENDER, RECEIVER = ("192.0.2.1", 40_001), ("192.0.2.2", PORT)
HEAD = PacketHead(token=1, stream=2, job=3, stage=4, sender=5)
PASSES, REDIRECTS = 2, 4


@pytest.fixture
def loaded() -> Generator[BpfObject]:
    require_bpf()
    with BpfObject(af_xdp._PROGRAM) as opened:
        opened.set_constant("receiver_port", socket.htons(PORT))
        opened.load()
        yield opened


def test_without_a_socket_everything_goes_up(loaded: BpfObject) -> None:
    frame = udp_frame(MACS, SENDER, RECEIVER, ping_packet(HEAD, 0))
    assert loaded.programs["hand_over"].test_run(frame).code == PASSES


def test_only_what_a_receiver_takes_is_handed_over(loaded: BpfObject) -> None:
    program = loaded.programs["hand_over"]
    receiver = XdpSocket(socket.if_nametoindex("lo"), 0, frames=64)
    loaded.maps["sockets"].update(bytes(4), receiver.fileno().to_bytes(4, "little"))
    ping = ping_packet(HEAD, 0)
    data = ping[:5] + b"\x01" + ping[6:]
    ack = ack_packet(HEAD, 0, 0, np.zeros(8, np.uint64))
    unknown = ping[:5] + b"\x04" + ping[6:]
    codes = {
        name: program.test_run(frame).code
        for name, frame in {
            "DATA": udp_frame(MACS, SENDER, RECEIVER, data),
            "PING": udp_frame(MACS, SENDER, RECEIVER, ping),
            "ACK": udp_frame(MACS, SENDER, RECEIVER, ack),
            "unknown": udp_frame(MACS, SENDER, RECEIVER, unknown),
            "another port": udp_frame(MACS, SENDER, (RECEIVER[0], PORT + 1), ping),
            "another magic": udp_frame(MACS, SENDER, RECEIVER, b"?" + ping[1:]),
            "too short": udp_frame(MACS, SENDER, RECEIVER, ping[:19]),
        }.items()
    }
    receiver.close()
    assert codes == dict.fromkeys(codes, PASSES) | dict.fromkeys(("DATA", "PING"), REDIRECTS)


def test_a_queue_that_is_not_there_is_named_at_once() -> None:
    require_bpf()
    with pytest.raises(ChannelUnavailable, match="queue 9: Invalid argument"):
        XdpSocket(socket.if_nametoindex("lo"), 9, frames=64)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        (InterfaceFacts(index=1, mtu_bytes=1500, receive_queues=4), "has 4 queues"),
        (InterfaceFacts(index=1, mtu_bytes=9000, receive_queues=1), "MTU 9000; expected at most"),
    ],
)
def test_what_one_queue_and_one_frame_cannot_hold_is_refused(
    facts: InterfaceFacts, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(af_xdp, "interface_facts", lambda _interface: facts)
    tables = Tables.allocate(cells=1, seen_blocks=1, slots=1, streams=1, regions=1)
    with pytest.raises(ChannelUnavailable, match=message):
        AfXdpReceiver("eth0", PORT, tables)


def test_rows_of_frames_begin_where_they_are_asked_to() -> None:
    memory = np.arange(64, dtype=np.uint8)
    frames = Frames(memory, np.array([10, 12, 9]), 16)
    assert frames.rows(0)[:, 0].tolist() == [0, 16, 32]
    assert frames.rows(8)[:, 0].tolist() == [8, 24, 40]
    assert frames.rows(8).flags.c_contiguous
    assert np.shares_memory(frames.rows(8), memory)
