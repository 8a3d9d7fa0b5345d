"""The XDP receiver between network namespaces: real frames, native and generic, and its end."""

from __future__ import annotations

import select
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from retexo_fl.additions.kernel_path.packets.layout import ACK_WANTED
from retexo_fl.additions.kernel_path.packets.packets import PacketHead, pack_packets, read_ack
from retexo_fl.additions.kernel_path.packets.stream_shape import StreamShape
from retexo_fl.additions.kernel_path.xdp.aggregate import TableSizes
from retexo_fl.additions.kernel_path.xdp.attachments import XdpMode, xdp_program_at
from retexo_fl.additions.kernel_path.xdp.probe import probe
from retexo_fl.additions.kernel_path.xdp.receiver import XdpReceiver
from retexo_fl.errors import ChannelUnavailable
from tests.support.hosts import Hosts
from tests.support.inside import inside
from tests.support.loss import BadCable

pytestmark = [pytest.mark.system]

PORT = 7411
HEAD = PacketHead(token=2**63 + 9, stream=1, job=5, stage=2, sender=4)
SHAPE = StreamShape(rows=300, width=70, packet_cells=22)
SIZES = TableSizes(cells=1500, seen_blocks=1, slots=300, streams=2, regions=1)
_WAIT_S = 5.0
#: asm/socket.h.
_SO_RCVBUFFORCE = 33


@pytest.fixture(scope="module")
def hosts() -> Generator[Hosts]:
    with Hosts(["sender", "receiver"]) as made:
        yield made


@contextmanager
def receiving(hosts: Hosts, mode: XdpMode = "auto") -> Iterator[XdpReceiver]:
    with inside(hosts["receiver"].namespace):
        receiver = XdpReceiver("eth0", PORT, sizes=SIZES, mode=mode)
    try:
        yield receiver
    finally:
        receiver.close()


def open_stream(receiver: XdpReceiver) -> None:
    tables = receiver.tables
    tables.slots[:] = np.arange(300) * SHAPE.row_cells
    tables.regions[0]["expected"] = SHAPE.packets
    record = tables.streams[HEAD.stream]
    record["rows"], record["row_cells"] = SHAPE.rows, SHAPE.row_cells
    record["packet_cells"], record["packets"] = SHAPE.packet_cells, SHAPE.packets
    record["job"], record["stage"], record["sender"] = HEAD.job, HEAD.stage, HEAD.sender
    record["token"] = HEAD.token


def packets_of(values: np.ndarray[tuple[int, int], np.dtype[np.int32]]) -> list[bytes]:
    out = np.zeros((SHAPE.packets, SHAPE.packet_bytes), dtype=np.uint8)
    flags = np.full(SHAPE.packets, ACK_WANTED, dtype=np.uint8)
    lengths = pack_packets(SHAPE, HEAD, values, np.arange(SHAPE.packets), out, flags=flags)
    return [bytes(out[index, :length]) for index, length in enumerate(lengths)]


def read_answers(sender: socket.socket, count: int) -> list[int]:
    answers = []
    for _ in range(count):
        ack = read_ack(sender.recv(2048))
        assert ack is not None
        answers.append(ack.header.seq)
    return sorted(answers)


@pytest.mark.parametrize("mode", ["native", "generic"])
def test_stream_arrives_once_wakes_once_and_is_acknowledged(hosts: Hosts, mode: XdpMode) -> None:
    values = np.random.default_rng(3).integers(-(2**24), 2**24, (300, 70)).astype(np.int32)
    packets = packets_of(values)
    # What native XDP sends back arrives at a virtual cable's end only if XDP is there, too.
    with (
        receiving(hosts, mode) as receiver,
        BadCable(hosts["receiver"], udp_port=PORT, with_xdp=True),
    ):
        assert (receiver.mode, receiver.max_cells) == (mode, 22)
        assert receiver.atomic == (mode == "generic")
        open_stream(receiver)
        with inside(hosts["sender"].namespace):
            sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with sender:
            sender.settimeout(_WAIT_S)
            # An answer by XDP_TX fills a page in the socket's buffer, whatever its length.
            sender.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 1 << 22)
            for packet in packets[1:]:
                sender.sendto(packet, (hosts["receiver"].address, PORT))
            assert read_answers(sender, len(packets) - 1) == list(range(1, len(packets)))
            assert not select.select([receiver.event_fd], [], [], 0)[0]
            for packet in packets:
                sender.sendto(packet, (hosts["receiver"].address, PORT))
            assert select.select([receiver.event_fd], [], [], _WAIT_S)[0]
            assert read_answers(sender, len(packets)) == list(range(len(packets)))
        receiver.drain_events()
        assert not select.select([receiver.event_fd], [], [], 0)[0]
        padded = np.zeros((300, 80), dtype=np.int32)
        padded[:, :70] = values
        assert np.array_equal(receiver.tables.acc.reshape(300, 80), padded)
        counted = receiver.counters()
        assert counted["data_new"] == len(packets)
        assert counted["data_duplicate"] == len(packets) - 1
        assert counted["events"] == 1


def test_what_is_not_ours_still_reaches_its_socket(hosts: Hosts) -> None:
    with receiving(hosts) as receiver:
        with inside(hosts["receiver"].namespace):
            listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            listener.bind((hosts["receiver"].address, PORT))
        with inside(hosts["sender"].namespace):
            sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with listener, sender:
            listener.settimeout(_WAIT_S)
            sender.sendto(b"something else", (hosts["receiver"].address, PORT))
            assert listener.recv(100) == b"something else"
        assert receiver.counters()["passed"] >= 1


def test_second_program_is_refused_until_the_first_has_gone(hosts: Hosts) -> None:
    with receiving(hosts):
        refused = pytest.raises(ChannelUnavailable, match="eth0: XDP program [0-9]+ is attached")
        with refused, receiving(hosts):
            pass
        with inside(hosts["receiver"].namespace):
            assert "is attached" in probe("eth0").reason
    with inside(hosts["receiver"].namespace):
        assert probe("eth0").mode == "native"
        assert not xdp_program_at(socket.if_nametoindex("eth0"))


def test_program_goes_with_the_process_that_attached_it(hosts: Hosts) -> None:
    program = (
        "import sys\n"
        "from tests.system.test_xdp_receiver import PORT, SIZES\n"
        "from retexo_fl.additions.kernel_path.xdp.receiver import XdpReceiver\n"
        "receiver = XdpReceiver('eth0', PORT, sizes=SIZES)\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = hosts["receiver"].command([sys.executable, "-c", program])
    with inside(hosts["receiver"].namespace):
        index = socket.if_nametoindex("eth0")
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            assert xdp_program_at(index)
            process.kill()
            process.wait(_WAIT_S)
        for _ in range(50):
            if not xdp_program_at(index):
                break
            time.sleep(0.1)
        assert not xdp_program_at(index)


def test_interface_with_too_long_frames_grants_shorter_packets(
    hosts: Hosts,
) -> None:
    def set_mtu(size: int) -> None:
        subprocess.run(
            hosts["receiver"].command(["ip", "link", "set", "eth0", "mtu", str(size)]),
            check=True,
            timeout=10,
        )

    set_mtu(9000)
    try:
        with receiving(hosts, "generic") as receiver:
            assert receiver.max_cells == 53
    finally:
        set_mtu(1500)


def test_a_tunnel_is_refused_by_name(hosts: Hosts) -> None:
    command = ["ip", "tuntap", "add", "dev", "tunnel0", "mode", "tun"]
    subprocess.run(hosts["receiver"].command(command), check=True, timeout=10)
    with (
        inside(hosts["receiver"].namespace),
        pytest.raises(ChannelUnavailable, match="tunnel0: .*Ethernet header"),
    ):
        XdpReceiver("tunnel0", PORT, sizes=SIZES)
