"""The aggregate program by BPF_PROG_TEST_RUN: what it adds, refuses, answers and lets pass."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from retexo_fl.additions.kernel_path.packets.layout import ACK_WANTED, HEADER, NOT_YET, SKIP
from retexo_fl.additions.kernel_path.packets.packets import (
    ack_packet,
    checksum,
    ping_packet,
    read_ack,
)
from retexo_fl.additions.kernel_path.packets.stream_shape import StreamShape
from retexo_fl.additions.kernel_path.xdp.aggregate import AggregateProgram, TableSizes
from retexo_fl.additions.kernel_path.xdp.udp_frame import internet_checksum, udp_frame
from retexo_fl.errors import ChannelUnavailable
from tests.support.aggregate_twin import (
    PAYLOAD_AT,
    RECEIVER,
    RECEIVER_MAC,
    SENDER,
    SENDER_MAC,
    XDP_DROP,
    XDP_PASS,
    XDP_TX,
    OpenStream,
    Twins,
    frame_of,
    places,
    summed,
    values_of,
    with_forms,
)
from tests.support.kernel import require_bpf

_CELLS = 2048


@pytest.fixture(scope="module")
def loaded() -> Iterator[Twins]:
    require_bpf()
    with Twins(cells=_CELLS) as twins:
        yield twins


@pytest.fixture
def twins(loaded: Twins) -> Twins:
    loaded.reset()
    return loaded


@pytest.fixture
def generator() -> np.random.Generator:
    return np.random.default_rng(11)


def _counted(twins: Twins, action: Callable[[], object]) -> dict[str, int]:
    before = twins.program.counters()
    action()
    after = twins.program.counters()
    return {name: after[name] - before[name] for name in after if after[name] != before[name]}


def _open(
    twins: Twins, width: int = 64, rows: int = 40, *, forms: np.random.Generator | None = None
) -> OpenStream:
    """Open a stream; of bytes, with forms that are drawn."""
    shape = StreamShape.in_room(rows, width, 22, in_bytes=forms is not None)
    cells = places(rows, shape.row_cells)
    return twins.open_stream(1, shape, cells if forms is None else with_forms(forms, cells))


@pytest.mark.parametrize("in_bytes", [False, True])
@pytest.mark.parametrize("width", [1, 16, 17, 64, 256, 352, 353, 602])
def test_stream_of_any_width_adds_up_exactly(
    twins: Twins, generator: np.random.Generator, width: int, in_bytes: bool
) -> None:
    stream = _open(twins, width, forms=generator if in_bytes else None)
    values = values_of(generator, stream.shape)
    packets = stream.packets(values)
    for index in generator.permutation(len(packets)):
        assert twins.take(packets[index]) == (XDP_DROP, b"")
    twins.check_tables()
    assert np.array_equal(twins.program.tables.acc, summed(stream, values, _CELLS))


@pytest.mark.parametrize("atomic", [False, True])
def test_streams_of_bytes_and_of_int32_meet_in_the_same_rows(
    twins: Twins, generator: np.random.Generator, atomic: bool
) -> None:
    rows = places(30, 3)
    expected = np.zeros((_CELLS, 16), dtype=np.int32)
    for number, in_bytes in enumerate((True, False, True)):
        shape = StreamShape.in_room(30, 45, 5, in_bytes=in_bytes)
        which = generator.permutation(rows)
        which[3] = SKIP
        which = with_forms(generator, which) if in_bytes else which
        stream = twins.open_stream(number, shape, which, atomic=atomic)
        values = values_of(generator, shape)
        expected += summed(stream, values, _CELLS)
        for packet in stream.packets(values):
            twins.take(packet)
    twins.check_tables()
    assert np.array_equal(twins.program.tables.acc, expected)


@pytest.mark.parametrize("in_bytes", [0, 1])
def test_values_of_another_kind_than_was_agreed_are_refused(
    twins: Twins, generator: np.random.Generator, in_bytes: int
) -> None:
    stream = _open(twins, forms=generator if in_bytes else None)
    for kind in (1 - in_bytes, 2, 255):
        packet = bytearray(stream.packets(values_of(generator, stream.shape))[0])
        packet[6] = kind
        packet[24:32] = checksum(bytes(packet)).to_bytes(8, "little")
        before = twins.program.counters()["malformed"]
        assert twins.take(bytes(packet)) == (XDP_DROP, b"")
        # A packet of as many cells has other bytes, too, but where a peer lies in both.
        assert twins.program.counters()["malformed"] == before + 1
    # One cell takes as many bytes of either kind.
    one = _open(twins, width=16, rows=1, forms=generator if in_bytes else None)
    for sent in (*one.packets(values_of(generator, one.shape)), ping_packet(one.head, 0)):
        lying = bytearray(sent)
        lying[6] = 1 - in_bytes
        lying[24:32] = checksum(bytes(lying)).to_bytes(8, "little")
        assert _counted(twins, partial(twins.take, bytes(lying))) == {"malformed": 1}
    assert not twins.program.tables.acc.any()


@pytest.mark.parametrize("atomic", [False, True])
def test_streams_of_several_senders_meet_in_the_same_rows(
    twins: Twins, generator: np.random.Generator, atomic: bool
) -> None:
    shape, rows = StreamShape(30, 48, 22), places(20, 3)
    expected = np.zeros((20, 48), dtype=np.int64)
    for number in range(3):
        which = generator.integers(0, 20, shape.rows)
        stream = twins.open_stream(number, shape, rows[which], atomic=atomic)
        values = values_of(generator, shape)
        np.add.at(expected, which, values)
        for packet in stream.packets(values):
            twins.take(packet)
    twins.check_tables()
    assert np.array_equal(twins.program.tables.acc[:60].reshape(20, 48), expected)


@pytest.mark.parametrize("in_bytes", [False, True])
def test_program_that_several_processors_run_adds_the_same(
    twins: Twins, generator: np.random.Generator, in_bytes: bool
) -> None:
    stream = _open(twins, forms=generator if in_bytes else None)
    values = values_of(generator, stream.shape)
    twins.program.expect_several_contexts(True)
    try:
        for packet in stream.packets(values):
            twins.take(packet)
    finally:
        twins.program.expect_several_contexts(False)
    assert np.array_equal(twins.program.tables.acc, summed(stream, values, _CELLS))


def test_vectors_for_others_are_left_out(twins: Twins, generator: np.random.Generator) -> None:
    shape = StreamShape(40, 64, 22)
    rows = np.where(np.arange(40) % 3, places(40, 4), np.uint64(SKIP))
    stream = twins.open_stream(2, shape, rows)
    values = values_of(generator, shape)
    for packet in stream.packets(values):
        twins.take(packet)
    twins.check_tables()
    assert np.array_equal(twins.program.tables.acc, summed(stream, values, _CELLS))


def test_duplicates_are_counted_and_change_nothing(
    twins: Twins, generator: np.random.Generator
) -> None:
    stream = _open(twins)
    values = values_of(generator, stream.shape)
    packets = stream.packets(values)
    counted = _counted(twins, lambda: [twins.take(packet) for packet in packets * 3])
    assert counted == {"data_new": len(packets), "data_duplicate": 2 * len(packets)}
    twins.check_tables()
    assert twins.program.tables.streams[1]["duplicates"] == 2 * len(packets)
    assert np.array_equal(twins.program.tables.acc, summed(stream, values, _CELLS))


def test_sum_wraps_around_as_int32_does(twins: Twins) -> None:
    stream = _open(twins, width=16, rows=1)
    for tables in twins.both:
        tables.acc[0] = 2**31 - 1
    twins.take(stream.packets(np.ones((1, 16), dtype=np.int32))[0])
    twins.check_tables()
    assert (twins.program.tables.acc[0] == -(2**31)).all()


def _set(packet: bytes, **fields: int) -> bytes:
    changed = np.frombuffer(packet, dtype=np.uint8).copy()
    header = changed[:48].view(HEADER)
    for name, value in fields.items():
        header[name] = value
    header["checksum"] = checksum(changed)
    return changed.tobytes()


def _wrong_packets(packet: bytes) -> dict[str, tuple[str, bytes]]:
    """Return what is wrong with a packet (a good one with number 5), and how it is counted."""
    wrong = {
        "version": _set(packet, version=2),
        "kind 0": _set(packet, kind=0),
        "kind 4": _set(packet, kind=4),
        "no cells": _set(packet, cells=0),
        "more cells than bytes": _set(packet, cells=23),
        "fewer cells than bytes": _set(packet, cells=21),
        "too many cells": _set(packet + bytes(64), cells=23),
        "fewer cells than due": _set(packet[:-64], cells=21),
        "cut in the header": packet[:40],
        "cut in the payload": packet[:-8],
        "longer": packet + bytes(8),
        "of another kind": _set(packet, in_bytes=1),
        "number": _set(packet, seq=6),
        "number out of range": _set(packet, seq=2**32 - 1),
        "first": _set(packet, first=28),
        "first out of range": _set(packet, first=2**32 - 1),
        "offset": _set(packet, offset=0),
        "offset beyond the row": _set(packet, first=26, offset=6),
        "ping of two cells": _set(packet[: 48 + 128], kind=3, cells=2, first=0, offset=0),
        "ping with first": _set(packet[: 48 + 64], kind=3, cells=1, offset=0),
        "ping out of range": _set(packet[: 48 + 64], kind=3, cells=1, first=0, offset=0, seq=99),
        "get with offset": _set(packet[: 48 + 256], kind=4, cells=4, seq=27, first=27, offset=2),
    }
    foreign = {
        "token": _set(packet, token=1),
        "no token": _set(packet, token=0),
        "stream": _set(packet, stream=2),
        "stream out of range": _set(packet, stream=2**32 - 1),
        "free stream without token": _set(packet, stream=3, token=0),
        "job": _set(packet, job=78),
        "stage": _set(packet, stage=4),
        "sender": _set(packet, sender=2),
    }
    damaged = {
        "checksum": packet[:24] + bytes(8) + packet[32:],
        "first value": packet[:48] + bytes([packet[48] ^ 1]) + packet[49:],
        "last value": packet[:-1] + bytes([packet[-1] ^ 128]),
        "flags": packet[:7] + b"\1" + packet[8:],
    }
    groups = (("malformed", wrong), ("foreign", foreign), ("bad_checksum", damaged))
    return {name: (how, each) for how, group in groups for name, each in group.items()}


def test_wrong_packets_are_dropped_counted_and_change_nothing(
    twins: Twins, generator: np.random.Generator
) -> None:
    stream = _open(twins)
    packet = stream.packets(values_of(generator, stream.shape), seqs=np.array([5]))[0]
    twins.expect(1)
    for name, (how, wrong) in _wrong_packets(packet).items():
        counted = _counted(twins, lambda wrong=wrong: twins.take(wrong))  # type: ignore[misc]
        assert counted == {how: 1}, name
        assert not twins.program.tables.acc.any(), name
        assert not twins.program.tables.seen.any(), name
        twins.check_tables()
    assert _counted(twins, lambda: twins.take(packet)) == {"data_new": 1, "events": 1}


def test_closed_stream_takes_nothing(twins: Twins, generator: np.random.Generator) -> None:
    stream = _open(twins)
    packet = stream.packets(values_of(generator, stream.shape))[0]
    for tables in twins.both:
        tables.streams[1]["token"] = 0
    assert _counted(twins, lambda: twins.take(packet)) == {"foreign": 1}


def test_stream_whose_region_is_none_is_foreign(
    twins: Twins, generator: np.random.Generator
) -> None:
    stream = _open(twins)
    for tables in twins.both:
        tables.streams[1]["region"] = 2
    packet = stream.packets(values_of(generator, stream.shape))[0]
    assert _counted(twins, lambda: twins.take(packet)) == {"foreign": 1}


def test_rows_outside_the_tables_are_skipped(twins: Twins, generator: np.random.Generator) -> None:
    shape = StreamShape(6, 64, 22)
    rows = np.array([0, _CELLS - 2, _CELLS, 2**32 - 1, 2**31, 8], dtype=np.uint64)
    stream = twins.open_stream(0, shape, rows)
    for packet in stream.packets(values_of(generator, shape)):
        twins.take(packet)
    twins.check_tables()
    assert twins.program.tables.acc[_CELLS - 2 :].all()


def test_acknowledgement_tells_the_seen_bits_of_the_block(
    twins: Twins, generator: np.random.Generator
) -> None:
    shape = StreamShape(1200, 1, 1)
    stream = twins.open_stream(1, shape, np.full(1200, 7, dtype=np.uint64))
    values = values_of(generator, shape)
    taken = np.array([0, 63, 64, 511, 512, 700, 1023, 1024])
    packets = stream.packets(values, flags=ACK_WANTED, seqs=taken)
    for _ in range(2):
        answers = [twins.take(packet) for packet in packets]
    for seq, (code, answer) in zip(taken, answers, strict=True):
        ack = read_ack(answer)
        assert ack is not None
        assert code == XDP_TX
        assert ack.header.head == stream.head
        assert (ack.header.seq, ack.base, ack.header.flags) == (seq, seq // 512 * 512, 0)
        told = ack.base + np.flatnonzero(np.unpackbits(ack.bits.view(np.uint8), bitorder="little"))
        assert np.array_equal(told, taken[taken // 512 == seq // 512])


def test_answer_goes_back_with_headers_that_are_right(
    twins: Twins, generator: np.random.Generator
) -> None:
    stream = _open(twins)
    packet = stream.packets(values_of(generator, stream.shape), flags=ACK_WANTED)[0]
    asked = udp_frame((RECEIVER_MAC, SENDER_MAC), SENDER, RECEIVER, packet, has_checksum=True)
    ran = twins.program.program.test_run(asked)
    assert ran.code == XDP_TX
    assert internet_checksum(ran.frame[14:34]) == 0
    # All but the identification, "do not fragment" and time to live, which are the asker's.
    expected = udp_frame((SENDER_MAC, RECEIVER_MAC), RECEIVER, SENDER, ran.frame[PAYLOAD_AT:])
    assert ran.frame == expected


def test_bytes_behind_the_packet_do_not_matter(
    twins: Twins, generator: np.random.Generator
) -> None:
    stream = _open(twins)
    values = values_of(generator, stream.shape)
    for packet in stream.packets(values, flags=ACK_WANTED):
        ran = twins.program.program.test_run(frame_of(packet) + b"trailer")
        assert ran.code == XDP_TX
        assert len(ran.frame) == PAYLOAD_AT + 48 + 64
    assert np.array_equal(twins.program.tables.acc, summed(stream, values, _CELLS))


def test_ping_is_answered_and_takes_nothing(twins: Twins) -> None:
    stream = _open(twins)
    counted = _counted(twins, lambda: twins.take(ping_packet(stream.head, 3)))
    assert counted == {"pings": 1, "acks_sent": 1}
    code, answer = twins.take(ping_packet(stream.head, 3))
    ack = read_ack(answer)
    assert code == XDP_TX
    assert ack is not None
    assert not ack.bits.any()
    twins.check_tables()


def test_ping_for_user_space_goes_up_as_it_came(twins: Twins) -> None:
    stream = _open(twins)
    packet = ping_packet(stream.head, 3, user_ack=True)
    assert _counted(twins, lambda: twins.take(packet)) == {"user_acks": 1}
    ran = twins.program.program.test_run(frame_of(packet))
    assert (ran.code, ran.frame) == (XDP_PASS, frame_of(packet))


def test_completion_is_told_once_and_only_with_all_streams(
    twins: Twins, generator: np.random.Generator
) -> None:
    streams = [
        twins.open_stream(number, StreamShape(25, 64, 22), places(25, 4), region=1)
        for number in range(2)
    ]
    packets = [
        packet
        for stream in streams
        for packet in stream.packets(values_of(generator, stream.shape))
    ]
    twins.program.completions.consume()
    for packet in packets[:-1]:
        twins.take(packet)
    assert twins.program.tables.regions[1]["expected"] == NOT_YET
    assert twins.program.completions.consume() == []
    twins.expect(len(packets), region=1)
    for packet in packets[:3] + packets[-1:] + packets:
        twins.take(packet)
    assert twins.program.completions.consume() == [struct.pack("<I", 1)]
    assert twins.program.tables.regions["complete"].tolist() == [0, 1]
    twins.check_tables()


def _ip(frame: bytes, **bytes_at: int) -> bytes:
    changed = bytearray(frame)
    for place, value in bytes_at.items():
        changed[14 + int(place.removeprefix("at"))] = value
    return bytes(changed)


def test_frames_of_others_pass_untouched(twins: Twins, generator: np.random.Generator) -> None:
    stream = _open(twins)
    good = frame_of(stream.packets(values_of(generator, stream.shape))[0])
    macs, size = (RECEIVER_MAC, SENDER_MAC), len(good)
    others = {
        "ARP": good[:12] + b"\x08\x06" + good[14:],
        "VLAN": good[:12] + b"\x81\x00\x00\x05" + good[12:],
        "IPv6": good[:12] + b"\x86\xdd" + good[14:],
        "version": _ip(good, at0=0x65),
        "options": _ip(good, at0=0x46),
        "first fragment": _ip(good, at6=0x20),
        "later fragment": _ip(good, at6=0, at7=1),
        "TCP": _ip(good, at9=6),
        "longer than the frame": _ip(good, at2=(size - 13) >> 8, at3=(size - 13) & 255),
        "UDP longer than IP": good[:38] + struct.pack("!H", size) + good[40:],
        "UDP shorter than itself": _ip(good, at2=0, at3=24)[:38] + b"\0\4" + good[40:],
        "port": udp_frame(macs, SENDER, (RECEIVER[0], 7412), good[PAYLOAD_AT:]),
        "port of the sender": udp_frame(macs, RECEIVER, SENDER, good[PAYLOAD_AT:]),
        "magic": udp_frame(macs, SENDER, RECEIVER, b"RTXW" + good[PAYLOAD_AT + 4 :]),
        "no payload": udp_frame(macs, SENDER, RECEIVER, b""),
        "three bytes": udp_frame(macs, SENDER, RECEIVER, b"RTX"),
        "short frame": good[:30],
    }
    for name, frame in others.items():
        before = twins.program.counters()
        ran = twins.program.program.test_run(frame)
        assert (ran.code, ran.frame) == (XDP_PASS, frame), name
        assert twins.program.counters() == {**before, "passed": before["passed"] + 1}, name
    twins.check_tables()


def test_packets_to_other_machines_pass_if_the_address_is_told() -> None:
    require_bpf()
    sizes = TableSizes(cells=1, seen_blocks=1, slots=1, streams=1, regions=1)
    program = AggregateProgram(RECEIVER[1], sizes, address=RECEIVER[0])
    nothing = b"RTXV" + bytes(100)
    ours = program.program.test_run(frame_of(nothing))
    other = udp_frame((RECEIVER_MAC, SENDER_MAC), SENDER, ("192.0.2.3", RECEIVER[1]), nothing)
    assert (ours.code, program.program.test_run(other).code) == (XDP_DROP, XDP_PASS)
    counted = program.counters()
    assert (counted["malformed"], counted["passed"]) == (1, 1)
    program.close()


def test_answers_of_others_go_up_to_our_own_sender(twins: Twins) -> None:
    stream = _open(twins)
    ack = ack_packet(stream.head, 0, 0, np.zeros(8, dtype=np.uint64))
    assert twins.take(ack) == (XDP_PASS, b"")


def test_packets_of_long_frames_are_taken_where_they_are_allowed(
    generator: np.random.Generator,
) -> None:
    require_bpf()
    shape = StreamShape(200, 64, 53)
    with Twins(cells=_CELLS, max_cells=53) as twins:
        stream = twins.open_stream(1, shape, places(200, 4))
        values = values_of(generator, shape)
        for packet in stream.packets(values, flags=ACK_WANTED):
            assert twins.take(packet)[0] == XDP_TX
        twins.check_tables()
        assert np.array_equal(twins.program.tables.acc, summed(stream, values, _CELLS))


def test_packets_longer_than_a_frame_are_refused_when_loading() -> None:
    require_bpf()
    sizes = TableSizes(cells=1, seen_blocks=1, slots=1, streams=1, regions=1)
    with pytest.raises(ChannelUnavailable, match="packets of 54 cells, expected 1 to 53"):
        AggregateProgram(7411, sizes, max_cells=54)
    with pytest.raises(ChannelUnavailable, match="acc"):
        AggregateProgram(7411, replace(sizes, cells=0))
