from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from retexo_fl.additions.kernel_path.packets.aggregation import take_packets
from retexo_fl.additions.kernel_path.packets.layout import (
    ACK_WANTED,
    NOT_YET,
    SKIP,
    PacketKind,
)
from retexo_fl.additions.kernel_path.packets.packets import (
    ack_packet,
    checksum,
    parse_header,
    ping_packet,
    read_ack,
)
from retexo_fl.additions.kernel_path.packets.stream_shape import StreamShape
from retexo_fl.errors import LocalProtocolError
from tests.unit.additions.kernel_path.packets.receiving import (
    FIRST_CELL,
    REGION,
    SEEN_BASE,
    SLOT_BASE,
    STREAM,
    Receiving,
    head_of,
    pack_all,
    vectors,
)

SMALL = StreamShape(rows=5, width=20, packet_cells=3)
PLACES = [1, 0, 2, -1, 1]


def reference(places: list[int], values: NDArray[np.int32]) -> NDArray[np.int32]:
    num_rows = max([*places, 0]) + 1
    sums = np.zeros((num_rows, values.shape[1]), dtype=np.int32)
    for place, row in zip(places, values, strict=True):
        if place >= 0:
            sums[place] += row
    return sums


def with_checksum(packet: bytearray) -> bytes:
    struct.pack_into("<Q", packet, 24, checksum(packet))
    return bytes(packet)


@given(st.data())
def test_what_was_packed_is_taken_in_any_order_and_once(data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, 20))
    shape = StreamShape(rows, data.draw(st.integers(1, 90)), data.draw(st.integers(1, 25)))
    places = data.draw(st.lists(st.integers(-1, 6), min_size=rows, max_size=rows))
    values = vectors(shape, seed=rows)
    receiving = Receiving(shape, places)
    packets = pack_all(shape, values)
    repeated = data.draw(st.lists(st.integers(0, shape.packets - 1), max_size=10))
    order = data.draw(st.permutations([*range(shape.packets), *repeated]))
    cut = data.draw(st.integers(0, len(order)))
    for batch in (order[:cut], order[cut:]):
        assert not any(receiving.take([packets[seq] for seq in batch]))
    np.testing.assert_array_equal(receiving.sums, reference(places, values))
    expected = {"data_new": shape.packets, "data_duplicate": len(repeated), "events": 1}
    assert receiving.counters == {name: count for name, count in expected.items() if count}
    stream, region = receiving.tables.streams[STREAM], receiving.tables.regions[REGION]
    assert (stream["done"], stream["duplicates"]) == (shape.packets, len(repeated))
    assert (region["done"], region["complete"]) == (shape.packets, 1)
    is_outside = np.ones(len(receiving.tables.acc), dtype=np.bool_)
    is_outside[FIRST_CELL:-1] = False
    assert (receiving.tables.acc[is_outside] == receiving.tables.acc[0, 0]).all()


def test_many_packets_fill_several_blocks_of_seen_bits() -> None:
    shape = StreamShape(rows=1100, width=16, packet_cells=1)
    receiving = Receiving(shape, [0] * 1100)
    values = np.ones((1100, 16), dtype=np.int32)
    receiving.take(pack_all(shape, values)[::-1])
    assert (receiving.sums == 1100).all()
    seen = np.unpackbits(receiving.tables.seen.view(np.uint8).reshape(-1), bitorder="little")
    assert seen[: 512 * SEEN_BASE].sum() == 0
    assert seen[512 * SEEN_BASE :][:1100].all()
    assert seen.sum() == 1100


@settings(max_examples=400)
@given(st.integers(0, 4), st.integers(0, 48 + 3 * 64 - 1), st.integers(1, 255))
@example(seq=0, at=5, flip=PacketKind.DATA ^ PacketKind.ACK)
@example(seq=0, at=5, flip=PacketKind.DATA ^ PacketKind.PING)
@example(seq=0, at=5, flip=PacketKind.DATA ^ 4)
@example(seq=0, at=7, flip=ACK_WANTED)
@example(seq=1, at=36, flip=1)
def test_no_changed_byte_is_ever_taken(seq: int, at: int, flip: int) -> None:
    receiving = Receiving(SMALL, PLACES)
    packet = bytearray(pack_all(SMALL, vectors(SMALL))[min(seq, SMALL.packets - 1)])
    at = min(at, len(packet) - 1)
    packet[at] ^= flip
    assert receiving.take([bytes(packet)]) == [b""]
    assert receiving.is_untouched()
    (counter,) = receiving.counters.items()
    if at < 4:
        assert counter == ("passed", 1)
    elif 8 <= at < 24 or 32 <= at < 36:
        assert counter == ("foreign", 1)
    elif at == 5 and packet[5] == PacketKind.ACK:
        assert counter == ("passed", 1)
    elif 24 <= at < 32 or at >= 48 or at == 7:
        assert counter == ("bad_checksum", 1)
    else:
        assert counter in {("malformed", 1), ("bad_checksum", 1)}


@given(st.integers(0, 48 + 3 * 64 + 16))
def test_a_packet_of_another_length_is_not_taken(size: int) -> None:
    receiving = Receiving(SMALL, PLACES)
    packet = pack_all(SMALL, vectors(SMALL))[0]
    receiving.take([(packet + bytes(16))[:size]])
    if size == len(packet):
        assert receiving.counters == {"data_new": 1}
        return
    assert receiving.is_untouched()
    assert receiving.counters == {"passed" if size < 4 else "malformed": 1}


@pytest.mark.parametrize(
    ("at", "form", "value"),
    [
        (4, "B", 2),  # version
        (5, "B", 0),  # kind
        (5, "B", 4),
        (6, "B", 1),
        (36, "<I", 5),  # seq: another packet's, and none's
        (36, "<I", 2**32 - 1),
        (40, "<I", 1),  # first
        (44, "<H", 1),  # offset
        (46, "<H", 0),  # cells
        (46, "<H", 2),
        (46, "<H", 141),
    ],
)
def test_an_inconsistent_field_is_malformed_with_any_checksum(
    at: int, form: str, value: int
) -> None:
    receiving = Receiving(SMALL, PLACES)
    packet = bytearray(pack_all(SMALL, vectors(SMALL))[0])
    struct.pack_into(form, packet, at, value)
    receiving.take([with_checksum(packet)])
    assert receiving.is_untouched()
    assert receiving.counters == {"malformed": 1}


@pytest.mark.parametrize("change", ["token", "job", "stage", "sender", "closed"])
def test_packets_of_other_streams_are_foreign(change: str) -> None:
    receiving = Receiving(SMALL, PLACES)
    record = receiving.tables.streams[STREAM]
    field = "token" if change == "closed" else change
    record[field] = 0 if change == "closed" else record[field] + 1
    packets = pack_all(SMALL, vectors(SMALL), flags=ACK_WANTED)
    packets.append(ping_packet(head_of(), 0))
    assert not any(receiving.take(packets))
    assert receiving.is_untouched()
    assert receiving.counters == {"foreign": len(packets)}


def test_a_closed_stream_does_not_take_token_zero() -> None:
    receiving = Receiving(SMALL, PLACES)
    receiving.tables.streams[STREAM]["token"] = 0
    packet = bytearray(pack_all(SMALL, vectors(SMALL))[0])
    struct.pack_into("<Q", packet, 8, 0)
    receiving.take([bytes(packet)])
    assert receiving.counters == {"foreign": 1}


def test_a_packet_that_wants_an_ack_gets_one_each_time() -> None:
    shape = StreamShape(rows=600, width=16, packet_cells=1)
    receiving = Receiving(shape, [0] * 600)
    wanted = pack_all(shape, vectors(shape), flags=ACK_WANTED)
    replies = receiving.take([wanted[513], wanted[511], wanted[513]])
    acks = [read_ack(reply) for reply in replies]
    assert [ack.base for ack in acks if ack] == [512, 0, 512]
    assert [ack.header.seq for ack in acks if ack] == [513, 511, 513]
    assert all(ack.header.head == head_of() and not ack.header.flags for ack in acks if ack)
    assert [ack.bits.tolist() for ack in acks if ack] == [
        [2, 0, 0, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0, 0, 2**63],
        [2, 0, 0, 0, 0, 0, 0, 0],
    ]
    assert receiving.counters == {"data_new": 2, "data_duplicate": 1, "acks_sent": 3}
    assert replies[1] == ack_packet(head_of(), 511, 0, receiving.tables.seen[SEEN_BASE])


def test_a_ping_tells_what_was_seen_and_takes_nothing() -> None:
    receiving = Receiving(SMALL, PLACES)
    packets = pack_all(SMALL, vectors(SMALL))
    receiving.take([packets[1]])
    sums = receiving.sums.copy()
    (reply,) = receiving.take([ping_packet(head_of(), 3)])
    ack = read_ack(reply)
    assert ack is not None
    assert (ack.header.seq, ack.base, int(ack.bits[0])) == (3, 0, 0b10)
    np.testing.assert_array_equal(receiving.sums, sums)
    assert receiving.counters == {"data_new": 1, "pings": 1, "acks_sent": 1}


def test_a_ping_for_user_space_is_answered_there_alone() -> None:
    receiving = Receiving(SMALL, PLACES)
    ping = ping_packet(head_of(), 0, user_ack=True)
    assert receiving.take([ping], answers_user_acks=False) == [b""]
    assert receiving.counters == {"user_acks": 1}
    (reply,) = receiving.take([ping])
    ack = read_ack(reply)
    assert ack is not None
    assert ack.header.flags == 0
    assert receiving.counters == {"user_acks": 2, "acks_sent": 1}


def test_beside_an_xdp_program_only_pings_are_answered() -> None:
    receiving = Receiving(SMALL, PLACES)
    packets = pack_all(SMALL, vectors(SMALL), flags=ACK_WANTED)
    assert not any(receiving.take(packets, takes_data=False))
    assert receiving.is_untouched()
    assert receiving.take([ping_packet(head_of(), 0, user_ack=True)], takes_data=False) != [b""]
    assert receiving.counters == {"passed": len(packets), "user_acks": 1, "acks_sent": 1}


@pytest.mark.parametrize("change", [(36, "<I", 99), (40, "<I", 1), (44, "<H", 1)])
def test_a_ping_elsewhere_is_malformed(change: tuple[int, str, int]) -> None:
    receiving = Receiving(SMALL, PLACES)
    ping = bytearray(ping_packet(head_of(), 0))
    struct.pack_into(change[1], ping, change[0], change[2])
    assert receiving.take([with_checksum(ping)]) == [b""]
    assert receiving.counters == {"malformed": 1}


def test_answers_are_passed_up_and_left_alone() -> None:
    receiving = Receiving(SMALL, PLACES)
    ack = ack_packet(head_of(), 0, 0, np.zeros(8, dtype=np.uint64))
    assert receiving.take([ack, b"", b"RTX", b"another protocol"]) == [b""] * 4
    assert receiving.is_untouched()
    assert receiving.counters == {"passed": 4}


def test_an_exchange_completes_only_when_all_streams_are_open() -> None:
    receiving = Receiving(SMALL, PLACES)
    region = receiving.tables.regions[REGION]
    region["expected"] = NOT_YET
    packets = pack_all(SMALL, vectors(SMALL))
    receiving.take(packets[:-1])
    assert region["complete"] == 0
    region["expected"] = SMALL.packets
    receiving.take(packets[-1:])
    assert region["complete"] == 1
    assert receiving.counters["events"] == 1


def test_an_exchange_is_completed_once() -> None:
    receiving = Receiving(SMALL, PLACES)
    receiving.tables.regions[REGION]["expected"] = 1
    receiving.take(pack_all(SMALL, vectors(SMALL)))
    assert receiving.counters == {"data_new": SMALL.packets, "events": 1}


def outside_of_acc(receiving: Receiving) -> None:
    receiving.tables.slots[SLOT_BASE] = len(receiving.tables.acc) - 1
    receiving.tables.slots[SLOT_BASE + 1] = SKIP - 1


def outside_of_slots(receiving: Receiving) -> None:
    receiving.tables.streams[STREAM]["slot_base"] = len(receiving.tables.slots) - 1
    receiving.tables.slots[-1] = SKIP


def outside_of_seen(receiving: Receiving) -> None:
    receiving.tables.streams[STREAM]["seen_base"] = len(receiving.tables.seen)


def outside_of_regions(receiving: Receiving) -> None:
    receiving.tables.streams[STREAM]["region"] = len(receiving.tables.regions)


@pytest.mark.parametrize("place", [outside_of_acc, outside_of_slots])
def test_cells_outside_of_the_tables_are_left_out(place: Callable[[Receiving], None]) -> None:
    shape = StreamShape(rows=2, width=32, packet_cells=4)
    receiving = Receiving(shape, [0, 0])
    place(receiving)
    values = vectors(shape)
    receiving.take(pack_all(shape, values))
    assert receiving.counters == {"data_new": 1, "events": 1}
    acc = receiving.tables.acc
    assert not acc[:-1].any()
    expected = values[0, :16] if place is outside_of_acc else np.zeros(16)
    np.testing.assert_array_equal(acc[-1], expected)


@pytest.mark.parametrize("place", [outside_of_seen, outside_of_regions])
def test_a_stream_that_leaves_the_tables_takes_nothing(
    place: Callable[[Receiving], None],
) -> None:
    receiving = Receiving(SMALL, PLACES)
    place(receiving)
    receiving.take(pack_all(SMALL, vectors(SMALL), flags=ACK_WANTED))
    assert receiving.is_untouched()
    assert receiving.counters == {"foreign": SMALL.packets}


def test_sums_wrap_around_as_in_c() -> None:
    shape = StreamShape(rows=2, width=16, packet_cells=1)
    receiving = Receiving(shape, [0, 0])
    receiving.take(pack_all(shape, np.full((2, 16), np.iinfo(np.int32).max, dtype=np.int32)))
    assert (receiving.sums == -2).all()


def test_bytes_after_a_packet_that_was_cut_off_are_not_read() -> None:
    receiving = Receiving(SMALL, PLACES)
    packet = np.frombuffer(pack_all(SMALL, vectors(SMALL))[0], dtype=np.uint8)
    buffers = packet[:-8].reshape(1, -1).copy()
    take_packets(
        receiving.tables,
        buffers,
        np.array([len(packet)]),
        receiving.counts,
        np.zeros((1, 1456), dtype=np.uint8),
        np.zeros(1, dtype=np.int64),
    )
    assert receiving.is_untouched()
    assert receiving.counters == {"malformed": 1}
    assert parse_header(packet) is not None


@pytest.mark.parametrize(
    ("buffers", "replies", "counters", "message"),
    [
        ((1, 240), (2, 1456), 10, "room for packets"),
        ((2, 241), (2, 1456), 10, "room for packets"),
        ((2, 40), (2, 1456), 10, "room for packets"),
        ((2, 240), (1, 1456), 10, "room for answers"),
        ((2, 240), (2, 104), 10, "room for answers"),
        ((2, 240), (2, 1456), 9, "9 counters, expected 10"),
    ],
)
def test_arrays_of_another_form_are_refused(
    buffers: tuple[int, int], replies: tuple[int, int], counters: int, message: str
) -> None:
    receiving = Receiving(SMALL, PLACES)
    with pytest.raises(LocalProtocolError, match=message):
        take_packets(
            receiving.tables,
            np.zeros(buffers, dtype=np.uint8),
            np.zeros(2, dtype=np.int64),
            np.zeros(counters, dtype=np.uint64),
            np.zeros(replies, dtype=np.uint8),
            np.zeros(2, dtype=np.int64),
        )
