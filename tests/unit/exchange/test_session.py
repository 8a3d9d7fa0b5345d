from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retexo_fl.errors import LocalProtocolError, PartitionError, RemoteProtocolError
from retexo_fl.exchange import (
    HEADER_BYTES,
    NEED_DATA,
    BlockAborted,
    BlockDone,
    BlockHeader,
    BlockTraffic,
    HelloReceived,
    ReceivingSession,
    RowsReceived,
    SendingSession,
    State,
    Vectors,
    assemble,
    encode_block,
)
from retexo_fl.exchange.frames import FrameHeader, encode_frame
from retexo_fl.exchange.states import FrameKind
from tests.unit.exchange.blocks import any_vectors, assert_same_bits, cut, header_of, read_all
from tests.unit.exchange.test_block import EDGE_FIELDS, OTHER

LIMIT = 256
DENSE = np.arange(1, 101, dtype=np.float32).reshape(10, 10)
BLOCK = header_of(DENSE)
HELLO, FIRST, SECOND, DONE = encode_block(BLOCK, DENSE, max_frame_bytes=LIMIT).frames


def _session(expected: BlockHeader = BLOCK) -> ReceivingSession:
    return ReceivingSession(expected, max_frame_bytes=LIMIT)


def _frame(
    kind: FrameKind, payload: bytes = b"", *, block: BlockHeader = BLOCK, **said: int
) -> bytes:
    """Return a frame with a valid checksum that says what the test wants."""
    values = {"sequence": 0, "payload_bytes": len(payload), **said}
    return encode_frame(FrameHeader(kind=kind, **values), payload, block_seed=block.seed())


@given(any_vectors(), st.lists(st.integers(0, 20_000), max_size=20))
def test_receiving_session_gives_the_block_however_the_stream_is_cut(
    vectors: Vectors, places: list[int]
) -> None:
    limit = max(LIMIT, vectors.shape[1] * 8)
    header = header_of(vectors)
    sent = encode_block(header, vectors, max_frame_bytes=limit)
    session = ReceivingSession(header, max_frame_bytes=limit)
    events = read_all(session, [*cut(b"".join(sent.frames), places), b""])
    assert events[0] == HelloReceived(header=header)
    assert events[-1] == BlockDone(num_vectors=header.num_vectors)
    rows = [event for event in events if isinstance(event, RowsReceived)]
    assert len(rows) == len(events) - 2
    assert_same_bits(assemble(header, rows), vectors)
    assert session.state is State.CLOSED
    assert session.traffic == sent.traffic
    assert session.rows_received == header.num_vectors
    assert session.next_sequence == len(sent.frames)


def test_receiving_session_reads_byte_by_byte_and_keeps_one_frame() -> None:
    session = _session()
    events = []
    for byte in b"".join((HELLO, FIRST, SECOND, DONE)):
        events += read_all(session, [bytes([byte])])
        assert session.buffered_bytes <= LIMIT + HEADER_BYTES
    assert [type(event) for event in events] == [
        HelloReceived,
        RowsReceived,
        RowsReceived,
        BlockDone,
    ]
    assert [event.first for event in events if isinstance(event, RowsReceived)] == [0, 6]


def test_receiving_session_counts_what_it_accepted() -> None:
    session = _session()
    read_all(session, [HELLO, FIRST, SECOND[:50]])
    assert session.traffic == BlockTraffic(
        raw_bytes=240, payload_bytes=240, control_bytes=95, wire_bytes=len(HELLO) + len(FIRST)
    )
    assert session.buffered_bytes == 50


@pytest.mark.parametrize("lost_after", range(0, 591, 13))
def test_receiving_session_resumes_at_the_first_missing_frame(lost_after: int) -> None:
    stream = b"".join((HELLO, FIRST, SECOND, DONE))
    assert len(stream) == 591
    receiver, sender = _session(), SendingSession(BLOCK, DENSE, max_frame_bytes=LIMIT)
    events = read_all(receiver, [stream[:lost_after]] if lost_after else [])
    sender.resume(receiver.resume())
    assert receiver.buffered_bytes == 0
    rest = [sender.next_frame() for _ in range(sender.next_sequence, sender.num_frames)]
    assert stream[receiver.traffic.wire_bytes :] == b"".join(rest)
    events += read_all(receiver, [*rest, b""])
    rows = [event for event in events if isinstance(event, RowsReceived)]
    assert_same_bits(assemble(BLOCK, rows), DENSE)
    assert receiver.state is State.CLOSED


@pytest.mark.parametrize("place", range(591))
def test_receiving_session_refuses_any_altered_byte(place: int) -> None:
    stream = bytearray(b"".join((HELLO, FIRST, SECOND, DONE)))
    stream[place] ^= 0x20
    session = _session()
    with pytest.raises(RemoteProtocolError):
        read_all(session, [bytes(stream), b""])
    assert session.state is State.ERROR
    assert session.buffered_bytes == 0


@settings(max_examples=300)
@given(
    st.lists(st.sampled_from((HELLO, FIRST, SECOND, DONE)), max_size=6),
    st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=3),
    st.integers(0, 3000),
    st.lists(st.integers(0, 3000), max_size=8),
)
def test_receiving_session_reads_whole_blocks_only_and_raises_nothing_else(
    frames: list[bytes], altered: list[tuple[int, int]], length: int, places: list[int]
) -> None:
    stream = bytearray(b"".join(frames)[:length])
    for place, value in altered:
        if place < len(stream):
            stream[place] = value
    session = _session()
    try:
        read_all(session, [*cut(bytes(stream), places), b""])
    except RemoteProtocolError:
        assert session.state is State.ERROR
    else:
        assert bytes(stream) == HELLO + FIRST + SECOND + DONE
    assert session.buffered_bytes <= LIMIT + HEADER_BYTES


@settings(max_examples=300)
@given(
    kind=st.sampled_from(FrameKind),
    positions=st.integers(0, 4),
    values=st.integers(0, 3),
    num_rows=st.integers(0, 12),
    payload=st.binary(max_size=300),
)
def test_receiving_session_survives_any_frame_with_a_valid_checksum(
    kind: FrameKind, positions: int, values: int, num_rows: int, payload: bytes
) -> None:
    frame = _frame(kind, payload, sequence=1, positions=positions, values=values, num_rows=num_rows)
    session = _session()
    read_all(session, [HELLO])
    try:
        events = read_all(session, [frame])
    except RemoteProtocolError:
        return
    assert isinstance(events[0], RowsReceived | BlockAborted)


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ([b""], "frame 0: CLOSE in state HELLO, expected HELLO or ABORT"),
        ([FIRST], "frame 0: ROWS in state HELLO, expected HELLO or ABORT"),
        ([HELLO, HELLO], "frame 1: HELLO in state ROWS, expected ROWS or DONE or ABORT"),
        ([HELLO, FIRST, FIRST], "frame 2: sequence is 1, expected 2"),
        ([HELLO, SECOND], "frame 1: sequence is 2, expected 1"),
        ([HELLO, FIRST, b""], "frame 2: CLOSE in state ROWS"),
        ([HELLO, FIRST[:-1], b""], "frame 1: the stream ends inside a frame"),
        ([HELLO, FIRST[:5], b""], "frame 1: the stream ends inside a frame"),
        ([HELLO, FIRST, SECOND, DONE, DONE], "DONE in state DONE, expected CLOSE"),
        ([HELLO, FIRST, SECOND, DONE, b"x", b""], "the stream ends inside a frame"),
        ([HELLO, FIRST, SECOND, DONE, b"x" * 24], "not a frame"),
        ([HELLO + FIRST[:-1] + b"\x00"], "checksum differs"),
        (
            [HELLO, _frame(FrameKind.ROWS, FIRST[24:], sequence=1)],
            "num_rows is 0, expected 1 to 10",
        ),
    ],
)
def test_receiving_session_names_what_broke(pieces: list[bytes], message: str) -> None:
    session = _session()
    with pytest.raises(RemoteProtocolError, match=message) as caught:
        read_all(session, pieces)
    assert str(caught.value).startswith("block of layer 2 from client 3 to 4, frame ")


@pytest.mark.parametrize(
    ("before", "frame", "message"),
    [
        ([], _frame(FrameKind.HELLO, b"x" * 90), "payload_bytes is 90, expected 91 to 154"),
        ([], _frame(FrameKind.HELLO, b"x" * 155), "payload_bytes is 155"),
        ([], _frame(FrameKind.HELLO, b"x" * 94, num_rows=1), "num_rows is 1, expected 0"),
        ([], _frame(FrameKind.HELLO, b"x" * 94, positions=1), "positions is 1, expected 0"),
        ([], _frame(FrameKind.HELLO, b"x" * 94, values=1), "values is 1, expected 0"),
        ([], _frame(FrameKind.ABORT, b""), "payload_bytes is 0, expected 1 to 200"),
        ([], _frame(FrameKind.ABORT, b"\xff"), "the reason of ABORT is not UTF-8"),
        ([], _frame(FrameKind.ABORT, b"a\nb"), "the reason of ABORT is not one printable line"),
        ([], _frame(FrameKind.ABORT, b"a", block=replace(BLOCK, layer=1)), "checksum differs"),
        (
            [HELLO],
            _frame(FrameKind.ROWS, sequence=1, num_rows=11, payload_bytes=1, values=2),
            "num_rows is 11, expected 1 to 10",
        ),
        (
            [HELLO],
            _frame(FrameKind.ROWS, sequence=1, num_rows=10, payload_bytes=257, values=2),
            "payload_bytes is 257, expected 1 to 256",
        ),
        (
            [HELLO],
            _frame(FrameKind.ROWS, sequence=1, num_rows=1, payload_bytes=41, values=2),
            "payload_bytes is 41, expected 1 to 40",
        ),
        (
            [HELLO],
            _frame(FrameKind.ROWS, sequence=1, num_rows=1, payload_bytes=1, positions=9),
            "coding 9/0 is unknown",
        ),
        (
            [HELLO],
            _frame(FrameKind.DONE, sequence=1, num_rows=10),
            "rows before DONE is 0, expected 10",
        ),
        (
            [HELLO, FIRST, SECOND],
            _frame(FrameKind.DONE, sequence=3, num_rows=9),
            "num_rows is 9, expected 10",
        ),
        (
            [HELLO, FIRST, SECOND],
            _frame(FrameKind.DONE, b"x", sequence=3, num_rows=10),
            "payload_bytes is 1, expected 0",
        ),
        (
            [HELLO, FIRST, SECOND],
            _frame(FrameKind.ROWS, sequence=3, num_rows=1, payload_bytes=1, values=2),
            "ROWS after the last vector, expected DONE",
        ),
    ],
)
def test_receiving_session_refuses_a_frame_by_its_header(
    before: list[bytes], frame: bytes, message: str
) -> None:
    session = _session()
    read_all(session, before)
    with pytest.raises(RemoteProtocolError, match=message):
        read_all(session, [frame])


@pytest.mark.parametrize("name", sorted(set(OTHER) - EDGE_FIELDS))
def test_receiving_session_names_the_hello_field_that_differs(name: str) -> None:
    other = replace(BLOCK, **{name: OTHER[name]})
    hello = _frame(FrameKind.HELLO, other.hello_payload(), block=other)
    session = _session()
    with pytest.raises(RemoteProtocolError, match=f"frame 0: HELLO: {name} is "):
        read_all(session, [hello])


@pytest.mark.parametrize("name", sorted(EDGE_FIELDS))
def test_receiving_session_ends_when_the_ends_list_other_edges(name: str) -> None:
    other = replace(BLOCK, **{name: OTHER[name]})
    session = _session()
    session.receive_data(_frame(FrameKind.HELLO, other.hello_payload(), block=other))
    for _ in range(2):
        with pytest.raises(PartitionError, match=r"^client 3 .* client 4"):
            session.next_event()
        assert (session.state, session.buffered_bytes) == (State.ERROR, 0)
    with pytest.raises(LocalProtocolError, match="in state ERROR has ended"):
        session.resume()


@pytest.mark.parametrize("name", ["job", "layer", "weights_digest", "num_edges", "plan_digest"])
def test_receiving_session_refuses_a_frame_of_another_block(name: str) -> None:
    other = replace(BLOCK, **{name: OTHER[name]})
    foreign = encode_block(other, DENSE, max_frame_bytes=LIMIT).frames[1]
    session = _session()
    with pytest.raises(RemoteProtocolError, match="altered, or is of another block"):
        read_all(session, [HELLO, foreign])


def test_receiving_session_refuses_an_oversized_frame_before_its_payload() -> None:
    vectors = np.full((1, 2**20), 0.5, dtype=np.float32)
    vectors[0, 0] = 0.25
    header = header_of(vectors)
    frames = encode_block(header, vectors, max_frame_bytes=2**23).frames
    session = ReceivingSession(header)
    read_all(session, [frames[0]])
    with pytest.raises(RemoteProtocolError, match="payload_bytes is 4194304, expected 1 to"):
        read_all(session, [frames[1][:HEADER_BYTES]])


def test_receiving_session_memory_does_not_grow_with_the_stream() -> None:
    vectors = np.random.default_rng(0).standard_normal((3000, 64))
    header = header_of(vectors)
    limit = 2**14
    stream = b"".join(encode_block(header, vectors, max_frame_bytes=limit).frames)
    session = ReceivingSession(header, max_frame_bytes=limit)
    tracemalloc.start()
    session.receive_data(stream)
    while session.next_event() is not NEED_DATA:
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert session.state is State.DONE
    assert len(stream) > 80 * limit
    assert peak < 16 * limit


def test_receiving_session_stays_in_error() -> None:
    session = _session()
    session.receive_data(HELLO + b"x" * 24 + FIRST)
    assert isinstance(session.next_event(), HelloReceived)
    with pytest.raises(RemoteProtocolError) as first:
        session.next_event()
    session.receive_data(FIRST)
    with pytest.raises(RemoteProtocolError) as second:
        session.next_event()
    assert str(first.value) == str(second.value)
    assert session.next_sequence == 1
    with pytest.raises(LocalProtocolError, match="state ERROR has ended and cannot resume"):
        session.resume()


def test_receiving_session_reports_an_abort() -> None:
    sender = SendingSession(BLOCK, DENSE, max_frame_bytes=LIMIT)
    session = _session()
    stream = [sender.next_frame(), sender.next_frame(), sender.abort("disk is full")]
    events = read_all(session, [*stream, b""])
    assert events[-1] == BlockAborted(reason="disk is full")
    assert session.state is State.CLOSED
    assert session.traffic == sender.traffic


def test_receiving_session_accepts_an_abort_before_hello() -> None:
    abort = SendingSession(BLOCK, DENSE).abort("no")
    assert read_all(_session(), [abort]) == [BlockAborted(reason="no")]


def _give_twice(session: ReceivingSession) -> None:
    session.receive_data(HELLO)
    session.receive_data(FIRST)


def _give_after_close(session: ReceivingSession) -> None:
    session.receive_data(b"")
    session.receive_data(b"")


def _resume_after_close(session: ReceivingSession) -> None:
    session.receive_data(b"")
    session.resume()


@pytest.mark.parametrize("misuse", [_give_twice, _give_after_close, _resume_after_close])
def test_receiving_session_refuses_misuse(misuse: Callable[[ReceivingSession], None]) -> None:
    with pytest.raises(LocalProtocolError):
        misuse(_session())


def test_receiving_session_takes_the_close_before_the_rest_is_read() -> None:
    session = _session()
    session.receive_data(memoryview(HELLO + FIRST + SECOND + DONE))
    session.receive_data(b"")
    for expected in (HelloReceived, RowsReceived, RowsReceived, BlockDone):
        assert isinstance(session.next_event(), expected)
    states = [session.state]
    assert [session.next_event() for _ in range(2)] == [NEED_DATA, NEED_DATA]
    states.append(session.state)
    assert states == [State.DONE, State.CLOSED]


def test_receiving_session_refuses_a_limit_out_of_range() -> None:
    with pytest.raises(LocalProtocolError, match="max_frame_bytes: 1 "):
        ReceivingSession(BLOCK, max_frame_bytes=1)
