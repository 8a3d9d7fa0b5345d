"""Which frames the AF_XDP program hands over, and what its socket refuses."""

from __future__ import annotations

import socket
from collections.abc import Generator

import numpy as np
import pytest

from retexo_fl.channels.xdp import af_xdp
from retexo_fl.channels.xdp.af_xdp import AfXdpReceiver
from retexo_fl.channels.xdp.interfaces import InterfaceFacts
from retexo_fl.channels.xdp.libbpf import BpfObject, BpfProgram
from retexo_fl.channels.xdp.udp_frame import udp_frame
from retexo_fl.channels.xdp.xdp_socket import Frames
from retexo_fl.errors import ChannelUnavailable
from retexo_fl.exchange.datagrams.layout import PacketKind, Tables
from retexo_fl.exchange.datagrams.packets import (
    PacketHead,
    ack_packet,
    get_packet,
    ping_packet,
)
from tests.support.kernel import require_bpf

PORT = 7411
MACS = (b"\2to...", b"\2from.")
SENDER, RECEIVER = ("192.0.2.1", 40_001), ("192.0.2.2", PORT)
HEAD = PacketHead(token=1, stream=2, job=3, stage=4, sender=5)
PASSES, REDIRECTS = 2, 4


@pytest.fixture
def program() -> Generator[BpfProgram]:
    require_bpf()
    with BpfObject(af_xdp._PROGRAM) as loaded:
        loaded.set_constant("receiver_port", socket.htons(PORT))
        loaded.load()
        yield loaded.programs["hand_over"]


def test_without_a_socket_everything_goes_up(program: BpfProgram) -> None:
    frame = udp_frame(MACS, SENDER, RECEIVER, ping_packet(HEAD, 0))
    assert program.test_run(frame).code == PASSES


def test_only_what_a_receiver_takes_is_handed_over(program: BpfProgram) -> None:
    """Seen by what the program reads: a queue with a socket gets data and questions alone."""
    ack = ack_packet(HEAD, 0, 0, np.zeros(8, np.uint64))
    frames = {
        PacketKind.PING: udp_frame(MACS, SENDER, RECEIVER, ping_packet(HEAD, 0)),
        PacketKind.GET: udp_frame(MACS, SENDER, RECEIVER, get_packet(HEAD, 0, 2)),
        PacketKind.ACK: udp_frame(MACS, SENDER, RECEIVER, ack),
    }
    for frame in frames.values():
        seen = program.test_run(frame)
        assert (seen.code, seen.frame) == (PASSES, frame)


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
