from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given

from retexo_fl.errors import LocalProtocolError
from retexo_fl.exchange import (
    BlockAssembler,
    BlockHeader,
    ReceivingSession,
    RowsReceived,
    Vectors,
    assemble,
    encode_block,
    to_csr,
    to_dense,
)
from tests.unit.exchange.blocks import any_vectors, assert_same_bits, csr, header_of, read_all


def _rows_of(
    header: BlockHeader, vectors: Vectors, limit: int, codec: str = "lossless"
) -> list[RowsReceived]:
    block = encode_block(header, vectors, codec=codec, max_frame_bytes=limit)
    events = read_all(ReceivingSession(header, max_frame_bytes=limit), block.frames)
    return [event for event in events if isinstance(event, RowsReceived)]


@given(any_vectors())
def test_encode_block_traffic_is_the_sum_of_its_frames(vectors: Vectors) -> None:
    header = header_of(vectors)
    limit = max(256, vectors.shape[1] * 8)
    block = encode_block(header, vectors, max_frame_bytes=limit)
    traffic = block.traffic
    assert traffic.raw_bytes == header.raw_bytes
    assert traffic.wire_bytes == sum(map(len, block.frames))
    assert traffic.control_bytes == len(header.hello_payload())
    assert traffic.payload_bytes == sum(len(frame) - 24 for frame in block.frames[1:-1])
    assert traffic.payload_bytes <= traffic.raw_bytes


@given(any_vectors())
def test_dense_block_has_the_payload_of_its_array_and_reads_the_same(vectors: Vectors) -> None:
    header = header_of(vectors)
    limit = max(256, vectors.shape[1] * 8)
    block = encode_block(header, vectors, codec="dense", max_frame_bytes=limit)
    assert block.traffic.payload_bytes == block.traffic.raw_bytes == header.raw_bytes
    assert b"".join(frame[24:] for frame in block.frames[1:-1]) == to_dense(vectors).tobytes()
    dense = assemble(header, _rows_of(header, vectors, limit, "dense"))
    lossless = assemble(header, _rows_of(header, vectors, limit))
    assert type(dense) is type(lossless)
    assert_same_bits(dense, vectors)


def test_unknown_codec_is_refused_by_name() -> None:
    vectors = np.eye(3, dtype=np.float32)
    with pytest.raises(LocalProtocolError, match="codec is 'zip', expected one of lossless, dense"):
        encode_block(header_of(vectors), vectors, codec="zip")


@given(any_vectors())
def test_assemble_form_depends_on_the_values_only(vectors: Vectors) -> None:
    header = header_of(vectors)
    forms: set[type] = set()
    for limit in (max(256, vectors.shape[1] * 8), 2**20):
        block = assemble(header, _rows_of(header, vectors, limit))
        assert_same_bits(block, vectors)
        forms.add(type(block))
    is_sparse = to_csr(vectors).nnz * 4 < header.num_vectors * header.width
    assert forms == {sp.csr_array if is_sparse else np.ndarray}


def test_assemble_makes_csr_of_a_dense_frame_among_sparse_ones() -> None:
    dense = np.zeros((20, 50), dtype=np.float32)
    dense[7] = np.arange(1, 51)
    header = header_of(dense)
    rows = _rows_of(header, dense, 256)
    assert {type(event.vectors) for event in rows} == {np.ndarray, sp.csr_array}
    block = assemble(header, rows)
    assert isinstance(block, sp.csr_array)
    assert block.has_canonical_format
    assert_same_bits(block, dense)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_assemble_of_no_vectors_is_an_empty_array(dtype: str) -> None:
    header = header_of(np.empty((0, 7), dtype=dtype))
    for vectors in (np.empty((0, 7), dtype=dtype), sp.csr_array((0, 7), dtype=dtype)):
        block = encode_block(header, vectors)
        assert len(block.frames) == 2
        assembled = assemble(header, _rows_of(header, vectors, 256))
        assert isinstance(assembled, np.ndarray)
        assert_same_bits(assembled, np.empty((0, 7), dtype=dtype))


def test_block_assembler_knows_when_it_is_complete() -> None:
    vectors = np.eye(3, dtype=np.float32)
    assembler = BlockAssembler(header_of(vectors))
    assembler.add(RowsReceived(first=0, vectors=vectors[:2]))
    complete = [assembler.is_complete]
    with pytest.raises(LocalProtocolError, match="received 2 of 3 vectors"):
        assembler.finish()
    assembler.add(RowsReceived(first=2, vectors=csr([[0, 0, 1]])))
    complete.append(assembler.is_complete)
    assert complete == [False, True]
    assert assembler.rows_received == 3
    assert_same_bits(assembler.finish(), vectors)


@pytest.mark.parametrize(
    ("first", "vectors", "message"),
    [
        (1, np.ones((1, 3), dtype=np.float32), "rows 1 to 2 do not follow the 0 of 3 received"),
        (0, np.ones((4, 3), dtype=np.float32), "rows 0 to 4 do not follow the 0 of 3 received"),
        (0, np.ones((1, 2), dtype=np.float32), "rows are float32 of width 2"),
        (0, np.ones((1, 3), dtype=np.float64), "rows are float64 of width 3"),
    ],
)
def test_block_assembler_refuses_rows_that_do_not_belong(
    first: int, vectors: Vectors, message: str
) -> None:
    assembler = BlockAssembler(header_of(np.zeros((3, 3), dtype=np.float32)))
    with pytest.raises(LocalProtocolError, match=message):
        assembler.add(RowsReceived(first=first, vectors=vectors))
