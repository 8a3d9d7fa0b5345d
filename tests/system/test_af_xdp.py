"""The AF_XDP receiver between two namespaces: real frames, more than its rings hold."""

from __future__ import annotations

import select
import socket
from collections.abc import Generator

import numpy as np
import pytest

from retexo_fl.additions.kernel_path.packets.layout import ACK_WANTED, Tables
from retexo_fl.additions.kernel_path.packets.packets import (
    PacketHead,
    pack_packets,
    ping_packet,
    read_ack,
)
from retexo_fl.additions.kernel_path.packets.stream_shape import StreamShape
from retexo_fl.additions.kernel_path.xdp.af_xdp import AfXdpReceiver
from retexo_fl.additions.kernel_path.xdp.attachments import XdpMode
from retexo_fl.errors import ChannelUnavailable
from tests.support.hosts import Hosts
from tests.support.inside import inside
from tests.support.kernel import require_bpf

pytestmark = [pytest.mark.system]

PORT = 7411
HEAD = PacketHead(token=77, stream=0, job=5, stage=2, sender=1)
SHAPE = StreamShape(rows=18_000, width=64, packet_cells=22)
_BATCH = 200


@pytest.fixture(scope="module")
def hosts() -> Generator[Hosts]:
    require_bpf()
    with Hosts(["sender", "receiver"]) as made:
        yield made


@pytest.mark.parametrize("mode", ["native", "generic"])
def test_sums_are_exact_over_several_turns_of_the_rings(hosts: Hosts, mode: XdpMode) -> None:
    tables = open_tables()
    values = np.random.default_rng(1).integers(-(2**24), 2**24, (SHAPE.rows, 64), np.int32)
    packets, lengths = all_packets(values)
    with inside(hosts["receiver"].namespace):
        receiver = AfXdpReceiver("eth0", PORT, tables, mode=mode)
    try:
        assert receiver.mode == mode
        with sending_socket(hosts) as sender:
            for begun in range(0, SHAPE.packets, _BATCH):
                for seq in range(begun, min(begun + _BATCH, SHAPE.packets)):
                    data = packets[seq, : lengths[seq]].tobytes()
                    sender.sendto(data, (hosts["receiver"].address, PORT))
                    if seq % 10 == 0:
                        sender.sendto(data, (hosts["receiver"].address, PORT))
                drain(receiver)
            counted = receiver.counters()
            assert counted["data_new"] == SHAPE.packets > 3000
            assert counted["data_duplicate"] == len(range(0, SHAPE.packets, 10))
            assert not any(receiver.losses().values())
            accumulated = tables.acc[: SHAPE.rows * 4].reshape(SHAPE.rows, 64)
            assert np.array_equal(accumulated, values)
            assert tables.regions["complete"][0] == 1
            assert acknowledged(sender) == set(range(SHAPE.packets))
    finally:
        receiver.close()


def test_a_question_is_answered_and_other_packets_pass(hosts: Hosts) -> None:
    with inside(hosts["receiver"].namespace):
        receiver = AfXdpReceiver("eth0", PORT, open_tables())
        listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with listener, sending_socket(hosts) as sender:
        listener.bind((hosts["receiver"].address, PORT))
        listener.settimeout(5.0)
        where = (hosts["receiver"].address, PORT)
        sender.sendto(b"not one of ours", where)
        assert listener.recv(100) == b"not one of ours"
        sender.sendto(ping_packet(HEAD, 3), where)
        drain(receiver)
        ack = read_ack(sender.recv(2000))
        assert ack is not None
        assert (ack.header.seq, ack.base, int(ack.bits.sum())) == (3, 0, 0)
        receiver.close()
        receiver.close()
        sender.sendto(ping_packet(HEAD, 3), where)
        assert listener.recv(2000) == ping_packet(HEAD, 3)


def test_an_interface_has_one_program_at_most(hosts: Hosts) -> None:
    with inside(hosts["receiver"].namespace):
        receiver = AfXdpReceiver("eth0", PORT, open_tables())
        with pytest.raises(ChannelUnavailable, match="eth0"):
            AfXdpReceiver("eth0", PORT, open_tables())
        receiver.close()
        AfXdpReceiver("eth0", PORT, open_tables()).close()


def open_tables() -> Tables:
    tables = Tables.allocate(
        cells=SHAPE.rows * SHAPE.row_cells,
        seen_blocks=-(-SHAPE.packets // 512),
        slots=SHAPE.rows,
        streams=1,
        regions=1,
    )
    tables.slots[:] = np.arange(SHAPE.rows) * SHAPE.row_cells
    stream = {
        "rows": SHAPE.rows,
        "row_cells": SHAPE.row_cells,
        "packet_cells": SHAPE.packet_cells,
        "packets": SHAPE.packets,
        "job": HEAD.job,
        "sender": HEAD.sender,
        "stage": HEAD.stage,
        "token": HEAD.token,
    }
    for name, value in stream.items():
        tables.streams[name][0] = value
    tables.regions["expected"][0] = SHAPE.packets
    return tables


def all_packets(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    packets = np.zeros((SHAPE.packets, SHAPE.packet_bytes), np.uint8)
    flags = np.zeros(SHAPE.packets, np.uint8)
    flags[31::32] = flags[-1] = ACK_WANTED
    lengths = pack_packets(SHAPE, HEAD, values, np.arange(SHAPE.packets), packets, flags=flags)
    return packets, lengths


def sending_socket(hosts: Hosts) -> socket.socket:
    with inside(hosts["sender"].namespace):
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.bind((hosts["sender"].address, PORT))
    made.settimeout(5.0)
    return made


def drain(receiver: AfXdpReceiver) -> None:
    """Take what has arrived, until nothing has for a moment."""
    while select.select([receiver.event_fd], [], [], 0.01)[0]:
        receiver.drain_events()


def acknowledged(sender: socket.socket) -> set[int]:
    """Return which packets the answers say were taken."""
    taken: set[int] = set()
    sender.setblocking(False)
    while True:
        try:
            ack = read_ack(sender.recv(2000))
        except BlockingIOError:
            return taken
        assert ack is not None
        bits = np.unpackbits(ack.bits.view(np.uint8), bitorder="little")
        taken |= {ack.base + int(place) for place in np.flatnonzero(bits)}
