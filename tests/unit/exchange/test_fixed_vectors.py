from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from retexo_fl.errors import LocalProtocolError, RemoteProtocolError
from retexo_fl.exchange import (
    Vectors,
    decode_block,
    encode_block,
    fixed_vectors,
    in_compact_form,
    to_csr,
    to_dense,
    wire_codec,
)
from retexo_fl.exchange.fixed_point import byte_rows, rows_of_bytes, snap_rows
from retexo_fl.exchange.fixed_vectors import decode_grid, encode_grid, grid_bytes
from tests.unit.exchange.blocks import any_vectors, csr, header_of


def rows(*values: float, dtype: str = "float32") -> np.ndarray:
    return np.array([values], dtype=dtype)


def test_one_exponent_of_largest_magnitude_serves_all_peers() -> None:
    small, large = rows(0.1, 1e-9), rows(-3.0, 0.25)
    fixed = fixed_vectors({1: small, 4: large})
    assert fixed.exponent == 22
    assert fixed.integers(4).tolist() == [[-3 * 2**22, 2**20]]
    assert fixed.integers(1).tolist() == [[round(float(small[0, 0]) * 2**22), 0]]
    assert to_dense(fixed.vectors[1])[0, 0] == np.rint(small[0, 0] * 2**22) * 2.0**-22
    assert fixed.error_bound == 2.0**-23


@given(any_vectors())
def test_vectors_are_within_the_bound_and_on_the_grid(vectors: Vectors) -> None:
    before = to_dense(vectors).astype(np.float64)
    assume(np.abs(before).max(initial=0.0) < 2.0**127)
    fixed = fixed_vectors({0: vectors})
    found = fixed.vectors[0]
    assert isinstance(found, sp.csr_array) == isinstance(vectors, sp.csr_array)
    after = to_dense(found)
    assert (found.shape, found.dtype) == (vectors.shape, vectors.dtype)
    assert np.abs(after.astype(np.float64) - before).max(initial=0.0) <= fixed.error_bound
    assert not after[before == 0].any()
    integers = fixed.integers(0)
    assert (np.ldexp(integers.astype(np.float64), -fixed.exponent) == after).all()
    assert np.abs(integers).max(initial=0) <= 2**24
    # What an exchange carries has no zero among its values, not even -0.0.
    header = header_of(found)
    assert encode_block(header, found, max_frame_bytes=2**20).frames
    assert not np.signbit(after[after == 0]).any()


def test_stored_entries_that_round_to_zero_are_dropped() -> None:
    fixed = fixed_vectors({2: csr(rows(0.0, 1e-12, 1.0, -1e-12))})
    found = fixed.vectors[2]
    assert isinstance(found, sp.csr_array)
    assert (found.data.tolist(), found.indices.tolist()) == ([1.0], [2])
    assert fixed.integers(2).tolist() == [[0, 0, 2**24, 0]]


def test_vectors_are_left_as_they_are_and_snap_only_once() -> None:
    vectors = {0: rows(0.1, 0.2), 1: csr(rows(0.0, 0.3))}
    once = fixed_vectors(vectors)
    assert to_dense(vectors[1])[0, 1] == np.float32(0.3)
    twice = fixed_vectors(once.vectors)
    for peer in vectors:
        assert to_dense(twice.vectors[peer]).tobytes() == to_dense(once.vectors[peer]).tobytes()


@given(any_vectors())
def test_in_8_bits_each_row_is_off_by_less_than_a_number(vectors: Vectors) -> None:
    before = to_dense(vectors).astype(np.float64)
    assume(np.abs(before).max(initial=0.0) < 2.0**127)
    fixed = fixed_vectors({0: vectors}, 8)
    after = to_dense(fixed.vectors[0])
    assert (after.shape, after.dtype) == (vectors.shape, vectors.dtype)
    off = np.abs(after.astype(np.float64) - before)
    assert off.max(initial=0.0) <= fixed.error_bound
    assert not after[before == 0].any()
    if fixed.bits == 8:
        # The numbers of a row are apart by a power of two: fewer than half of them go unused.
        step = np.abs(before).max(axis=1, initial=0.0)[:, None] / 63 + 2.0**-fixed.exponent
        assert (off <= step).all()
        assert byte_rows(fixed.integers(0)) is not None
        assert encode_grid(after) is not None


def test_in_8_bits_a_row_is_the_same_at_every_peer_and_right_in_the_mean() -> None:
    rng = np.random.default_rng(0)
    many = rng.uniform(-1, 1, (20_000, 6)).astype(np.float32)
    # Rounded to the nearest, all of these would be off to one side.
    many[:, 0], many[:, 5] = 1.3 * 2.0**-6, 1.0
    fixed = fixed_vectors({1: many, 4: many[::-7].copy(), 5: rows(*[1.5] * 6)}, 8)
    # 1 has 64 numbers of a row, and with twice as many there would be 128 to either side.
    assert (fixed.bits, fixed.exponent, fixed.error_bound) == (8, 23, 2.0**-6)
    np.testing.assert_array_equal(fixed.vectors[4], to_dense(fixed.vectors[1])[::-7])
    error = (to_dense(fixed.vectors[1]) - many).mean(axis=0)
    np.testing.assert_allclose(error, 0.0, atol=6 * 2.0**-6 / np.sqrt(len(many)))


@pytest.mark.parametrize(
    ("largest", "unsigned", "signed"),
    [
        (0, 0, 0),
        (127, 0, 0),
        (255, 0, 2),
        (256, 1, 2),
        (510, 1, 3),
        (511, 2, 3),
        (2**24, 17, 18),
    ],
)
def test_a_row_has_the_least_shift_at_which_it_fits_bytes(
    largest: int, unsigned: int, signed: int
) -> None:
    for value, power in ((largest, unsigned), (-largest, signed)):
        row = np.array([[value, 0]], dtype=np.float64)
        steps, shifts = snap_rows(row, 0)
        assert shifts.tolist() == [power]
        assert np.abs(steps - row).max() < 2**power
        written = byte_rows(steps)
        assert written is not None
        np.testing.assert_array_equal(rows_of_bytes(*written), steps)
        assert np.abs(steps).max() <= 2**24


def test_steps_of_more_than_8_bits_are_no_row_in_bytes() -> None:
    assert byte_rows(np.array([[1, 256]], dtype=np.int32)) is None
    assert byte_rows(np.array([[-1, 129]], dtype=np.int32)) is None


def test_sparse_vectors_keep_24_bits() -> None:
    sparse = np.zeros((4, 12), dtype=np.float32)
    sparse[:, 0], sparse[:, 1] = 1.0, 1e-3
    assert fixed_vectors({0: sparse}, 8).bits == 24
    # Of all that is sent: another peer's rows make them 4 * 2 * 5 + 4 + 2 * 12 * 5 + 2 bytes.
    both = fixed_vectors({0: sparse, 1: np.ones((2, 12), dtype=np.float32)}, 8)
    assert both.bits == 8


def test_nothing_and_zeros_have_exponent_zero() -> None:
    assert fixed_vectors({}).exponent == 0
    fixed = fixed_vectors({0: np.zeros((2, 3), dtype=np.float32), 1: sp.csr_array((0, 3))})
    assert fixed.exponent == 0
    assert not fixed.integers(0).any()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_refused_with_the_peer(value: float) -> None:
    for vectors in (rows(1.0, value), csr(rows(0.0, value))):
        with pytest.raises(LocalProtocolError, match="a vector for client 7 holds NaN or infinity"):
            fixed_vectors({3: rows(1.0), 7: vectors})


def test_form_depends_on_the_values_alone() -> None:
    few, many = np.zeros((3, 4), dtype=np.float32), np.zeros((3, 4), dtype=np.float32)
    few[0, :2], many[0, :3] = 1, 1
    for form in (to_csr, to_dense):
        assert isinstance(in_compact_form(form(few)), sp.csr_array)
        assert isinstance(in_compact_form(form(many)), np.ndarray)
    assert isinstance(in_compact_form(np.zeros((0, 4), dtype=np.float32)), sp.csr_array)


def test_only_the_grid_sets_fixed_apart_on_the_wire() -> None:
    assert [wire_codec(name) for name in ("lossless", "dense", "fixed", "fixed8")] == [
        "lossless",
        "dense",
        "lossless",
        "grid8",
    ]


# ---- rows of 8 bits on the wire ------------------------------------------------------------------


@given(
    numbers=arrays(
        np.int16, array_shapes(min_dims=2, max_dims=2, max_side=9), elements=st.integers(-127, 127)
    ),
    data=st.data(),
    exponent=st.integers(-80, 100),
    dtype=st.sampled_from(["float32", "float64"]),
)
def test_rows_of_8_bits_come_back(
    numbers: np.ndarray, data: st.DataObject, exponent: int, dtype: str
) -> None:
    shifts = data.draw(arrays(np.int64, len(numbers), elements=st.integers(0, 16)))
    # Without a sign there is room for one bit more.
    numbers = np.where(numbers.min(axis=1)[:, None] >= 0, 2 * numbers + 1, numbers)
    rows = np.ldexp(numbers.astype(dtype), shifts[:, None] - exponent)
    written = encode_grid(rows)
    assert written is not None
    assert len(written) == grid_bytes(*rows.shape) == 2 + rows.size + len(rows)
    read = decode_grid(
        np.frombuffer(written, np.uint8), num_rows=len(rows), width=rows.shape[1], dtype=dtype
    )
    assert read.dtype == dtype
    np.testing.assert_array_equal(read, rows)


@pytest.mark.parametrize("rows", [[[1.0, 2.0**-8]], [[127.5, -0.5]], [[2.0**128]], [[0.1]]])
def test_what_has_more_bits_is_not_written(rows: list[list[float]]) -> None:
    assert encode_grid(np.array(rows)) is None


def test_a_block_takes_a_byte_a_value_and_loses_nothing() -> None:
    rows = np.random.default_rng(0).normal(size=(40, 64)).astype(np.float32)
    rounded = to_dense(fixed_vectors({0: rows}, 8).vectors[0])
    header = header_of(rounded)
    encoded = encode_block(header, rounded, codec="grid8")
    assert encoded.traffic.payload_bytes == 2 + 40 * 65
    in_frames = encode_block(header, rounded, codec="grid8", max_frame_bytes=7 * rows[0].nbytes)
    assert in_frames.traffic.payload_bytes == 6 * 2 + 40 * 65
    for block in (encoded, in_frames, encode_block(header, rows, codec="grid8")):
        read = decode_block(header, b"".join(block.frames))
        assert read is not None
        expected = rows if block.traffic.payload_bytes > 40 * 64 * 2 else rounded
        np.testing.assert_array_equal(to_dense(read[0]), expected)
    # Sparse rows are shorter without their zeros.
    rounded[:, 1:] = 0
    sparse = encode_block(header, rounded, codec="grid8").traffic.payload_bytes
    assert sparse < 40 * 8


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (bytes(6), "6 bytes, expected 7"),
        (b"\x7f\x00" + bytes(5), "exponent 127 of a grid, expected -104 to 126"),
        (b"\x97\xff" + bytes(5), "exponent -105 of a grid"),
        (b"\x00\x00\x13" + bytes(4), "shift 19 on its grid, expected at most 18"),
        (b"\x00\x00\xff" + bytes(4), "shift 127 on its grid, expected at most 18"),
    ],
)
def test_bytes_that_are_no_rows_are_refused(data: bytes, told: str) -> None:
    with pytest.raises(RemoteProtocolError, match=told):
        decode_grid(np.frombuffer(data, np.uint8), num_rows=1, width=4, dtype="float32")
