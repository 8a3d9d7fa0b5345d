from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from retexo_fl.errors import LocalProtocolError
from retexo_fl.exchange import HEADER_BYTES, BlockTraffic, Vectors, encode_block, to_csr
from retexo_fl.exchange.block_encoding import EncodedBlock, split_dense_rows, split_rows
from retexo_fl.exchange.codecs import row_costs
from retexo_fl.exchange.frames import FrameKind, parse_frame
from tests.unit.exchange.blocks import any_vectors, header_of

DENSE = np.arange(1, 101, dtype=np.float32).reshape(10, 10)  # 40 bytes per row


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
