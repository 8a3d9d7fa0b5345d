from __future__ import annotations

import struct
import zlib

import pytest

from retexo_fl.errors import LocalProtocolError, RemoteProtocolError
from retexo_fl.exchange.frames import (
    HEADER_BYTES,
    FrameHeader,
    FrameKind,
    check_frame_limit,
    encode_frame,
    parse_frame,
    split_frames,
)

ROWS = FrameHeader(
    kind=FrameKind.ROWS, positions=3, values=1, sequence=7, num_rows=2, payload_bytes=5
)
SEED = 0x12345678


def test_encode_frame_writes_the_documented_bytes() -> None:
    signed = bytes.fromhex("5254584f 03 02 03 01 07000000 02000000 05000000")
    checksum = struct.pack("<I", zlib.crc32(signed + b"hello", SEED))
    assert encode_frame(ROWS, b"hello", block_seed=SEED) == signed + checksum + b"hello"
    assert len(signed + checksum) == HEADER_BYTES == 24


def test_encode_frame_of_hello_does_not_depend_on_the_seed() -> None:
    hello = FrameHeader(kind=FrameKind.HELLO, sequence=0, payload_bytes=1)
    assert encode_frame(hello, b"x", block_seed=1) == encode_frame(hello, b"x", block_seed=2)


def test_a_stream_is_split_into_its_whole_frames() -> None:
    frame = encode_frame(ROWS, b"hello", block_seed=SEED)
    found = list(split_frames(frame * 2 + frame[:-1]))
    assert [bytes(item.payload) for item in found] == [b"hello"] * 2
    assert [bytes(item.data) for item in found] == [frame] * 2
    assert all(item.has_checksum(SEED) for item in found)
    assert not found[0].has_checksum(SEED + 1)
    assert found[0].header.sequence == 7
    assert list(split_frames(b"")) == []
    with pytest.raises(RemoteProtocolError, match="not a frame"):
        list(split_frames(frame + b"x" * 24))


@pytest.mark.parametrize("cut", [1, 10, 28])
def test_a_frame_has_the_bytes_that_it_says(cut: int) -> None:
    frame = encode_frame(ROWS, b"hello", block_seed=SEED)
    assert bytes(parse_frame(frame).payload) == b"hello"
    for wrong in (frame[:-cut], frame + bytes(cut)):
        with pytest.raises(RemoteProtocolError, match=f"a frame has {len(wrong)} byte"):
            parse_frame(wrong)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (0, b"X", r"not a frame: starts with b'XTXO'"),
        (4, b"\x01", "wire version is 1, expected 3"),
        (5, b"\x04", "frame kind 4 is unknown"),
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
