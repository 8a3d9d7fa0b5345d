"""Rows in few bits: what they are on average, at most, on the wire, and refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from retexo_fl.errors import LocalProtocolError, RemoteProtocolError
from retexo_fl.exchange import BlockHeader, decode_block, encode_block
from retexo_fl.exchange.levels import (
    BITS,
    count_nonzero_levels,
    decode_levels,
    decode_nonzero_levels,
    level_bytes,
    level_table,
    nonzero_level_bytes,
    nonzero_levels,
)
from retexo_fl.exchange.vectors import to_dense

RNG = np.random.default_rng(0)


def decoded(rows: np.ndarray, bits: int) -> np.ndarray:
    coded = level_table(rows, bits).reshape(-1)
    n, w = rows.shape
    return decode_levels(coded, num_rows=n, width=w, bits=bits, dtype=str(rows.dtype))


def without_zeros(rows: np.ndarray, bits: int) -> np.ndarray:
    n, w = rows.shape
    table = level_table(rows, bits)
    coded = np.frombuffer(nonzero_levels(table, width=w, bits=bits), np.uint8)
    nonzeros = int(count_nonzero_levels(table, width=w, bits=bits).sum())
    assert coded.size == nonzero_level_bytes(n, w, bits, nonzeros)
    return decode_nonzero_levels(coded, num_rows=n, width=w, bits=bits, dtype=str(rows.dtype))


def most(rows: np.ndarray, bits: int) -> np.ndarray:
    is_signed = np.any(rows < 0, axis=1)
    found: np.ndarray = np.where(is_signed, 2 ** (bits - 1) - 1, 2**bits - 1)[:, None]
    return found


ROWS = arrays(
    st.sampled_from([np.float32, np.float64]),
    array_shapes(min_dims=2, max_dims=2, max_side=9),
    elements=st.floats(-(2.0**100), 2.0**100, width=32),
)


@given(rows=ROWS, bits=st.sampled_from(BITS))
def test_a_value_is_off_by_less_than_a_level(rows: np.ndarray, bits: int) -> None:
    found = decoded(rows, bits)
    assert (found.shape, found.dtype) == (rows.shape, rows.dtype)
    largest = np.abs(rows).max(axis=1, initial=0)[:, None].astype(float)
    # The scale is the largest value, rounded up to eight bits, and no subnormal.
    level = (largest * (1 + 2.0**-6) + 2.0**-120) / most(rows, bits)
    assert (np.abs(found.astype(float) - rows) <= level).all()
    assert ((found >= 0) | np.any(rows < 0, axis=1)[:, None]).all()
    np.testing.assert_array_equal(found[largest[:, 0] == 0], 0.0)


@given(rows=ROWS, mask=arrays(np.bool_, (9, 9)), bits=st.sampled_from(BITS))
def test_rows_are_the_same_without_their_zeros(
    rows: np.ndarray, mask: np.ndarray, bits: int
) -> None:
    n, w = rows.shape
    rows = np.where(mask[:n, :w], rows, rows.dtype.type(0))
    np.testing.assert_array_equal(without_zeros(rows, bits), decoded(rows, bits))


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("least", [-1.0, 0.0])
def test_the_mean_of_many_draws_is_the_row(bits: int, least: float) -> None:
    # What is drawn follows from the row: a last value that differs makes it another row.
    row = np.append(RNG.uniform(least, 1, 6), 1.0)
    many = np.tile(row, (100_000, 1))
    many[:, 5] *= RNG.uniform(0.99, 1.0, len(many))
    error = (decoded(many, bits) - many)[:, :5].mean(axis=0)
    level = 1.0 / most(many[:1], bits)[0, 0]
    np.testing.assert_allclose(error, 0.0, atol=6 * level / np.sqrt(len(many)))


@pytest.mark.parametrize("bits", BITS)
def test_the_same_row_is_the_same_beside_any_other(bits: int) -> None:
    rows = RNG.normal(size=(5, 11)).astype(np.float32)
    whole = decoded(rows, bits)
    np.testing.assert_array_equal(decoded(rows[3:4], bits)[0], whole[3])
    np.testing.assert_array_equal(decoded(rows[::-1].copy(), bits), whole[::-1])


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("least", [-9.0, 0.0], ids=["any rows", "hidden rows"])
def test_a_block_takes_so_many_bits_and_comes_back(bits: int, least: float) -> None:
    rows = np.maximum(RNG.normal(size=(40, 64)), least).astype(np.float32)
    rows[:, 0] = 4.0 if least else 0.5
    header = BlockHeader(
        job="job-0123456789ab",
        layer=1,
        weights_digest=bytes(32),
        sender=0,
        receiver=1,
        num_edges=90,
        num_vectors=40,
        width=64,
        dtype="float32",
        plan_digest=bytes(32),
    )
    encoded = encode_block(header, rows, codec=f"levels{bits}")
    nonzeros = int(np.count_nonzero(decoded(rows, bits)))
    levels, without = level_bytes(40, 64, bits), nonzero_level_bytes(40, 64, bits, nonzeros)
    assert (levels, without) == (40 * (2 + 8 * bits), 40 * 10 + -(-nonzeros * bits // 8))
    is_shorter = not least or bits == 2
    assert encoded.traffic.payload_bytes == (without if is_shorter else levels)
    # Frames hold what fits them as an array, so zeros do not make them sparse rows.
    narrow = encode_block(header, rows, codec=f"levels{bits}", max_frame_bytes=7 * rows[0].nbytes)
    assert len(narrow.frames) == 8
    assert encoded.traffic.raw_bytes == rows.nbytes
    for made in (encoded, narrow):
        found = decode_block(header, b"".join(made.frames))
        assert found is not None
        np.testing.assert_array_equal(to_dense(found[0]), decoded(rows, bits))
    # Sparse rows are shorter without loss.
    words = (RNG.random((40, 64)) < 0.02).astype(np.float32)
    exact = decode_block(header, b"".join(encode_block(header, words, codec="levels8").frames))
    assert exact is not None
    np.testing.assert_array_equal(exact[0].toarray(), words)  # type: ignore[union-attr]


def test_what_float32_cannot_hold_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match=r"1e\+300; expected what float32 holds"):
        level_table(np.array([[1e300]]), 8)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (bytes(5), "5 bytes, expected 6"),
        (b"\x80\x7f\x00\x00\x00\x00", "NaN or infinity"),
        (b"\xc0\xff\x00\x00\x00\x00", "NaN or infinity"),
        (b"\x80\xbf\xff\x00\x00\x00", "above the highest"),
    ],
)
def test_levels_that_are_none_are_refused(data: bytes, told: str) -> None:
    with pytest.raises(RemoteProtocolError, match=told):
        decode_levels(np.frombuffer(data, np.uint8), num_rows=1, width=4, bits=8, dtype="float32")


#: Of two rows: scales of 1, the second with negative values; then places, numbers of 4 bits.
SCALES = b"\x80\x3f\x80\xbf"


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (SCALES + b"\x03", "5 bytes, expected 6 at least"),
        (SCALES + b"\x03\x04\x12", "7 bytes, expected 8"),
        (SCALES + b"\x03\x04\x12\x30\x00", "9 bytes, expected 8"),
        (SCALES + b"\x03\x14\x12\x30", "beyond column 3"),
        (SCALES + b"\x03\x04\x12\x31", "behind the last level"),
        (SCALES + b"\x03\x04\x10\x30", "stands for 0"),
        (SCALES + b"\x03\x04\x12\x70", "stands for 0"),
        (SCALES + b"\x03\x04\x12\xf0", "above the highest"),
        (b"\x80\x7f" + SCALES[2:] + b"\x03\x04\x12\x30", "NaN or infinity"),
    ],
)
def test_levels_without_zeros_that_are_none_are_refused(data: bytes, told: str) -> None:
    shape = {"num_rows": 2, "width": 4, "bits": 4}
    sound = np.frombuffer(SCALES + b"\x03\x04\x12\x30", np.uint8)
    found = decode_nonzero_levels(sound, **shape, dtype="float64")
    np.testing.assert_allclose(found, [[1 / 15, 2 / 15, 0, 0], [0, 0, -4 / 7, 0]])
    with pytest.raises(RemoteProtocolError, match=told):
        decode_nonzero_levels(np.frombuffer(data, np.uint8), **shape, dtype="float64")
