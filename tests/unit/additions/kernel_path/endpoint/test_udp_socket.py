"""The socket: many packets in one call, joined or not, and nothing lost when layouts change."""

from __future__ import annotations

import select
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from numpy.typing import NDArray

from retexo_fl.additions.kernel_path.endpoint.records import socket_address
from retexo_fl.additions.kernel_path.endpoint.udp_socket import (
    Message,
    UdpSocket,
    group_packets,
    path_mtu,
    single_packets,
)
from retexo_fl.errors import ChannelUnavailable


@contextmanager
def _pair(*, joins_packets: bool = True) -> Iterator[tuple[UdpSocket, UdpSocket]]:
    one, other = UdpSocket("127.0.0.1:0"), UdpSocket("127.0.0.1:0", joins_packets=joins_packets)
    try:
        yield one, other
    finally:
        one.close()
        other.close()


def _read(socket: UdpSocket, packets: int) -> list[bytes]:
    """Return so many packets, in the order in which they arrived."""
    found: list[bytes] = []
    while len(found) < packets:
        assert select.select([socket], [], [], 10.0)[0], f"{len(found)} of {packets} arrived"
        received = socket.receive()
        if received is None:
            continue
        for place, length in enumerate(received.lengths.tolist()):
            begun = place * received.stride
            step = max(int(received.packet_bytes[place]), 1)
            message = received.data[begun : begun + length].tobytes()
            found += [message[at : at + step] for at in range(0, max(length, 1), step)]
    return found


def _content(size: int) -> NDArray[np.uint8]:
    return np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)


@pytest.mark.parametrize("joins_packets", [True, False])
@pytest.mark.parametrize("is_cut", [True, False])
def test_packets_arrive_as_they_were_cut(is_cut: bool, joins_packets: bool) -> None:
    with _pair(joins_packets=joins_packets) as (one, other):
        data = _content(100 * 1456 + 112)
        messages = group_packets(data, 1456, socket_address(other.address))
        assert [message.packets for message in messages] == [44, 44, 13]
        if not is_cut:
            messages = single_packets(messages)
            assert len(messages) == 101
        assert one.send(messages) == 101
        expected = [data[at : at + 1456].tobytes() for at in range(0, len(data), 1456)]
        assert _read(other, 101) == expected


def test_a_socket_sent_no_joined_packets_reads_many_at_once() -> None:
    with _pair() as (one, other):
        name = socket_address(other.address)
        packet = _content(1456)
        most = 0
        for _ in range(8):
            one.send([Message(packet, 1456, name)] * 100)
            received = other.receive()
            while received is not None:
                most = max(most, len(received.lengths))
                received = other.receive()
        assert most > 16
        # What is joined after all arrives as packets.
        one.send(group_packets(_content(20 * 1456), 1456, name))
        assert len(_read(other, 20)) == 20


def test_the_sender_of_each_message_is_told() -> None:
    with _pair() as (one, other):
        one.send([Message(_content(8), 8, socket_address(other.address))])
        assert select.select([other], [], [], 10.0)[0]
        received = other.receive()
        assert received is not None
        assert received.names[0].tobytes() == socket_address(one.address)


def test_there_is_no_way_to_what_is_no_address() -> None:
    with pytest.raises(ChannelUnavailable, match="expected IPV4:PORT"):
        path_mtu("[::1]:80")
