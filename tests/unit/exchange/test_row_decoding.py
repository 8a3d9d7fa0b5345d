from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from retexo_fl.errors import RemoteProtocolError
from retexo_fl.exchange.codecs import CODINGS, Coding, Positions, Values
from retexo_fl.exchange.row_decoding import RowsShape, decode_rows, parse_coding

F32_ONE = bytes.fromhex("0000803f")
F32_TWO = bytes.fromhex("00000040")
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
        (5, 0, "5/0"),
        (1, 6, "1/6"),
        (0, 1, "DENSE/ROW"),
        (1, 3, "BITS/EIGHT"),
        (4, 2, "LEVELS/FULL"),
    ],
)
def test_parse_coding_refuses_what_is_not_defined(positions: int, values: int, name: str) -> None:
    with pytest.raises(RemoteProtocolError, match=f"coding {name} is unknown"):
        parse_coding(positions, values)


@pytest.mark.parametrize("coding", ALL_CODINGS)
def test_parse_coding_knows_all_codings(coding: Coding) -> None:
    assert len(ALL_CODINGS) == 13
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
