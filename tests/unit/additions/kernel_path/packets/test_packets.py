from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retexo_fl.additions.kernel_path.packets.layout import ACK_WANTED, USER_ACK, PacketKind
from retexo_fl.additions.kernel_path.packets.packets import (
    PacketHead,
    ack_packet,
    checksum,
    pack_packets,
    parse_header,
    ping_packet,
    read_ack,
    readdress,
)
from retexo_fl.additions.kernel_path.packets.stream_shape import StreamShape
from retexo_fl.errors import LocalProtocolError
from tests.unit.additions.kernel_path.packets.receiving import head_of, pack_all, vectors

HEAD = PacketHead(token=0x0102030405060708, stream=5, job=6, stage=7, sender=8)
FACTORS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x27D4EB2F165667C5)
ODD_FACTOR = 0xD6E8FEB86659FD93


def slow_checksum(packet: bytes) -> int:
    words: tuple[int, ...] = struct.unpack(f"<{len(packet) // 8}Q", packet)
    covered = (words[0], words[2] >> 32, words[4], words[5])
    total = sum(factor * word for factor, word in zip(FACTORS, covered, strict=True))
    return (total + sum(words[6::2]) + ODD_FACTOR * sum(words[7::2])) % 2**64


def test_a_packet_has_the_documented_bytes() -> None:
    shape = StreamShape(rows=3, width=20, packet_cells=3)
    values = np.arange(60, dtype=np.int32).reshape(3, 20) - 30
    out = np.full((2, shape.packet_bytes), 0xEE, dtype=np.uint8)
    flags = np.array([0, ACK_WANTED], dtype=np.uint8)
    lengths = pack_packets(shape, HEAD, values, np.array([0, 1]), out, flags=flags)
    assert lengths.tolist() == [240, 240]
    header = bytes.fromhex("52545856 01 01 00 01 0807060504030201 05000000 06000000")
    place = bytes.fromhex("0700 0800 01000000 01000000 0100 0300")
    payload = (
        values[1, 16:].tobytes()
        + bytes(48)
        + values[2, :16].tobytes()
        + values[2, 16:].tobytes()
        + bytes(48)
    )
    packet = out[1].tobytes()
    assert packet[:24] == header
    assert packet[32:48] == place
    assert packet[48:] == payload
    assert int.from_bytes(packet[24:32], "little") == slow_checksum(packet)


@given(st.data())
def test_packets_carry_the_padded_vectors_end_to_end(data: st.DataObject) -> None:
    rows, width = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 120))
    shape = StreamShape(rows, width, data.draw(st.integers(1, 30)))
    values = vectors(shape, seed=data.draw(st.integers(0, 9)))
    padded = np.zeros((rows, shape.row_cells * 16), dtype=np.int32)
    padded[:, :width] = values
    packets = pack_all(shape, values)
    assert b"".join(packet[48:] for packet in packets) == padded.tobytes()
    for seq, packet in enumerate(packets):
        header = parse_header(packet)
        assert header is not None
        assert header.head == head_of()
        assert (header.kind, header.flags, header.seq) == (PacketKind.DATA, 0, seq)
        assert header.first * shape.row_cells + header.offset == seq * shape.packet_cells
        assert header.cells == shape.cells_in(seq)
        assert checksum(packet) == slow_checksum(packet)


@given(st.data())
def test_packets_of_bytes_are_padded_to_whole_64_bytes(data: st.DataObject) -> None:
    rows, width = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 120))
    shape = StreamShape(rows, width, data.draw(st.integers(1, 90)), in_bytes=True)
    values = np.random.default_rng(rows).integers(0, 256, (rows, width)).astype(np.uint8)
    padded = np.zeros((rows, shape.row_cells * 16), dtype=np.uint8)
    padded[:, :width] = values
    head = replace(head_of(), in_bytes=True)
    seqs = np.arange(shape.packets)
    # Whatever the buffer held before.
    out = np.full((shape.packets, shape.packet_bytes), 0xEE, dtype=np.uint8)
    flags = np.zeros(shape.packets, dtype=np.uint8)
    lengths = pack_packets(shape, head, values, seqs, out, flags=flags)
    assert lengths.sum() == shape.total_bytes
    assert lengths[-1] == shape.last_packet_bytes
    carried = b""
    for seq in seqs:
        packet = out[seq, : lengths[seq]].tobytes()
        header = parse_header(packet)
        assert header is not None
        assert header.head == head
        assert header.cells == shape.cells_in(seq)
        assert header.first * shape.row_cells + header.offset == seq * shape.packet_cells
        assert checksum(packet) == slow_checksum(packet)
        assert len(packet) == 48 + -(-header.cells // 4) * 64
        carried += packet[48 : 48 + 16 * header.cells]
        assert not any(packet[48 + 16 * header.cells :])
    assert carried == padded.tobytes()


def test_packets_in_any_order_may_stand_in_wider_room() -> None:
    shape = StreamShape(rows=7, width=40, packet_cells=4)
    values = vectors(shape)
    every = pack_all(shape, values)
    seqs = np.array([5, 0, 5, 2])
    out = np.zeros((6, shape.packet_bytes + 8), dtype=np.uint8)
    lengths = pack_packets(shape, head_of(), values, seqs, out, flags=np.zeros(4, dtype=np.uint8))
    found = [out[index, :size].tobytes() for index, size in enumerate(lengths)]
    assert found == [every[seq] for seq in seqs]
    assert not out[4:].any()


def test_packing_refuses_what_does_not_fit() -> None:
    shape = StreamShape(rows=2, width=16, packet_cells=1)
    values = vectors(shape)
    out = np.zeros((2, shape.packet_bytes), dtype=np.uint8)
    two, flags = np.array([0, 1]), np.zeros(2, dtype=np.uint8)
    with pytest.raises(LocalProtocolError, match=r"vectors of shape \(2, 15\), int32; expected"):
        pack_packets(shape, HEAD, values[:, 1:], two, out, flags=flags)
    with pytest.raises(LocalProtocolError, match="packets 0 to 2 of a stream of 2"):
        pack_packets(shape, HEAD, values, np.array([0, 2]), out, flags=flags)
    with pytest.raises(LocalProtocolError, match="packets -1 to 0 of a stream of 2"):
        pack_packets(shape, HEAD, values, np.array([0, -1]), out, flags=flags)
    with pytest.raises(LocalProtocolError, match="room for packets of shape"):
        pack_packets(shape, HEAD, values, two, out[:1], flags=flags)
    with pytest.raises(LocalProtocolError, match="room for packets of shape"):
        pack_packets(shape, HEAD, values, two, out[:, :-1], flags=flags)
    with pytest.raises(LocalProtocolError, match="1 flags for 2 packets"):
        pack_packets(shape, HEAD, values, two, out, flags=flags[:1])
    assert not out.any()


def test_no_packets_need_no_room() -> None:
    shape = StreamShape(rows=0, width=16, packet_cells=1)
    out = np.zeros((0, shape.packet_bytes), dtype=np.uint8)
    none = np.zeros(0, dtype=np.int64)
    flags = np.zeros(0, dtype=np.uint8)
    assert not len(pack_packets(shape, HEAD, vectors(shape), none, out, flags=flags))


def test_readdressing_leaves_the_checksum_right() -> None:
    shape = StreamShape(rows=4, width=16, packet_cells=1)
    values = vectors(shape)
    packets = np.stack([np.frombuffer(packet, np.uint8) for packet in pack_all(shape, values)])
    readdress(packets, token=2**64 - 2, stream=2**32 - 1)
    readdress(packets[3], token=11, stream=12)
    headers = [parse_header(packet) for packet in packets]
    assert all(headers)
    told = [(header.head.token, header.head.stream) for header in headers if header]
    assert told == [(2**64 - 2, 2**32 - 1)] * 3 + [(11, 12)]


def test_an_ack_is_read_as_it_was_written() -> None:
    bits = np.arange(1, 9, dtype=np.uint64) << np.uint64(60)
    packet = ack_packet(HEAD, 1030, 1024, bits)
    assert len(packet) == 112
    ack = read_ack(packet)
    assert ack is not None
    assert (ack.header.head, ack.header.seq, ack.base) == (HEAD, 1030, 1024)
    assert ack.bits.tolist() == bits.tolist()


def test_questions_say_what_they_ask_for() -> None:
    ping = parse_header(ping_packet(HEAD, 9))
    assert ping is not None
    assert (ping.kind, ping.flags, ping.seq, ping.first, ping.cells) == (
        PacketKind.PING,
        0,
        9,
        0,
        1,
    )
    user = parse_header(ping_packet(HEAD, 9, user_ack=True))
    assert user is not None
    assert user.flags == USER_ACK


@given(st.integers(0, 111), st.integers(1, 255))
def test_a_damaged_packet_is_no_packet(at: int, flip: int) -> None:
    packet = bytearray(ack_packet(HEAD, 1030, 1024, np.arange(8, dtype=np.uint64)))
    packet[at] ^= flip
    ack = read_ack(bytes(packet))
    if 8 <= at < 20:  # Token and stream: their receiver knows them.
        assert ack is not None
        assert ack.header.head != HEAD
    else:
        assert ack is None


@given(st.binary(max_size=130))
def test_any_bytes_can_be_read(data: bytes) -> None:
    assert parse_header(data) is None
    assert read_ack(ack_packet(HEAD, 0, 0, np.zeros(8, np.uint64))[: len(data)]) is None or (
        len(data) >= 112
    )
