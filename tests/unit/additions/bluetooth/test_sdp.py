"""Our record's question and answers: what fits is read, whatever does not is refused by name."""

from __future__ import annotations

import struct
import uuid
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retexo_fl.additions.bluetooth import SERVICE_UUID
from retexo_fl.additions.bluetooth.sdp import Offer, answer_parts, offers, question, record_xml
from retexo_fl.errors import RemoteProtocolError

DEVICE = "00:AA:01:00:00:00"
#: What BlueZ 5.66 answered for a record on channel 7 with an empty description.
BLUEZ = bytes.fromhex("070001001d001a35183516090004350c350319010035051900030807090101250000")


def sequence(*items: bytes) -> bytes:
    body = b"".join(items)
    return b"\x36" + struct.pack(">H", len(body)) + body


def number(value: int) -> bytes:
    return b"\x09" + struct.pack(">H", value)


def text(value: bytes) -> bytes:
    return b"\x25" + bytes([len(value)]) + value


def rfcomm(channel: bytes, protocol: bytes = b"\x19\x00\x03") -> bytes:
    return sequence(sequence(b"\x19\x01\x00"), sequence(protocol, channel))


def answer(attributes: bytes, rest: bytes = b"", transaction: int = 1) -> bytes:
    body = struct.pack(">H", len(attributes)) + attributes + bytes([len(rest)]) + rest
    return struct.pack(">BHH", 7, transaction, len(body)) + body


def test_what_bluez_answers_is_understood() -> None:
    attributes, rest = answer_parts(BLUEZ, 1)
    assert rest == b""
    assert offers(attributes) == (Offer(channel=7, adapter=""),)


def test_a_question_names_the_service_and_continues_the_answer() -> None:
    asked = question(0x0102, b"\xaa\xbb")
    kind, transaction, length = struct.unpack(">BHH", asked[:5])
    assert (kind, transaction, length) == (6, 0x0102, len(asked) - 5)
    assert uuid.UUID(SERVICE_UUID).bytes in asked
    assert asked.endswith(b"\x02\xaa\xbb")


def test_a_record_is_well_formed() -> None:
    record = ElementTree.fromstring(record_xml(Offer(channel=30, adapter=DEVICE)))  # noqa: S314
    values = {item.get("id"): item for item in record}
    assert values["0x0001"].find("sequence/uuid") is not None
    (channel,) = values["0x0004"].iter("uint8")
    assert channel.get("value") == "0x1e"
    (description,) = values["0x0101"].iter("text")
    assert description.get("value") == DEVICE


@pytest.mark.parametrize("protocol", [b"\x19\x00\x03", b"\x1a\x00\x00\x00\x03"])
def test_records_of_several_adapters_are_told_apart(protocol: bytes) -> None:
    one = sequence(number(4), rfcomm(b"\x08\x07", protocol), number(0x101), text(DEVICE.encode()))
    other = sequence(number(4), rfcomm(b"\x08\x08", protocol))
    assert offers(sequence(one, other)) == (
        Offer(channel=7, adapter=DEVICE),
        Offer(channel=8, adapter=""),
    )


@pytest.mark.parametrize(
    "record",
    [
        sequence(),
        sequence(number(4)),
        sequence(number(4), b"\x00"),
        sequence(number(4), rfcomm(b"\x08\x00")),
        sequence(number(4), rfcomm(b"\x08\x1f")),
        sequence(number(4), rfcomm(b"\x25\x017")),
        sequence(number(4), sequence(sequence(b"\x19\x01\x00", number(7)))),
        sequence(text(b"4"), rfcomm(b"\x08\x07")),
        sequence(number(4), rfcomm(b"\x08\x07"), number(0x101), number(3)),
        number(4),
    ],
)
def test_records_of_other_forms_are_passed_over(record: bytes) -> None:
    good = sequence(number(4), rfcomm(b"\x08\x07"))
    assert offers(sequence(record, good)) == (Offer(channel=7, adapter=""),)


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        (b"", "ends within a data element"),
        (number(4), "expected one list of records"),
        (sequence() + b"\x00", "expected one list of records"),
        (b"\x36\x00\x09\x09", "ends within a data element"),
        (b"\x37\xff\xff\xff\xff", "ends within a data element"),
        (b"\x35", "ends within a data element"),
        (sequence(sequence(b"\xf8\x00")), "unknown type 31"),
        (sequence(b"\x18\x00"), "UUID of 1 byte"),
        (sequence(b"\x35\x02\x35\x02\x09\x00\x04"), "ends within a data element"),
        (b"".join(b"\x35" + bytes([40 - 2 * i]) for i in range(20)) + b"\0\0", "nested deeper"),
    ],
)
def test_damaged_lists_are_refused(attributes: bytes, expected: str) -> None:
    with pytest.raises(RemoteProtocolError, match=expected):
        offers(attributes)


@pytest.mark.parametrize(
    ("packet", "expected"),
    [
        (b"", "0 bytes; expected .*5"),
        (answer(b"", transaction=2), "transaction number"),
        (answer(b"")[:-1], "another .*length"),
        (b"\x01\x00\x01\x00\x02\x00\x03", "answered with error 0x0003"),
        (b"\x03\x00\x01\x00\x03\x00\x00\x00", "kind 0x03"),
        (b"\x07\x00\x01\x00\x03\x00\x01\x00", "contradict each other"),
        (b"\x07\x00\x01\x00\x03\x00\x00\x01", "contradict each other"),
        (answer(b"", b"x" * 17), "contradict each other"),
    ],
)
def test_damaged_answers_are_refused(packet: bytes, expected: str) -> None:
    with pytest.raises(RemoteProtocolError, match=expected):
        answer_parts(packet, 1)


def test_an_answer_in_parts_says_how_it_goes_on() -> None:
    assert answer_parts(answer(b"abc", b"\x01\x02"), 1) == (b"abc", b"\x01\x02")


@given(st.binary(max_size=64))
def test_nothing_but_a_named_error_comes_of_any_bytes(data: bytes) -> None:
    for read in (offers, lambda packet: answer_parts(packet, 1)):
        try:
            read(data)
        except RemoteProtocolError:
            continue
