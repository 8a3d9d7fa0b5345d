"""Shared rows are what blocks would bring, to the bit, and are counted as their bytes."""

from __future__ import annotations

from typing import Final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retexo_fl.exchange import (
    BlockHeader,
    BlockTraffic,
    Edges,
    Vectors,
    decode_block,
    encode_block,
    to_csr,
    to_dense,
)
from retexo_fl.exchange.row_coding import CODECS, Positions
from retexo_fl.exchange.shared_rows import RowPile, Selection, SharedRows, share_rows
from tests.unit.exchange.blocks import assert_same_bits

SENDERS: Final = (3, 4)
RECEIVERS: Final = (0, 1, 2)


def header(sender: int, receiver: int, rows: Vectors) -> BlockHeader:
    return BlockHeader(
        job="job-1",
        layer=1,
        sender=sender,
        receiver=receiver,
        weights_digest=b"w" * 32,
        num_edges=7 * receiver,
        plan_digest=bytes([receiver]) * 32,
        num_vectors=rows.shape[0],
        width=rows.shape[1],
        dtype=str(rows.dtype),
    )


def edges_of(sender: int, rows: Vectors, chosen: dict[int, np.ndarray]) -> dict[int, Edges]:
    blocks = {peer: header(sender, peer, rows[some]) for peer, some in chosen.items()}
    return {p: (b.num_edges, b.plan_digest, b.num_vectors) for p, b in blocks.items()}


def selection(sender: int, rows: Vectors, chosen: dict[int, np.ndarray]) -> Selection:
    return Selection.of(chosen, edges_of(sender, rows, chosen))


def pile() -> RowPile:
    return RowPile("job-1", 1, b"w" * 32)


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[Vectors], list[dict[int, np.ndarray]], str]:
    """Draw each sender's rows, what receivers get of them, and a codec."""
    width = draw(st.sampled_from([1, 3, 7, 40, 300, 700]))
    dtype = draw(st.sampled_from(["float32", "float64"]))
    codec = draw(st.sampled_from([codec for codec in CODECS if codec != "grid8"]))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    density = draw(st.sampled_from([0.0, 0.004, 0.1, 0.22, 0.5, 1.0]))
    kind = draw(st.sampled_from(["ones", "of a row", "any", "mixed"]))
    if codec == "bits":
        kind = "ones"
    is_sparse = draw(st.booleans())
    found, chosen = [], []
    for _ in SENDERS:
        size = draw(st.integers(1, 9))
        values = random.normal(size=(size, width))
        if kind != "any":
            values[:] = 1.0 if kind == "ones" else values[:, :1]
        if kind == "mixed":
            values[0] = random.normal(size=width)
        rows = np.where(random.random((size, width)) < density, values, 0.0).astype(dtype)
        if density < 1 and codec != "bits" and draw(st.booleans()):
            rows[0, 0] = -0.0
        found.append(to_csr(rows) if is_sparse else rows)
        some = [np.flatnonzero(random.random(size) < share) for share in (1.0, 0.5, 0.2)]
        chosen.append(dict(zip(RECEIVERS, some, strict=True)))
    return found, chosen, codec


@given(case=cases())
@settings(max_examples=100)
def test_what_is_shared_is_what_blocks_bring(
    case: tuple[list[Vectors], list[dict[int, np.ndarray]], str],
) -> None:
    found, chosen, codec = case
    together = pile()
    blocks = {}
    for sender, rows, some in zip(SENDERS, found, chosen, strict=True):
        for receiver, places in some.items():
            head = header(sender, receiver, rows[places])
            block = encode_block(head, rows[places], codec=codec)
            decoded = decode_block(head, b"".join(block.frames))
            assert decoded is not None
            blocks[sender, receiver] = head, block, decoded[0]
        shared = share_rows(
            rows, selection(sender, rows, some), together, sender=sender, codec=codec
        )
        if shared is None:
            # Blocks of one sender choose between levels and what loses nothing.
            sent = [block.frames[1] for _, block, _ in blocks.values() if block.frames[2:]]
            forms = {frame[6] in {Positions.LEVELS, Positions.NONZERO_LEVELS} for frame in sent}
            assert forms == {True, False}
            return
        edges = edges_of(sender, rows, some)
        told = together.share(rows, some, edges, sender=sender, codec=codec)
        expected = sum((blocks[sender, r][1].traffic for r in some), BlockTraffic())
        assert told == (len(RECEIVERS), expected)
        for receiver in RECEIVERS:
            head, block, _ = blocks[sender, receiver]
            assert together.traffic(receiver, [sender]) == block.traffic
            assert shared.encoded(receiver).frames == block.frames
    for receiver in RECEIVERS:
        senders = together.senders(receiver)
        parts = [blocks[sender, receiver][2] for sender in senders]
        for sender, part in zip(senders, parts, strict=True):
            alone = together.gathered(receiver, [sender])
            assert_same_bits(alone, part)
            assert isinstance(alone, np.ndarray) == isinstance(part, np.ndarray)
        both = together.gathered(receiver, SENDERS)
        assert_same_bits(both, np.concatenate([to_dense(part) for part in parts]))
        dense = any(isinstance(part, np.ndarray) for part in parts)
        assert isinstance(both, np.ndarray) == dense
        for sender, shared in senders.items():
            # Also after rows of all senders lie in one piece.
            assert shared.encoded(receiver).frames == blocks[sender, receiver][1].frames


def shared(rows: Vectors, codec: str = "lossless", most: int = 2**20) -> SharedRows | None:
    some = {0: np.arange(rows.shape[0]), 1: np.arange(1)}
    return share_rows(
        rows, selection(3, rows, some), pile(), sender=3, codec=codec, max_frame_bytes=most
    )


@pytest.mark.parametrize("codec", ["lossless", "dense", "levels8"])
def test_a_block_of_several_frames_is_not_shared(codec: str) -> None:
    rows = np.random.default_rng(0).normal(size=(65, 4)).astype(np.float32)
    assert shared(rows[:64], codec, most=64 * 16) is not None
    assert shared(rows, codec, most=64 * 16) is None


def test_rows_of_many_zeros_fill_a_frame_by_their_values() -> None:
    rows = np.zeros((65, 4), np.float32)
    rows[:, 0] = 1.5
    assert len(encode_block(header(3, 0, rows), rows, max_frame_bytes=64 * 16).frames) == 3
    assert shared(rows, most=64 * 16) is not None


def test_levels_beside_exact_rows_are_not_shared() -> None:
    rows = np.random.default_rng(0).normal(size=(2, 40)).astype(np.float32)
    rows[0, 1:] = 0.0
    assert shared(rows, "levels8") is None
    assert shared(rows) is not None


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e39])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_rows_that_cannot_be_sent_are_not_shared(value: float, is_sparse: bool) -> None:
    rows = np.random.default_rng(0).normal(size=(3, 5))
    rows[2, 3] = value
    assert shared(to_csr(rows) if is_sparse else rows, "levels8") is None


def test_rows_that_nobody_gets_may_be_anything() -> None:
    rows = np.array([[1.0, np.nan], [2.0, 3.0]], np.float32)
    some = {0: np.array([1])}
    found = share_rows(rows, selection(3, rows, some), pile(), sender=3, codec="lossless")
    assert found is not None
    assert found.payloads == {0: 8}


def test_what_was_shared_once_stays() -> None:
    together = pile()
    one, other = np.ones((2, 3), np.float32), np.zeros((2, 3), np.float32)
    some = {0: np.arange(2), 1: np.arange(1)}
    for rows, fresh in ((one, 2), (other, 0)):
        edges = edges_of(3, rows, some)
        found = together.share(rows, some, edges, sender=3, codec="lossless")
        assert found is not None
        assert found[0] == fresh
    np.testing.assert_array_equal(to_dense(together.gathered(0, [3])), one)
    assert not together.forget(0)
    assert together.forget(1)
    assert not together.senders(0)


def test_edges_are_compared() -> None:
    rows = np.ones((2, 3), np.float32)
    together, some = pile(), {0: np.arange(2), 1: np.arange(1)}
    together.share(rows, some, edges_of(3, rows, some), sender=3, codec="lossless")
    mine = (7, bytes([1]) * 32, 1)
    expected = {3: mine, 4: mine}
    assert together.shared_with(1, expected, width=3, dtype="float32") == {3}
    assert not together.shared_with(1, {3: (8, *mine[1:])}, width=3, dtype="float32")
    assert not together.shared_with(1, expected, width=2, dtype="float32")
    assert not together.shared_with(1, expected, width=3, dtype="float64")
