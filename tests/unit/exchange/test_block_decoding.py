from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given

from retexo_fl.errors import PartitionError, RemoteProtocolError
from retexo_fl.exchange import (
    BlockHeader,
    Vectors,
    decode_block,
    encode_block,
    to_csr,
    to_dense,
)
from retexo_fl.exchange.frames import FrameHeader, FrameKind, encode_frame
from tests.unit.exchange.blocks import any_vectors, assert_same_bits, header_of
from tests.unit.exchange.test_block import EDGE_FIELDS, OTHER

DENSE = np.arange(1, 101, dtype=np.float32).reshape(10, 10)
BLOCK = header_of(DENSE)
FRAMES = encode_block(BLOCK, DENSE, max_frame_bytes=256).frames


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
def test_other_edges_are_an_error_of_the_parts(name: str) -> None:
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
