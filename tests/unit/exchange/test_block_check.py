"""Frames are held to their order, their checksums and their block before a row is decoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retexo_fl.errors import PartitionError, RemoteProtocolError
from retexo_fl.exchange import BlockHeader, BlockProgress, check_frame, encode_block
from retexo_fl.exchange.block_check import NOTHING, sound_prefix
from retexo_fl.exchange.frames import FrameHeader, FrameKind, encode_frame
from tests.unit.exchange.blocks import header_of
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


@pytest.mark.parametrize("place", range(len(STREAM)))
def test_any_altered_byte_is_refused(place: int) -> None:
    altered = bytearray(STREAM)
    altered[place] ^= 0x20
    sizes = np.cumsum([0, *map(len, FRAMES)])
    pieces = [bytes(altered[a:b]) for a, b in pairwise(sizes)]
    with pytest.raises(RemoteProtocolError):
        _after(pieces)
    sound = sound_prefix(BLOCK.key, bytes(altered))
    assert sound == _after(FRAMES[: int(np.searchsorted(sizes, place, side="right")) - 1])


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
