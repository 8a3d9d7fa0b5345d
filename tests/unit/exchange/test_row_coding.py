"""Rows come back bit for bit in every coding; what a frame could not hold is refused by name."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import example, given
from hypothesis import strategies as st

from retexo_fl.errors import LocalProtocolError, RemoteProtocolError
from retexo_fl.exchange.row_coding import (
    CODINGS,
    Coding,
    Positions,
    RowsShape,
    Values,
    column_dtype,
    decode_numbers,
    decode_rows,
    encode_bits,
    encode_numbers,
    encode_rows,
    escaped_bytes,
    parse_coding,
)
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


F32_NAN = bytes.fromhex("0000c07f")
F32_INF = bytes.fromhex("000080ff")
ALL_CODINGS = sorted(CODINGS, key=lambda coding: (coding.positions, coding.values))


def _shape(num_rows: int, width: int, *, limit: int = 2**20) -> RowsShape:
    return RowsShape(num_rows=num_rows, width=width, dtype="float32", max_frame_bytes=limit)


@pytest.mark.parametrize(
    ("positions", "values", "payload", "width", "message"),
    [
        (Positions.DENSE, Values.FULL, F32_ONE, 2, "values take 4 bytes, expected 8"),
        (Positions.DENSE, Values.FULL, F32_ONE * 3, 2, "values take 12 bytes, expected 8"),
        (Positions.DENSE, Values.FULL, F32_ONE + F32_NAN, 2, "NaN or infinity"),
        (Positions.DENSE, Values.FULL, F32_ONE + F32_INF, 2, "NaN or infinity"),
        (Positions.BITS, Values.ONES, b"\x01", 9, "bits take 2 bytes, the rows have 1"),
        (Positions.BITS, Values.ONES, b"\x01\x02", 9, "bits are set beyond column 8"),
        (Positions.BITS, Values.ONES, b"\x01\x01\x00", 9, "values take 1 byte, expected 0"),
        (Positions.BITS, Values.ROW, b"\x03" + F32_ONE * 2, 8, "take 8 bytes, expected 4"),
        (Positions.BITS, Values.FULL, b"\x03" + F32_ONE, 8, "take 4 bytes, expected 8"),
        (Positions.BITS, Values.FULL, b"\x01" + bytes(4), 8, r"\+0.0 stands among"),
        (Positions.BITS, Values.ROW, b"\x01" + F32_NAN, 8, "NaN or infinity"),
        (Positions.COLUMNS, Values.ONES, b"\xff", 9, "rows hold 0 of 1 number"),
        (Positions.COLUMNS, Values.ONES, b"\x0a", 9, "a row has 10 non-zeros, width is 9"),
        (Positions.COLUMNS, Values.ONES, b"\x01\x01", 9, "columns take 2 bytes, the rows have 1"),
        (Positions.COLUMNS, Values.ONES, b"\x01\x09\x00", 9, "column 9 is out of range"),
        (Positions.COLUMNS, Values.ONES, b"\x02\x03\x00\x03\x00", 9, "not strictly ascending"),
        (Positions.COLUMNS, Values.ONES, b"\x02\x03\x00\x02\x00", 9, "not strictly ascending"),
        (Positions.GAPS, Values.ONES, b"\x02\x01", 9, "rows hold 1 of 2 numbers"),
        (Positions.GAPS, Values.ONES, b"\x02\x01\x07", 9, "column 9 is out of range"),
        (Positions.GAPS, Values.ONES, b"\x01\xff\x00", 255, "column 255 is out of range"),
        (Positions.GAPS, Values.ONES, b"\x01\x02\x03", 9, "values take 1 byte, expected 0"),
    ],
)
def test_decode_rows_refuses_by_name(
    positions: Positions, values: Values, payload: bytes, width: int, message: str
) -> None:
    coding = Coding(positions=positions, values=values)
    with pytest.raises(RemoteProtocolError, match=message):
        decode_rows(coding, payload, _shape(1, width))


@given(
    coding=st.sampled_from(ALL_CODINGS),
    payload=st.binary(min_size=1, max_size=60),
    num_rows=st.integers(1, 5),
    width=st.sampled_from((1, 2, 8, 9, 300, 70_000)),
)
def test_decode_rows_of_any_bytes_is_sound_or_a_remote_error(
    coding: Coding, payload: bytes, num_rows: int, width: int
) -> None:
    try:
        rows = decode_rows(coding, payload, _shape(num_rows, width))
    except RemoteProtocolError:
        return
    assert rows.shape == (num_rows, width)
    assert rows.dtype == np.float32
    if isinstance(rows, sp.csr_array):
        rows.check_format(full_check=True)
        assert rows.indices.dtype == np.int32
        assert rows.has_canonical_format
        assert (rows.data.view(np.uint32) != 0).all()


def test_decode_rows_keeps_no_view_of_the_payload() -> None:
    payload = bytearray(F32_ONE + F32_TWO)
    rows = decode_rows(Coding(positions=Positions.DENSE, values=Values.FULL), payload, _shape(1, 2))
    payload[:] = bytes(8)
    assert rows.tolist() == [[1.0, 2.0]]


@pytest.mark.parametrize(
    ("coding", "payload"),
    [
        (Coding(positions=Positions.BITS, values=Values.ONES), b"\xff" * 4096),
        (Coding(positions=Positions.COLUMNS, values=Values.ONES), b"\xff\xff\xff\x03"),
        (Coding(positions=Positions.GAPS, values=Values.ONES), b"\xff\xff\xff\x03" + bytes(768)),
    ],
)
def test_decode_rows_refuses_rows_that_unpack_above_the_limit(
    coding: Coding, payload: bytes
) -> None:
    with pytest.raises(RemoteProtocolError, match=r"rows take \d+ bytes uncoded, the limit is 400"):
        decode_rows(coding, payload, _shape(1, 8 * 4096, limit=400))


def test_decode_rows_memory_is_bounded_whatever_the_counts_claim() -> None:
    limit = 2**16
    claims = [
        (Positions.GAPS, b"\xff" * (limit - 1) + b"\x00"),
        (Positions.COLUMNS, b"\xff" * (limit - 1) + b"\x00"),
        (Positions.GAPS, b"\xfe" * limit),
        (Positions.BITS, b"\xff" * limit),
    ]
    for positions, payload in claims:
        coding = Coding(positions=positions, values=Values.ONES)
        for num_rows in (1, len(payload)):
            tracemalloc.start()
            with pytest.raises(RemoteProtocolError):
                decode_rows(coding, payload, _shape(num_rows, 2**31 - 1, limit=limit))
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < 64 * limit


@pytest.mark.parametrize(
    ("positions", "values", "name"),
    [
        (8, 0, "8/0"),
        (7, 2, "PACKED/FULL"),
        (5, 4, "GRID/FOUR"),
        (1, 6, "1/6"),
        (0, 1, "DENSE/ROW"),
        (1, 3, "BITS/EIGHT"),
        (4, 2, "LEVELS/FULL"),
        (6, 0, "NONZERO_LEVELS/ONES"),
    ],
)
def test_parse_coding_refuses_what_is_not_defined(positions: int, values: int, name: str) -> None:
    with pytest.raises(RemoteProtocolError, match=f"coding {name} is unknown"):
        parse_coding(positions, values)


@pytest.mark.parametrize("coding", ALL_CODINGS)
def test_parse_coding_knows_all_codings(coding: Coding) -> None:
    assert len(ALL_CODINGS) == 18
    assert parse_coding(coding.positions, coding.values) == coding


@pytest.mark.parametrize(
    ("bits", "limit", "dense"),
    [(b"\x03", 32, True), (b"\x03", 31, False), (b"\x01", 32, False)],
)
def test_bits_of_many_values_become_an_array_where_the_limit_allows(
    bits: bytes, limit: int, dense: bool
) -> None:
    coding = Coding(positions=Positions.BITS, values=Values.ONES)
    rows = decode_rows(coding, bits, _shape(1, 8, limit=limit))
    assert isinstance(rows, np.ndarray) == dense
    array = rows if isinstance(rows, np.ndarray) else rows.toarray()
    assert array.tolist() == [[1.0, float(bits == b"\x03"), 0, 0, 0, 0, 0, 0]]


def test_encode_numbers_writes_one_escape_per_255() -> None:
    numbers = np.array([0, 254, 255, 256, 510, 3])
    expected = bytes([0, 254, 255, 0, 255, 1, 255, 255, 0, 3])
    assert encode_numbers(numbers) == expected
    assert escaped_bytes(numbers) == len(expected)


@given(st.lists(st.integers(0, 5000)), st.binary(max_size=5))
def test_decode_numbers_inverts_encode_and_leaves_the_rest(numbers: list[int], rest: bytes) -> None:
    encoded = encode_numbers(np.array(numbers, dtype=np.int64))
    data = np.frombuffer(encoded + rest, dtype=np.uint8)
    decoded, after = decode_numbers(data, len(numbers))
    assert decoded.tolist() == numbers
    assert after.tobytes() == rest


@pytest.mark.parametrize("data", [b"", b"\x01", b"\x01\xff\xff"])
def test_decode_numbers_refuses_a_missing_end(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match=r"hold \d of 2 numbers"):
        decode_numbers(np.frombuffer(data, dtype=np.uint8), 2)


def test_zeros_and_ones_take_a_bit_each_over_rows_and_come_back() -> None:
    rows = np.array([[0, 1, 1], [1, 0, 0], [1, 1, 1]], dtype=np.float32)
    coding, payload = encode_bits(rows)
    assert payload == bytes([0b01110011, 0b10000000])
    shape = RowsShape(num_rows=3, width=3, dtype="float32", max_frame_bytes=1024)
    assert_same_bits(decode_rows(coding, payload, shape), rows)
    for wrong, expected in (
        (bytes([0b01110011, 0b10000001]), "bits are set beyond the last value"),
        (payload[:1], "bits take 2 bytes, the rows have 1"),
        (payload + b"\0", "1 byte after the last bit, expected none"),
    ):
        with pytest.raises(RemoteProtocolError, match=expected):
            decode_rows(coding, wrong, shape)
    for value in (2.0, -0.0, 0.5):
        with pytest.raises(LocalProtocolError, match="other values; expected 0 and 1"):
            encode_bits(np.full((1, 3), value, np.float32))
