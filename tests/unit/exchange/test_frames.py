from __future__ import annotations

import struct
import zlib

import pytest

from retexo_fl.errors import LocalProtocolError, RemoteProtocolError
from retexo_fl.exchange.frames import (
    HEADER_BYTES,
    FrameHeader,
    FrameReader,
    check_frame_limit,
    encode_frame,
)
from retexo_fl.exchange.states import FrameKind

ROWS = FrameHeader(
    kind=FrameKind.ROWS, positions=3, values=1, sequence=7, num_rows=2, payload_bytes=5
)
SEED = 0x12345678


def _accept_all(header: FrameHeader) -> None:
    """Let every header pass."""


def test_encode_frame_writes_the_documented_bytes() -> None:
    signed = bytes.fromhex("5254584f 02 02 03 01 07000000 02000000 05000000")
    checksum = struct.pack("<I", zlib.crc32(signed + b"hello", SEED))
    assert encode_frame(ROWS, b"hello", block_seed=SEED) == signed + checksum + b"hello"
    assert len(signed + checksum) == HEADER_BYTES == 24


def test_encode_frame_of_hello_does_not_depend_on_the_seed() -> None:
    hello = FrameHeader(kind=FrameKind.HELLO, sequence=0, payload_bytes=1)
    assert encode_frame(hello, b"x", block_seed=1) == encode_frame(hello, b"x", block_seed=2)


def test_frame_reader_cuts_a_stream_and_keeps_one_frame() -> None:
    frame = encode_frame(ROWS, b"hello", block_seed=SEED)
    reader = FrameReader(_accept_all)
    found = []
    for byte in frame * 2:
        reader.give(bytes([byte]))
        result = reader.next_frame()
        assert reader.is_drained
        assert reader.kept_bytes < len(frame)
        if result:
            found.append(result)
    assert [bytes(item.payload) for item in found] == [b"hello"] * 2
    assert all(item.has_checksum(SEED) for item in found)
    assert not found[0].has_checksum(SEED + 1)
    assert found[0].header.sequence == 7


def test_frame_reader_reads_two_frames_from_one_piece() -> None:
    reader = FrameReader(_accept_all)
    reader.give(encode_frame(ROWS, b"hello", block_seed=SEED) * 2 + b"RT")
    assert reader.next_frame() is not None
    assert not reader.is_drained
    assert reader.next_frame() is not None
    assert reader.next_frame() is None
    assert reader.kept_bytes == 2
    reader.drop()
    assert reader.kept_bytes == 0


def test_frame_reader_lets_go_of_the_callers_buffer() -> None:
    buffer = bytearray(encode_frame(ROWS, b"hello", block_seed=SEED)[:-1])
    reader = FrameReader(_accept_all)
    reader.give(buffer)
    assert reader.next_frame() is None
    buffer.clear()  # BufferError while anyone holds a view
    assert reader.kept_bytes == HEADER_BYTES + 4


def test_frame_reader_asks_before_it_keeps_a_payload() -> None:
    def refuse(header: FrameHeader) -> None:
        raise RemoteProtocolError(f"payload of {header.payload_bytes}")

    reader = FrameReader(refuse)
    reader.give(encode_frame(ROWS, b"hello", block_seed=SEED)[:HEADER_BYTES])
    with pytest.raises(RemoteProtocolError, match="payload of 5"):
        reader.next_frame()


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (0, b"X", r"not a frame: starts with b'XTXO'"),
        (4, b"\x01", "wire version is 1, expected 2"),
        (5, b"\x05", "frame kind 5 is unknown"),
        (5, b"\x00", "frame kind 0 is unknown"),
    ],
)
def test_frame_header_refuses_what_it_does_not_know(place: int, value: bytes, message: str) -> None:
    data = bytearray(encode_frame(ROWS, b"", block_seed=0))
    data[place : place + 1] = value
    with pytest.raises(RemoteProtocolError, match=message):
        FrameHeader.parse(data)


@pytest.mark.parametrize("limit", [0, 255, 2**28 + 1])
def test_check_frame_limit_names_the_key(limit: int) -> None:
    with pytest.raises(LocalProtocolError, match=f"max_frame_bytes: {limit} .* 256 to 268435456"):
        check_frame_limit(limit)
