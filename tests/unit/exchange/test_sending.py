from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from retexo_fl.errors import LocalProtocolError
from retexo_fl.exchange import HEADER_BYTES, BlockTraffic, SendingSession, State, Vectors, to_csr
from retexo_fl.exchange.codecs import row_costs
from retexo_fl.exchange.frames import FrameHeader
from retexo_fl.exchange.sending import split_dense_rows, split_rows
from retexo_fl.exchange.states import FrameKind
from tests.unit.exchange.blocks import any_vectors, header_of

DENSE = np.arange(1, 101, dtype=np.float32).reshape(10, 10)  # 40 bytes per row


def _session(vectors: Vectors = DENSE, limit: int = 256) -> SendingSession:
    return SendingSession(header_of(vectors), vectors, max_frame_bytes=limit)


def test_sending_session_goes_from_hello_to_done() -> None:
    session = _session()
    frames, states = [], [session.state]
    while session.state is not State.DONE:
        frames.append(session.next_frame())
        states.append(session.state)
    headers = [FrameHeader.parse(frame[:HEADER_BYTES]) for frame in frames]
    rows = FrameKind.ROWS
    assert [header.kind for header in headers] == [FrameKind.HELLO, rows, rows, FrameKind.DONE]
    assert [header.sequence for header in headers] == [0, 1, 2, 3]
    assert [header.num_rows for header in headers] == [0, 6, 4, 10]
    assert states == [State.HELLO, State.ROWS, State.ROWS, State.ROWS, State.DONE]
    assert session.num_frames == session.next_sequence == 4
    assert session.traffic == BlockTraffic(
        raw_bytes=400, payload_bytes=400, control_bytes=95, wire_bytes=400 + 95 + 4 * 24
    )
    with pytest.raises(LocalProtocolError, match="DONE cannot be sent in state DONE"):
        session.next_frame()


@given(any_vectors())
def test_sending_session_makes_the_same_frames_from_any_frame_on(vectors: Vectors) -> None:
    limit = max(256, vectors.shape[1] * 8)
    first = _session(vectors, limit)
    frames = [first.next_frame() for _ in range(first.num_frames)]
    for start in range(first.num_frames + 1):
        again = _session(vectors, limit)
        again.resume(start)
        assert [again.next_frame() for _ in range(start, again.num_frames)] == frames[start:]
        assert again.state is State.DONE
        assert again.traffic.wire_bytes == sum(map(len, frames[start:]))


@given(any_vectors())
def test_sending_session_makes_the_same_frames_of_dense_and_csr(vectors: Vectors) -> None:
    limit = max(256, vectors.shape[1] * 8)
    given_form, as_csr = _session(vectors, limit), _session(to_csr(vectors), limit)
    assert given_form.num_frames == as_csr.num_frames
    for _ in range(as_csr.num_frames):
        frame = given_form.next_frame()
        assert len(frame) <= HEADER_BYTES + limit
        assert frame == as_csr.next_frame()


@pytest.mark.parametrize("sequence", [-1, 5])
def test_sending_session_cannot_resume_where_it_has_no_frame(sequence: int) -> None:
    with pytest.raises(LocalProtocolError, match=f"of 4 frames cannot resume at {sequence}"):
        _session().resume(sequence)


def test_sending_session_counts_frames_sent_again() -> None:
    session = _session()
    sizes = [len(session.next_frame()) for _ in range(4)]
    session.resume(2)
    session.next_frame()
    assert session.traffic.wire_bytes == sum(sizes) + sizes[2]


@pytest.mark.parametrize(
    ("sequence", "state"),
    [(0, State.HELLO), (1, State.ROWS), (3, State.ROWS), (4, State.DONE)],
)
def test_sending_session_resumes_in_the_state_of_the_frame(sequence: int, state: State) -> None:
    session = _session()
    session.next_frame()
    session.resume(sequence)
    assert session.state is state
    assert session.next_sequence == sequence


def test_sending_session_aborts_once() -> None:
    session = _session()
    session.next_frame()
    frame = session.abort("disk is full")
    assert frame[HEADER_BYTES:] == b"disk is full"
    assert FrameHeader.parse(frame[:HEADER_BYTES]).kind is FrameKind.ABORT
    assert session.state is State.ABORTED
    for call in (session.next_frame, lambda: session.abort("again"), lambda: session.resume(0)):
        with pytest.raises(LocalProtocolError, match="ABORTED"):
            call()


@pytest.mark.parametrize("reason", ["", "two\nlines", "ä" * 101, "\ud800"])
def test_sending_session_refuses_a_reason_that_is_not_a_line(reason: str) -> None:
    session = _session()
    with pytest.raises(LocalProtocolError, match=r"reason: .* is not a line"):
        session.abort(reason)
    assert session.state is State.HELLO


@pytest.mark.parametrize("limit", [255, 2**28 + 1])
def test_sending_session_refuses_a_limit_out_of_range(limit: int) -> None:
    with pytest.raises(LocalProtocolError, match=f"max_frame_bytes: {limit}"):
        _session(limit=limit)


def test_sending_session_names_the_limit_that_a_row_needs() -> None:
    vectors = np.zeros((3, 100), dtype=np.float64)
    vectors[2] = 1.5  # 800 bytes dense, 1 + 100 * (2 + 8) sparse
    with pytest.raises(
        LocalProtocolError, match=r"max_frame_bytes: 256 is too small for vector 2, .* least 800"
    ):
        _session(vectors)
    assert _session(vectors, 800).num_frames == 4


def test_sending_session_carries_100000_float64_by_default() -> None:
    vectors = np.full((2, 100_000), 0.1)
    vectors[:, 0] = 0.2
    session = SendingSession(header_of(vectors), vectors)
    assert session.num_frames == 4


def test_split_rows_takes_as_many_as_fit_in_either_form() -> None:
    # Dense: 40 bytes a row, 6 fit 256. Sparse: 1 byte for an empty row, 61 for a full one.
    counts = np.array([10] * 7 + [0] * 300)
    bounds = split_rows(counts, width=10, itemsize=4, max_frame_bytes=256)
    assert row_costs(counts[:8], width=10, itemsize=4).tolist() == [61] * 7 + [1]
    assert bounds == [0, 6, 6 + 1 + (256 - 61), 307]


def test_split_rows_of_nothing_has_no_frame() -> None:
    assert split_rows(np.zeros(0, dtype=int), width=1, itemsize=4, max_frame_bytes=256) == [0]


def test_split_dense_rows_takes_as_many_as_fit_as_an_array() -> None:
    assert split_dense_rows(13, row_bytes=40, max_frame_bytes=256) == [0, 6, 12, 13]
    assert split_dense_rows(12, row_bytes=40, max_frame_bytes=256) == [0, 6, 12]
    assert split_dense_rows(0, row_bytes=400, max_frame_bytes=256) == [0]


def test_dense_codec_names_the_limit_that_a_row_needs() -> None:
    # As sparse rows they would take 3 bytes.
    vectors = np.zeros((3, 100), dtype=np.float32)
    with pytest.raises(LocalProtocolError, match="too small for vector 0, expected at least 400"):
        SendingSession(header_of(vectors), vectors, codec="dense", max_frame_bytes=256)
