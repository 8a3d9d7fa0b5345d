"""Rows in few bits: what they are on average, at most, on the wire, and refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from retexo_fl.errors import LocalProtocolError, RemoteProtocolError
from retexo_fl.exchange import BlockHeader, decode_block, encode_block
from retexo_fl.exchange.levels import BITS, decode_levels, encode_levels, level_bytes

RNG = np.random.default_rng(0)


def decoded(rows: np.ndarray, bits: int) -> np.ndarray:
    coded = np.frombuffer(encode_levels(rows, bits), np.uint8)
    n, w = rows.shape
    return decode_levels(coded, num_rows=n, width=w, bits=bits, dtype=str(rows.dtype))


def most(rows: np.ndarray, bits: int) -> np.ndarray:
    is_signed = np.any(rows < 0, axis=1)
    found: np.ndarray = np.where(is_signed, 2 ** (bits - 1) - 1, 2**bits - 1)[:, None]
    return found


@given(
    rows=arrays(
        st.sampled_from([np.float32, np.float64]),
        array_shapes(min_dims=2, max_dims=2, max_side=9),
        elements=st.floats(-(2.0**100), 2.0**100, width=32),
    ),
    bits=st.sampled_from(BITS),
)
def test_a_value_is_off_by_less_than_a_level(rows: np.ndarray, bits: int) -> None:
    found = decoded(rows, bits)
    assert (found.shape, found.dtype) == (rows.shape, rows.dtype)
    largest = np.abs(rows).max(axis=1, initial=0)[:, None].astype(float)
    # The scale is the largest value, rounded up to eight bits, and no subnormal.
    level = (largest * (1 + 2.0**-6) + 2.0**-120) / most(rows, bits)
    assert (np.abs(found.astype(float) - rows) <= level).all()
    assert ((found >= 0) | np.any(rows < 0, axis=1)[:, None]).all()
    np.testing.assert_array_equal(found[largest[:, 0] == 0], 0.0)


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
def test_a_block_takes_so_many_bits_and_comes_back(bits: int) -> None:
    rows = np.maximum(RNG.normal(size=(40, 64)), 0).astype(np.float32)
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
    assert encoded.traffic.payload_bytes == level_bytes(40, 64, bits) == 40 * (2 + 8 * bits)
    # Frames hold what fits them as an array, so zeros do not make them sparse rows.
    narrow = encode_block(header, rows, codec=f"levels{bits}", max_frame_bytes=7 * rows[0].nbytes)
    assert narrow.traffic.payload_bytes == level_bytes(40, 64, bits)
    assert encoded.traffic.raw_bytes == rows.nbytes
    found = decode_block(header, b"".join(encoded.frames))
    assert found is not None
    np.testing.assert_array_equal(found[0], decoded(rows, bits))
    # Sparse rows are shorter without loss.
    words = (RNG.random((40, 64)) < 0.02).astype(np.float32)
    exact = decode_block(header, b"".join(encode_block(header, words, codec="levels8").frames))
    assert exact is not None
    np.testing.assert_array_equal(exact[0].toarray(), words)  # type: ignore[union-attr]


def test_what_float32_cannot_hold_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match=r"1e\+300; expected what float32 holds"):
        encode_levels(np.array([[1e300]]), 8)


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
