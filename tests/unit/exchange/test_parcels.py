"""A stream survives being cut, delayed and repeated by who carries it, and notices a loss."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retexo_fl.errors import LocalProtocolError, RemoteProtocolError
from retexo_fl.exchange.parcels import (
    HEADER_BYTES,
    MAX_DATA_BYTES,
    Parcel,
    ParcelKind,
    ParcelStream,
)

NAME = b"stream-1"


def _pair() -> tuple[ParcelStream, ParcelStream]:
    return ParcelStream(NAME, opens=True), ParcelStream(NAME, opens=False)


def _carry(sender: ParcelStream, receiver: ParcelStream, max_bytes: int = 1000) -> bytes:
    carried = [parcel.to_bytes() for parcel in sender.take(max_bytes)]
    return b"".join(receiver.receive(Parcel.parse(content)) for content in carried)


@given(
    pieces=st.lists(st.binary(max_size=300), max_size=12),
    most=st.integers(min_value=1, max_value=500),
    opens=st.booleans(),
)
def test_bytes_arrive_once_and_in_order(pieces: list[bytes], most: int, opens: bool) -> None:
    one, two = _pair()
    _carry(one, two)
    sender, receiver = (one, two) if opens else (two, one)
    arrived = b""
    for piece in pieces:
        sender.send(piece)
        arrived += _carry(sender, receiver, most)
    sender.close()
    for _ in range(20):
        arrived += _carry(sender, receiver, most)
    while sender.has_parcels:
        arrived += _carry(sender, receiver, most)
    assert arrived == b"".join(pieces)
    assert receiver.closed_there
    assert not sender.has_parcels
    assert sender.outgoing_bytes == 0


@given(st.lists(st.binary(min_size=1, max_size=50), min_size=1, max_size=8), st.data())
def test_repeated_parcels_change_nothing(pieces: list[bytes], data: st.DataObject) -> None:
    one, two = _pair()
    arrived, carried = b"", []
    for piece in pieces:
        one.send(piece)
        carried += one.take(100)
        for place in data.draw(st.lists(st.integers(0, len(carried) - 1), max_size=3)):
            if carried[place].sequence < len(carried) - 1:
                arrived += two.receive(carried[place])
        arrived += two.receive(carried[-1])
    assert arrived == b"".join(pieces)


def test_opening_alone_is_a_parcel() -> None:
    one, two = _pair()
    assert one.has_parcels
    assert not two.has_parcels
    (parcel,) = one.take(100)
    assert parcel.kind is ParcelKind.OPEN
    assert two.receive(parcel) == b""
    assert not one.has_parcels


def test_opening_carries_the_first_bytes() -> None:
    one, two = _pair()
    one.send(b"hello")
    (parcel,) = one.take(100)
    assert (parcel.kind, two.receive(parcel)) == (ParcelKind.OPEN, b"hello")


def test_loss_is_noticed() -> None:
    one, two = _pair()
    one.send(b"a")
    one.take(10)
    one.send(b"b")
    (second,) = one.take(10)
    with pytest.raises(RemoteProtocolError, match="lost"):
        two.receive(second)


def test_many_bytes_are_cut() -> None:
    one, two = _pair()
    one.send(b"x" * (2 * MAX_DATA_BYTES + 5))
    sizes = []
    while one.has_parcels:
        parcels = one.take(MAX_DATA_BYTES)
        sizes.append(sum(len(two.receive(parcel)) for parcel in parcels))
    assert sizes == [MAX_DATA_BYTES, MAX_DATA_BYTES, 5]


def test_small_pieces_share_a_parcel_as_far_as_they_fit() -> None:
    one, two = _pair()
    for piece in (b"aaaa", b"b", b"ccc", b"dd"):
        one.send(piece)
    left, carried = [], []
    while one.has_parcels:
        carried.append(b"".join(two.receive(parcel) for parcel in one.take(8)))
        left.append(one.outgoing_bytes)
    assert carried == [b"aaaabccc", b"dd"]
    assert left == [2, 0]


def test_nothing_follows_the_end() -> None:
    one, two = _pair()
    one.close()
    with pytest.raises(LocalProtocolError):
        one.send(b"late")
    _carry(one, two)
    with pytest.raises(RemoteProtocolError, match="after the end"):
        two.receive(Parcel(kind=ParcelKind.DATA, stream=NAME, sequence=2))


def test_reset_is_told() -> None:
    one, _ = _pair()
    with pytest.raises(RemoteProtocolError, match="no more"):
        one.receive(Parcel(kind=ParcelKind.RESET, stream=NAME, sequence=0))


def test_opening_twice_is_refused() -> None:
    one, two = _pair()
    _carry(one, two)
    with pytest.raises(RemoteProtocolError, match="OPEN"):
        two.receive(Parcel(kind=ParcelKind.OPEN, stream=NAME, sequence=1))
    with pytest.raises(RemoteProtocolError, match="OPEN"):
        one.receive(Parcel(kind=ParcelKind.OPEN, stream=NAME, sequence=0))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "header"),
        (b"\x01" * (HEADER_BYTES - 1), "header"),
        (b"\x02\x01" + NAME + bytes(4), "version 2"),
        (b"\x01\x09" + NAME + bytes(4), "kind 9"),
        (b"\x01\x02" + NAME + bytes(4 + MAX_DATA_BYTES + 1), "at most"),
    ],
)
def test_what_is_no_parcel_is_refused(content: bytes, complaint: str) -> None:
    with pytest.raises(RemoteProtocolError, match=complaint):
        Parcel.parse(content)


def test_stream_name_has_eight_bytes() -> None:
    with pytest.raises(LocalProtocolError, match="8"):
        ParcelStream(b"short", opens=True)
