from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from retexo_fl.errors import LocalProtocolError, TrainingDiverged
from retexo_fl.exchange.fixed_point import (
    MAX_BITS,
    MAX_CONTRIBUTORS,
    MAX_EXPONENT,
    MIN_EXPONENT,
    error_bound,
    exponent_for,
    snap,
    unsnap,
)

FLOAT32_MAX = float(np.finfo(np.float32).max)
magnitudes = st.floats(0, FLOAT32_MAX, allow_subnormal=True)
float32_arrays = arrays(
    np.float32,
    st.integers(1, 30),
    elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
)
moderate_arrays = arrays(np.float32, 3, elements=st.floats(-100, 100, width=32))


@given(magnitudes)
def test_exponent_is_the_largest_that_fits(max_abs: float) -> None:
    exponent = exponent_for(max_abs)
    assert MIN_EXPONENT <= exponent <= MAX_EXPONENT
    assert round(Fraction(max_abs) * Fraction(2) ** exponent) <= 2**MAX_BITS
    if max_abs and exponent < MAX_EXPONENT:
        assert round(Fraction(max_abs) * Fraction(2) ** (exponent + 1)) > 2**MAX_BITS


@pytest.mark.parametrize(
    ("max_abs", "exponent"),
    [
        (0.0, 0),
        (1.0, 24),
        (1.0 + 2.0**-23, 23),
        (0.999, 24),
        (math.nextafter(1.0, 2.0), 24),  # Rounds to 2**24 steps.
        (3.0, 22),
        (2.0**24, 0),
        (FLOAT32_MAX, MIN_EXPONENT),
        (5e-324, MAX_EXPONENT),
    ],
)
def test_exponents_of_known_magnitudes(max_abs: float, exponent: int) -> None:
    assert exponent_for(max_abs) == exponent


@pytest.mark.parametrize("max_abs", [math.nan, math.inf, -1.0, math.nextafter(FLOAT32_MAX, 1e300)])
def test_magnitudes_that_no_float32_has_are_refused(max_abs: float) -> None:
    with pytest.raises(TrainingDiverged, match="largest magnitude to be sent is"):
        exponent_for(max_abs)


@given(float32_arrays)
def test_snapping_is_within_the_bound_and_exact_in_float32(values: np.ndarray) -> None:
    exponent = exponent_for(float(np.abs(values).max()))
    steps = snap(values, exponent)
    assert steps.dtype == np.int32
    assert int(np.abs(steps).max()) <= 2**MAX_BITS
    exact = [Fraction(int(step)) / Fraction(2) ** exponent for step in steps]
    restored = unsnap(steps, exponent, np.float32)
    assert restored.dtype == np.float32
    assert [Fraction(float(value)) for value in restored] == exact
    bound = Fraction(error_bound(exponent))
    for value, snapped in zip(values, exact, strict=True):
        assert abs(Fraction(float(value)) - snapped) <= bound
    np.testing.assert_array_equal(snap(restored, exponent), steps)
    np.testing.assert_array_equal(snap(values.astype(np.float64), exponent), steps)


def test_halves_round_to_even() -> None:
    values = np.array([0.5, 1.5, 2.5, -0.5, -1.5], dtype=np.float32)
    assert snap(values, 0).tolist() == [0, 2, 2, 0, -2]


def test_as_many_contributors_as_allowed_never_overflow() -> None:
    largest = np.array([1.0, -1.0], dtype=np.float32)
    steps = snap(largest, exponent_for(1.0))
    total = np.zeros(2, dtype=np.int32)
    for _ in range(MAX_CONTRIBUTORS):
        total += steps
    assert total.tolist() == [127 * 2**24, -127 * 2**24]
    assert unsnap(total, 24, np.float32).tolist() == [127.0, -127.0]
    assert np.iinfo(np.int32).max < (MAX_CONTRIBUTORS + 1) * 2**MAX_BITS


@given(st.lists(moderate_arrays, min_size=1, max_size=8))
def test_sums_are_within_the_bound_and_do_not_depend_on_order(parts: list[np.ndarray]) -> None:
    exponent = exponent_for(100.0)
    steps = [snap(part, exponent) for part in parts]
    total = np.asarray(np.sum(steps, axis=0, dtype=np.int32))
    np.testing.assert_array_equal(np.sum(steps[::-1], axis=0, dtype=np.int32), total)
    exact = np.sum(np.array(parts, dtype=np.float64), axis=0)
    assert (np.abs(unsnap(total, exponent, np.float64) - exact) <= error_bound(exponent, 8)).all()


@given(st.integers(-(2**31), 2**31 - 1), st.integers(MIN_EXPONENT + 8, MAX_EXPONENT))
def test_a_sum_is_rounded_once(total: int, exponent: int) -> None:
    rounded = unsnap(np.array([total], dtype=np.int32), exponent, np.float32)
    exact = unsnap(np.array([total], dtype=np.int32), exponent, np.float64)
    assert Fraction(float(exact[0])) == Fraction(total) / Fraction(2) ** exponent
    assert rounded[0] == exact.astype(np.float32)[0]


def test_a_grid_too_fine_is_refused() -> None:
    values = np.array([1.0], dtype=np.float32)
    with pytest.raises(LocalProtocolError, match="exponent 25 is too large .* 1, .* 24"):
        snap(values, 25)
    with pytest.raises(LocalProtocolError, match="exponent 127 is out of range"):
        snap(values, 127)
    with pytest.raises(LocalProtocolError, match="exponent -105 is out of range"):
        unsnap(np.array([1], dtype=np.int32), -105, np.float32)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_refused(value: float) -> None:
    with pytest.raises(TrainingDiverged, match="not finite"):
        snap(np.array([0.0, value], dtype=np.float32), 0)


def test_nothing_snaps_to_nothing() -> None:
    empty = np.zeros((0, 4), dtype=np.float32)
    assert snap(empty, 3).shape == (0, 4)
