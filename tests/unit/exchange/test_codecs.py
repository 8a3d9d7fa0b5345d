from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given

from retexo_fl.exchange.codecs import Coding, Positions, Values, column_dtype, encode_rows
from retexo_fl.exchange.row_decoding import RowsShape, decode_rows
from retexo_fl.exchange.vectors import Vectors, to_csr, to_dense
from tests.support.data import cora_dir
from tests.unit.exchange.blocks import assert_same_bits, csr, dense_vectors

F32_ONE = bytes.fromhex("0000803f")
F32_TWO = bytes.fromhex("00000040")
F32_MINUS_ZERO = bytes.fromhex("00000080")


def _ones(places: list[tuple[int, int]], shape: tuple[int, int], dtype: str = "float32") -> Vectors:
    dense = np.zeros(shape, dtype=dtype)
    for place in places:
        dense[place] = 1.0
    return dense


@pytest.mark.parametrize(
    ("rows", "positions", "values", "expected"),
    [
        pytest.param(
            np.array([[1, 2]], dtype=np.float32),
            Positions.DENSE,
            Values.FULL,
            F32_ONE + F32_TWO,
            id="dense",
        ),
        # Columns 0, 8, 9 of 10: byte 0 has bit 0, byte 1 bits 0 and 1.
        pytest.param(
            np.array([[1, 0, 0, 0, 0, 0, 0, 0, 1, 1]], dtype=np.float32),
            Positions.BITS,
            Values.ONES,
            bytes([0b1, 0b11]),
            id="bits-ones",
        ),
        pytest.param(
            np.array([[2, 0, 2, 2], [0, 0, 0, 0], [0, -0.0, 0, 0]], dtype=np.float32),
            Positions.BITS,
            Values.ROW,
            bytes([0b1101, 0, 0b10]) + F32_TWO + F32_MINUS_ZERO,
            id="bits-row",
        ),
        pytest.param(
            np.array([[2, 0, 1, 0, 0]], dtype=np.float32),
            Positions.BITS,
            Values.FULL,
            bytes([0b101]) + F32_TWO + F32_ONE,
            id="bits-full",
        ),
        # Counts 2, 0, 1; columns 3 and 259 (3 skipped, then 255), then 1.
        pytest.param(
            _ones([(0, 3), (0, 259), (2, 1)], (3, 300)),
            Positions.GAPS,
            Values.ONES,
            bytes([2, 0, 1]) + bytes([3, 255, 0, 1]),
            id="gaps-ones",
        ),
        pytest.param(
            csr([[0] * 40 + [2.0, 2.0] + [0] * 20]),
            Positions.GAPS,
            Values.ROW,
            bytes([2]) + bytes([40, 0]) + F32_TWO,
            id="gaps-row",
        ),
        pytest.param(
            csr([[0] * 60 + [1.0, 2.0]]),
            Positions.GAPS,
            Values.FULL,
            bytes([2]) + bytes([60, 0]) + F32_ONE + F32_TWO,
            id="gaps-full",
        ),
        # Column 1000 as a gap takes four bytes, as u16 two.
        pytest.param(
            _ones([(0, 1000)], (1, 2000)),
            Positions.COLUMNS,
            Values.ONES,
            bytes([1]) + bytes.fromhex("e803"),
            id="columns-u16",
        ),
        pytest.param(
            _ones([(0, 66_000)], (1, 70_000), "float64"),
            Positions.COLUMNS,
            Values.ONES,
            bytes([1]) + bytes.fromhex("d0010100"),
            id="columns-u32",
        ),
    ],
)
def test_encode_rows_writes_the_documented_bytes(
    rows: Vectors, positions: Positions, values: Values, expected: bytes
) -> None:
    coding = Coding(positions=positions, values=values)
    assert encode_rows(to_dense(rows)) == (coding, expected)
    assert encode_rows(to_csr(rows)) == (coding, expected)
    shape = RowsShape(
        num_rows=rows.shape[0],
        width=rows.shape[1],
        dtype=str(rows.dtype),
        max_frame_bytes=2**20,
    )
    assert_same_bits(decode_rows(coding, expected, shape), rows)


@given(dense_vectors(max_rows=8).filter(len))
def test_encode_rows_is_lossless_and_blind_to_the_form(rows: np.ndarray) -> None:
    coding, payload = encode_rows(rows)
    assert (coding, payload) == encode_rows(to_csr(rows))
    assert 1 <= len(payload) <= rows.nbytes
    num_rows, width = rows.shape
    shape = RowsShape(num_rows=num_rows, width=width, dtype=str(rows.dtype), max_frame_bytes=2**20)
    assert_same_bits(decode_rows(coding, payload, shape), rows)


@given(dense_vectors(max_rows=8).filter(len))
# Columns and gaps take 7 bytes each, and the first of the two is taken.
@example(np.where(np.arange(600) == 300, 0.5, 0).astype(np.float32).reshape(1, 600))
def test_encode_rows_takes_the_shortest_coding(rows: np.ndarray) -> None:
    """Sizes counted one by one in Python, ties in the order of the enumeration."""
    itemsize = rows.dtype.itemsize
    bits = rows.view(f"u{itemsize}")
    one = np.ones(1, rows.dtype).view(bits.dtype)[0]
    per_row = [set(row[row != 0].tolist()) for row in bits]
    if any(len(found) > 1 for found in per_row):
        value_bytes = int((bits != 0).sum()) * itemsize
    elif any(found != {one} for found in per_row if found):
        value_bytes = sum(map(len, per_row)) * itemsize
    else:
        value_bytes = 0
    where = [np.flatnonzero(row).tolist() for row in bits]
    counts = sum(1 + len(columns) // 255 for columns in where)
    gaps = sum(
        1 + (b - a - 1) // 255
        for columns in where
        for a, b in zip([-1, *columns], columns, strict=False)
    )
    sizes = [
        rows.nbytes,
        len(rows) * -(-rows.shape[1] // 8) + value_bytes,
        counts + sum(map(len, where)) * column_dtype(rows.shape[1]).itemsize + value_bytes,
        counts + gaps + value_bytes,
    ]
    coding, payload = encode_rows(rows)
    assert len(payload) == min(sizes)
    assert coding.positions == sizes.index(min(sizes))


def test_column_dtype_changes_after_65536() -> None:
    assert column_dtype(65_536) == np.dtype("<u2")
    assert column_dtype(65_537) == np.dtype("<u4")


@pytest.mark.parametrize("scaled", [False, True])
def test_encode_rows_of_cora_is_at_least_200_times_shorter(scaled: bool) -> None:
    with np.load(cora_dir() / "cora.npz") as graph:
        starts, columns = graph["x_indptr"], graph["x_indices"]
        rows = np.zeros(tuple(graph["x_shape"]), dtype=np.float32)
    counts = np.diff(starts)
    scales = 1 / np.sqrt(np.arange(len(counts)) % 7 + 2)
    values = np.repeat(scales, counts) if scaled else 1.0
    rows[np.repeat(np.arange(len(counts)), counts), columns] = values
    _, payload = encode_rows(to_csr(rows))
    assert rows.nbytes > 200 * len(payload)
