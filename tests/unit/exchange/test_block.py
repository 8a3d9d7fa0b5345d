from __future__ import annotations

import re
import struct
import zlib
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retexo_fl.errors import LocalProtocolError, PartitionError, RemoteProtocolError
from retexo_fl.exchange.block import (
    MAX_HELLO_BYTES,
    MIN_HELLO_BYTES,
    BlockHeader,
    BlockTraffic,
    check_same_block,
    parse_hello,
)
from retexo_fl.exchange.frames import FrameHeader, FrameKind
from tests.unit.exchange.blocks import HEADER

#: Fields by which the two ends prove that they list the same edges.
EDGE_FIELDS = {"num_edges", "plan_digest"}

#: One other value for every field of a header.
OTHER: dict[str, Any] = {
    "job": "job-2",
    "layer": 1,
    "sender": 9,
    "receiver": 9,
    "weights_digest": b"\x01" * 32,
    "num_edges": 11,
    "plan_digest": b"\x02" * 32,
    "num_vectors": 5,
    "width": 2,
    "dtype": "float64",
}


def test_hello_payload_has_the_documented_bytes() -> None:
    header = replace(HEADER, num_vectors=258, width=7)
    numbers = bytes.fromhex("02000000 03000000 04000000 0c000000 02010000 07000000 04 05")
    expected = numbers + bytes(range(32)) + bytes(range(100, 132)) + b"job-1"
    assert header.hello_payload() == expected
    assert header.seed() == zlib.crc32(expected)


def test_hello_payload_stays_within_its_limits() -> None:
    assert len(replace(HEADER, job="j").hello_payload()) == MIN_HELLO_BYTES == 91
    assert len(replace(HEADER, job="j" * 64).hello_payload()) == MAX_HELLO_BYTES == 154


@given(
    job=st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=64),
    numbers=st.lists(st.integers(0, 2**31 - 1), min_size=5, max_size=5, unique=True),
    width=st.integers(1, 2**31 - 1),
    dtype=st.sampled_from(["float32", "float64"]),
)
def test_parse_hello_inverts_hello_payload(
    job: str, numbers: list[int], width: int, dtype: str
) -> None:
    layer, sender, receiver, num_edges, num_vectors = numbers
    header = BlockHeader(
        job=job,
        layer=layer,
        sender=sender,
        receiver=receiver,
        weights_digest=b"w" * 32,
        num_edges=num_edges,
        plan_digest=b"p" * 32,
        num_vectors=num_vectors,
        width=width,
        dtype=dtype,
    )
    assert parse_hello(header.hello_payload()) == header


@given(st.binary(min_size=MIN_HELLO_BYTES, max_size=MAX_HELLO_BYTES))
def test_parse_hello_of_any_bytes_is_a_header_or_a_remote_error(payload: bytes) -> None:
    try:
        header = parse_hello(payload)
    except RemoteProtocolError:
        return
    assert header.hello_payload() == payload


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [
        (24, b"\x05", "dtype is '5 bytes per value', expected float32 or float64"),
        (25, b"\x06", "job has 5 bytes, expected 6"),
        (20, bytes(4), "width is 0, expected a whole number from 1"),
        (12, b"\xff" * 4, "num_edges is 4294967295"),
        (16, b"\xff" * 4, "num_vectors is 4294967295"),
        (90, b"\n", "job is .* expected 1 to 64 printable ASCII"),
        (90, b"\xe4", "job is .* expected 1 to 64 printable ASCII"),
        (8, struct.pack("<I", 3), "receiver is 3, expected another client"),
    ],
)
def test_parse_hello_names_the_field(offset: int, value: bytes, message: str) -> None:
    payload = bytearray(HEADER.hello_payload())
    payload[offset : offset + len(value)] = value
    with pytest.raises(RemoteProtocolError, match=f"HELLO: .*{message}"):
        parse_hello(bytes(payload))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("job", ""),
        ("job", "j" * 65),
        ("job", "a\tb"),
        ("job", "ä"),
        ("job", 7),
        ("layer", -1),
        ("layer", True),
        ("sender", 2**31),
        ("receiver", "1"),
        ("receiver", 3),
        ("weights_digest", b"\x00" * 31),
        ("plan_digest", "p" * 32),
        ("num_edges", -1),
        ("num_vectors", -1),
        ("width", 0),
        ("dtype", "float16"),
    ],
)
def test_block_header_names_a_field_that_is_out_of_range(name: str, value: Any) -> None:
    with pytest.raises(LocalProtocolError, match=f"^{name} is "):
        replace(HEADER, **{name: value})


@pytest.mark.parametrize("name", sorted(set(OTHER) - EDGE_FIELDS))
def test_check_same_block_names_the_field_that_differs(name: str) -> None:
    with pytest.raises(RemoteProtocolError, match=f"HELLO: {name} is .*, expected "):
        check_same_block(replace(HEADER, **{name: OTHER[name]}), HEADER)


def test_other_values_are_given_for_every_field() -> None:
    assert set(OTHER) == {item.name for item in fields(BlockHeader)}


@pytest.mark.parametrize(
    ("listed", "expected", "pattern"),
    [
        (12, 11, "client 3 .*12 edges.*client 4.* 11"),
        (1, 2, "client 3 .*1 edge .*client 4.* 2"),
        (1, 0, "client 3 .*1 edge .*client 4.* none"),
        (0, 1, "client 3 .*no edges.*client 4.* 1"),
    ],
)
def test_check_same_block_tells_both_ends_each_number_of_edges(
    listed: int, expected: int, pattern: str
) -> None:
    sent = replace(HEADER, num_edges=listed)
    received = replace(sent, plan_digest=b"\x02" * 32, num_edges=expected)
    for got, wanted in ((sent, received), (_back(received), _back(sent))):
        with pytest.raises(PartitionError) as caught:
            check_same_block(got, wanted)
        assert re.fullmatch(f"{pattern}; .*boundary tables.*", str(caught.value))


@pytest.mark.parametrize(("count", "what"), [(12, "12 edges"), (1, "1 edge")])
def test_check_same_block_says_that_equally_many_edges_differ(count: int, what: str) -> None:
    sent = replace(HEADER, num_edges=count)
    other = replace(sent, plan_digest=b"\x02" * 32)
    ones = "ones" if count > 1 else "one"
    for got, wanted in ((sent, other), (_back(other), _back(sent))):
        with pytest.raises(PartitionError) as caught:
            check_same_block(got, wanted)
        assert re.fullmatch(
            f"client 3 and client 4 .*{what} .*not the same {ones}, .*boundary plans; .*tables.*",
            str(caught.value),
        )


@given(
    st.sets(st.sampled_from(sorted(EDGE_FIELDS)), min_size=1),
    st.sets(st.sampled_from(["num_vectors", "width", "dtype"])),
)
def test_check_same_block_names_edges_before_their_consequences(
    edges: set[str], others: set[str]
) -> None:
    received = replace(HEADER, **{name: OTHER[name] for name in edges | others})
    with pytest.raises(PartitionError, match="edge"):
        check_same_block(received, HEADER)


@given(
    st.sets(st.sampled_from(["job", "layer", "sender", "receiver", "weights_digest"]), min_size=1)
)
def test_check_same_block_names_edges_only_of_the_same_block(names: set[str]) -> None:
    others = {name: OTHER[name] for name in names | EDGE_FIELDS}
    if {"sender", "receiver"} <= names:
        others["receiver"] = 8
    with pytest.raises(RemoteProtocolError, match="HELLO: "):
        check_same_block(replace(HEADER, **others), HEADER)


def _back(header: BlockHeader) -> BlockHeader:
    """Return the header of the block in the other direction."""
    return replace(header, sender=header.receiver, receiver=header.sender)


def test_check_same_block_accepts_an_equal_header() -> None:
    check_same_block(replace(HEADER), HEADER)


def test_block_header_counts_dense_bytes() -> None:
    header = replace(HEADER, num_vectors=10, width=3, dtype="float64")
    assert (header.itemsize, header.row_bytes, header.raw_bytes) == (8, 24, 240)


def test_block_traffic_adds_frame_by_frame() -> None:
    header = replace(HEADER, num_vectors=10, width=3)
    rows = FrameHeader(kind=FrameKind.ROWS, sequence=1, num_rows=10, payload_bytes=50)
    done = FrameHeader(kind=FrameKind.DONE, sequence=2, num_rows=10, payload_bytes=0)
    assert header.traffic_of(rows) + header.traffic_of(done) == BlockTraffic(
        raw_bytes=120, payload_bytes=50, control_bytes=0, wire_bytes=50 + 2 * 24
    )
