from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import assume, given

from retexo_fl.errors import LocalProtocolError
from retexo_fl.exchange import (
    Vectors,
    encode_block,
    fixed_vectors,
    in_compact_form,
    to_csr,
    to_dense,
    wire_codec,
)
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
    assert [wire_codec(name) for name in ("lossless", "dense", "fixed")] == [
        "lossless",
        "dense",
        "lossless",
    ]
