"""A block becomes frames and is the same again; frames come in order, or are refused."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from retexo_fl.errors import LocalProtocolError, PartitionError, RemoteProtocolError
from retexo_fl.exchange import (
    HEADER_BYTES,
    BlockHeader,
    BlockProgress,
    BlockTraffic,
    Vectors,
    check_frame,
    decode_block,
    encode_block,
    to_csr,
    to_dense,
)
from retexo_fl.exchange.block_frames import (
    NOTHING,
    EncodedBlock,
    sound_prefix,
    split_dense_rows,
    split_rows,
)
from retexo_fl.exchange.frames import FrameHeader, FrameKind, encode_frame, parse_frame
from retexo_fl.exchange.row_coding import row_costs
from tests.unit.exchange.blocks import any_vectors, assert_same_bits, header_of
from tests.unit.exchange.test_block import EDGE_FIELDS, OTHER

DENSE = np.arange(1, 101, dtype=np.float32).reshape(10, 10)
BLOCK = header_of(DENSE)
FRAMES = encode_block(BLOCK, DENSE, max_frame_bytes=256).frames
HELLO, FIRST, SECOND, DONE = FRAMES
STREAM = b"".join(FRAMES)


def _after(
    frames: Sequence[bytes], *, expected: BlockHeader | None = BLOCK, block: BlockHeader = BLOCK
) -> BlockProgress:
    progress = NOTHING
    for frame in frames:
        progress = check_frame(frame, progress, block.key, expected)
    return progress


def _frame(
    kind: FrameKind, payload: bytes = b"", *, block: BlockHeader = BLOCK, **said: int
) -> bytes:
    """Return a frame with a valid checksum that says what the test wants."""
    fields = {"sequence": 0, "payload_bytes": len(payload), **said}
    return encode_frame(FrameHeader(kind=kind, **fields), payload, block_seed=block.seed())


def _rows(num_bytes: int, *, sequence: int, **said: int) -> bytes:
    return _frame(FrameKind.ROWS, bytes(num_bytes), block=BLOCK, sequence=sequence, **said)


@pytest.mark.parametrize("expected", [BLOCK, None], ids=["known", "unknown"])
def test_a_whole_block_passes_and_is_counted(expected: BlockHeader | None) -> None:
    traffic = encode_block(BLOCK, DENSE, max_frame_bytes=256).traffic
    for num_frames, num_rows in enumerate((0, 0, 6, 10)):
        progress = _after(FRAMES[:num_frames], expected=expected)
        assert (progress.num_frames, progress.num_rows) == (num_frames, num_rows)
        assert not progress.is_whole
        assert progress.traffic.wire_bytes == sum(map(len, FRAMES[:num_frames]))
    whole = _after(FRAMES, expected=expected)
    assert whole.is_whole
    assert (whole.num_frames, whole.num_rows) == (4, 10)
    assert (whole.block, whole.traffic) == (BLOCK, traffic)


def test_any_altered_byte_is_refused() -> None:
    sizes = np.cumsum([0, *map(len, FRAMES)])
    for place in range(len(STREAM)):
        altered = bytearray(STREAM)
        altered[place] ^= 0x20
        pieces = [bytes(altered[a:b]) for a, b in pairwise(sizes)]
        with pytest.raises(RemoteProtocolError):
            _after(pieces)
        sound = sound_prefix(BLOCK.key, bytes(altered))
        before = FRAMES[: int(np.searchsorted(sizes, place, side="right")) - 1]
        assert sound == _after(before), place


@pytest.mark.parametrize("length", range(0, len(STREAM), 13))
def test_sound_prefix_is_the_whole_frames_of_a_cut_stream(length: int) -> None:
    sizes = np.cumsum([0, *map(len, FRAMES)])
    num_frames = int(np.searchsorted(sizes, length, side="right")) - 1
    assert sound_prefix(BLOCK.key, STREAM[:length]) == _after(FRAMES[:num_frames])


@settings(max_examples=300)
@given(st.lists(st.sampled_from(FRAMES), max_size=6))
def test_only_the_frames_in_their_order_pass(frames: list[bytes]) -> None:
    try:
        progress = _after(frames)
    except RemoteProtocolError:
        assert tuple(frames) != FRAMES[: len(frames)]
    else:
        assert tuple(frames) == FRAMES[: len(frames)]
        assert progress.is_whole == (len(frames) == len(FRAMES))


@settings(max_examples=300)
@given(
    kind=st.sampled_from(FrameKind),
    positions=st.integers(0, 4),
    values=st.integers(0, 3),
    num_rows=st.integers(0, 12),
    payload=st.binary(max_size=300),
)
def test_a_frame_with_a_valid_checksum_is_rows_or_refused(
    kind: FrameKind, positions: int, values: int, num_rows: int, payload: bytes
) -> None:
    frame = _frame(kind, payload, sequence=1, positions=positions, values=values, num_rows=num_rows)
    try:
        progress = _after([HELLO, frame])
    except RemoteProtocolError:
        return
    assert kind is FrameKind.ROWS
    assert progress.num_rows == num_rows > 0


@pytest.mark.parametrize(
    ("before", "frame", "message"),
    [
        ([], FIRST, "frame 0: checksum differs"),
        ([], _frame(FrameKind.DONE, block=BLOCK), "frame 0: checksum differs"),
        ([HELLO], HELLO, "frame 1: sequence is 0, expected 1"),
        ([HELLO], _frame(FrameKind.HELLO, b"x" * 94, sequence=1), "frame 1: HELLO as frame 1"),
        ([HELLO, FIRST], FIRST, "frame 2: sequence is 1, expected 2"),
        ([HELLO], SECOND, "frame 1: sequence is 2, expected 1"),
        (FRAMES, _frame(FrameKind.DONE, sequence=4, num_rows=10), "frame 4: DONE after DONE"),
        ([HELLO], FIRST[:-1], r"frame 1: a frame has 263 bytes, expected 264"),
        ([HELLO], FIRST[:5], r"frame 1: a frame has 5 bytes, expected 24 or more"),
        ([HELLO], b"x" * 24, "frame 1: not a frame"),
        ([HELLO], FIRST[:-1] + b"\x00", "frame 1: checksum differs"),
        ([], _frame(FrameKind.HELLO, b"x" * 90), "HELLO: 90 bytes, expected 91 to 154"),
        ([], _frame(FrameKind.HELLO, b"x" * 155), "HELLO: 155 bytes, expected"),
        ([], _frame(FrameKind.HELLO, b"x" * 94, num_rows=1), "num_rows is 1, expected 0"),
        ([], _frame(FrameKind.HELLO, b"x" * 94, positions=1), "positions is 1, expected 0"),
        ([], _frame(FrameKind.HELLO, b"x" * 94, values=1), "values is 1, expected 0"),
        ([HELLO], _rows(1, sequence=1, values=2), "num_rows is 0, expected 1 to 10"),
        ([HELLO], _rows(1, sequence=1, num_rows=11, values=2), "num_rows is 11, expected 1 to 10"),
        ([HELLO], _rows(41, sequence=1, num_rows=1, values=2), "payload_bytes is 41, .* 1 to 40"),
        ([HELLO], _rows(0, sequence=1, num_rows=1, values=2), "payload_bytes is 0, .* 1 to 40"),
        ([HELLO], _rows(1, sequence=1, num_rows=1, positions=9), "coding 9/0 is unknown"),
        ([HELLO], _frame(FrameKind.DONE, sequence=1, num_rows=10), "rows before DONE is 0, .* 10"),
        (
            FRAMES[:3],
            _frame(FrameKind.DONE, sequence=3, num_rows=9),
            "num_rows is 9, expected 10",
        ),
        (
            FRAMES[:3],
            _frame(FrameKind.DONE, b"x", sequence=3, num_rows=10),
            "payload_bytes is 1, expected 0",
        ),
        (
            FRAMES[:3],
            _frame(FrameKind.DONE, sequence=3, num_rows=10, values=1),
            "values is 1, expected 0",
        ),
        (
            FRAMES[:3],
            _rows(1, sequence=3, num_rows=1, values=2),
            "ROWS after the last vector, expected DONE",
        ),
    ],
)
def test_what_cannot_come_next_is_refused_with_its_place(
    before: Sequence[bytes], frame: bytes, message: str
) -> None:
    for expected in (BLOCK, None):
        with pytest.raises(RemoteProtocolError, match=message) as caught:
            _after([*before, frame], expected=expected)
        assert str(caught.value).startswith("block of layer 2 from client 3 to 4, frame ")


@pytest.mark.parametrize("name", sorted(set(OTHER) - EDGE_FIELDS))
def test_the_hello_field_that_differs_is_named(name: str) -> None:
    other = replace(BLOCK, **{name: OTHER[name]})
    hello = _frame(FrameKind.HELLO, other.hello_payload(), block=other)
    with pytest.raises(RemoteProtocolError, match=f"frame 0: HELLO: {name} is "):
        _after([hello])


@pytest.mark.parametrize("name", ["job", "layer", "weights_digest", "sender", "receiver"])
def test_hello_of_another_key_is_refused_where_no_more_is_known(name: str) -> None:
    other = replace(BLOCK, **{name: OTHER[name]})
    hello = _frame(FrameKind.HELLO, other.hello_payload(), block=other)
    with pytest.raises(RemoteProtocolError, match=f"HELLO: {name} is not that of the block's key"):
        _after([hello], expected=None)


@pytest.mark.parametrize("name", sorted(EDGE_FIELDS))
def test_other_edges_are_an_error_of_the_parts(name: str) -> None:
    other = replace(BLOCK, **{name: OTHER[name]})
    hello = _frame(FrameKind.HELLO, other.hello_payload(), block=other)
    with pytest.raises(PartitionError, match=r"^client 3 .* client 4"):
        _after([hello])
    assert _after([hello], expected=None).block == other


@pytest.mark.parametrize("name", ["job", "layer", "weights_digest", "num_edges", "plan_digest"])
def test_a_frame_of_another_block_does_not_fit_in(name: str) -> None:
    other = replace(BLOCK, **{name: OTHER[name]})
    foreign = encode_block(other, DENSE, max_frame_bytes=256).frames[1]
    with pytest.raises(RemoteProtocolError, match="altered, or is of another block"):
        _after([HELLO, foreign])


def _encoded(vectors: Vectors = DENSE, limit: int = 256) -> EncodedBlock:
    return encode_block(header_of(vectors), vectors, max_frame_bytes=limit)


def test_block_goes_from_hello_to_done() -> None:
    block = _encoded()
    headers = [parse_frame(frame).header for frame in block.frames]
    rows = FrameKind.ROWS
    assert [header.kind for header in headers] == [FrameKind.HELLO, rows, rows, FrameKind.DONE]
    assert [header.sequence for header in headers] == [0, 1, 2, 3]
    assert [header.num_rows for header in headers] == [0, 6, 4, 10]
    assert block.traffic == BlockTraffic(
        raw_bytes=400, payload_bytes=400, control_bytes=95, wire_bytes=400 + 95 + 4 * 24
    )


@given(any_vectors())
def test_block_traffic_is_the_sum_of_its_frames(vectors: Vectors) -> None:
    header = header_of(vectors)
    block = _encoded(vectors, max(256, vectors.shape[1] * 8))
    traffic = block.traffic
    assert traffic.raw_bytes == header.raw_bytes
    assert traffic.wire_bytes == sum(map(len, block.frames))
    assert traffic.control_bytes == len(header.hello_payload())
    assert traffic.payload_bytes == sum(len(frame) - 24 for frame in block.frames[1:-1])
    assert traffic.payload_bytes <= traffic.raw_bytes


@given(any_vectors())
def test_dense_and_csr_make_the_same_frames(vectors: Vectors) -> None:
    limit = max(256, vectors.shape[1] * 8)
    block = _encoded(vectors, limit)
    assert block == _encoded(to_csr(vectors), limit)
    assert all(len(frame) <= HEADER_BYTES + limit for frame in block.frames)


@pytest.mark.parametrize("limit", [255, 2**28 + 1])
def test_a_limit_out_of_range_is_refused(limit: int) -> None:
    with pytest.raises(LocalProtocolError, match=f"max_frame_bytes: {limit}"):
        _encoded(limit=limit)


def test_the_limit_that_a_row_needs_is_named() -> None:
    vectors = np.zeros((3, 100), dtype=np.float64)
    vectors[2] = 1.5  # 800 bytes dense, 1 + 100 * (2 + 8) sparse
    with pytest.raises(
        LocalProtocolError, match=r"max_frame_bytes: 256 is too small for vector 2, .* least 800"
    ):
        _encoded(vectors)
    assert len(_encoded(vectors, 800).frames) == 4
    sparse = np.zeros((2, 1000), dtype=np.float64)
    sparse[0, :3], sparse[1, :60] = 1.5, 1.5  # 1 + 60 * (2 + 8) sparse, 8000 dense
    with pytest.raises(LocalProtocolError, match="too small for vector 1, expected at least 601"):
        _encoded(sparse)


def test_a_row_of_100000_float64_fits_by_default() -> None:
    vectors = np.full((2, 100_000), 0.1)
    vectors[:, 0] = 0.2
    assert len(encode_block(header_of(vectors), vectors).frames) == 4


def test_unknown_codec_is_refused_by_name() -> None:
    vectors = np.eye(3, dtype=np.float32)
    with pytest.raises(LocalProtocolError, match="codec is 'zip', expected one of lossless, dense"):
        encode_block(header_of(vectors), vectors, codec="zip")


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
        encode_block(header_of(vectors), vectors, codec="dense", max_frame_bytes=256)


def _decoded(header: BlockHeader, vectors: Vectors, limit: int, codec: str = "lossless") -> Vectors:
    block = encode_block(header, vectors, codec=codec, max_frame_bytes=limit)
    decoded = decode_block(header, b"".join(block.frames), max_frame_bytes=limit)
    assert decoded is not None
    assert decoded[1] == block.traffic
    return decoded[0]


@given(any_vectors())
def test_form_of_a_decoded_block_depends_on_its_values_only(vectors: Vectors) -> None:
    header = header_of(vectors)
    forms: set[type] = set()
    for limit in (max(256, vectors.shape[1] * 8), 2**20):
        for codec in ("lossless", "dense"):
            block = _decoded(header, vectors, limit, codec)
            assert_same_bits(block, vectors)
            forms.add(type(block))
    is_sparse = to_csr(vectors).nnz * 4 < header.num_vectors * header.width
    assert forms == {sp.csr_array if is_sparse else np.ndarray}


@given(any_vectors())
def test_dense_codec_has_the_payload_of_the_array(vectors: Vectors) -> None:
    header = header_of(vectors)
    limit = max(256, vectors.shape[1] * 8)
    block = encode_block(header, vectors, codec="dense", max_frame_bytes=limit)
    assert block.traffic.payload_bytes == block.traffic.raw_bytes == header.raw_bytes
    assert b"".join(frame[24:] for frame in block.frames[1:-1]) == to_dense(vectors).tobytes()


def test_a_dense_frame_among_sparse_ones_becomes_csr() -> None:
    dense = np.zeros((20, 50), dtype=np.float32)
    dense[7] = np.arange(1, 51)
    block = _decoded(header_of(dense), dense, 256)
    assert isinstance(block, sp.csr_array)
    assert block.has_canonical_format
    assert_same_bits(block, dense)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_no_vectors_are_an_empty_array(dtype: str) -> None:
    header = header_of(np.empty((0, 7), dtype=dtype))
    for vectors in (np.empty((0, 7), dtype=dtype), sp.csr_array((0, 7), dtype=dtype)):
        block = _decoded(header, vectors, 256)
        assert isinstance(block, np.ndarray)
        assert_same_bits(block, np.empty((0, 7), dtype=dtype))


@pytest.mark.parametrize("cut", [1, 24, 30, 200])
def test_a_block_that_is_not_whole_is_none(cut: int) -> None:
    assert decode_block(BLOCK, b"".join(FRAMES)[:-cut]) is None
    assert decode_block(BLOCK, b"") is None


def test_rows_that_are_none_name_their_sender_and_frame() -> None:
    payload = np.full(10, np.nan, dtype=np.float32).tobytes()
    rows = encode_frame(
        FrameHeader(
            kind=FrameKind.ROWS, values=2, sequence=1, num_rows=1, payload_bytes=len(payload)
        ),
        payload,
        block_seed=BLOCK.seed(),
    )
    with pytest.raises(RemoteProtocolError, match=r"from client 3 to 4, frame 1: .* NaN"):
        decode_block(BLOCK, FRAMES[0] + rows)


def test_rows_that_would_take_more_than_a_frame_may_are_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="uncoded, the limit is 256"):
        _decode_wide(max_frame_bytes=256)


def _decode_wide(*, max_frame_bytes: int) -> None:
    vectors = np.zeros((4, 400), dtype=np.float32)
    vectors[:, ::2] = 1.0
    frames = encode_block(header_of(vectors), vectors, max_frame_bytes=2**20).frames
    decode_block(header_of(vectors), b"".join(frames), max_frame_bytes=max_frame_bytes)


@pytest.mark.parametrize("name", sorted(EDGE_FIELDS))
def test_a_block_of_other_edges_is_not_decoded(name: str) -> None:
    expected = replace(BLOCK, **{name: OTHER[name]})
    with pytest.raises(PartitionError, match=r"^client 3 .* client 4"):
        decode_block(expected, FRAMES[0])


def test_memory_is_that_of_the_vectors() -> None:
    vectors = np.random.default_rng(0).standard_normal((3000, 64))
    header = header_of(vectors)
    stream = b"".join(encode_block(header, vectors, max_frame_bytes=2**14).frames)
    tracemalloc.start()
    decoded = decode_block(header, stream, max_frame_bytes=2**14)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert decoded is not None
    # The parts and the block that they are joined to.
    assert peak < 2.2 * vectors.nbytes
