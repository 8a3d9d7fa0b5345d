"""Exact sums: the mean and deviation of the numbers, whatever their order, size or split."""

from __future__ import annotations

import math
import statistics
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retexo_fl.graph.recipes.moments import Moments, signed_logarithms

NUMBERS = st.lists(
    st.floats(allow_nan=False, allow_infinity=False, width=64, min_value=-1e300, max_value=1e300)
)


@given(NUMBERS, st.integers(0, 100), st.randoms(use_true_random=False))
def test_moments_of_any_split_and_order_are_those_of_fractions(
    numbers: list[float], cut: int, random: object
) -> None:
    shuffled = sorted(numbers, key=lambda _: random.random())  # type: ignore[attr-defined]
    parts = (np.array(shuffled[:cut]), np.array(shuffled[cut:]))
    moments = Moments.of(parts[0]) + Moments.of(parts[1])
    assert moments.count == len(numbers)
    assert moments.total == sum(map(Fraction, numbers), Fraction())
    assert moments.squares == sum((Fraction(number) ** 2 for number in numbers), Fraction())


def test_small_numbers_beside_large_ones_are_not_lost() -> None:
    moments = Moments.of(np.array([1e16, 1.0, -1e16, 1.0, 2.5e-308]))
    assert moments.total == 2 + Fraction(2.5e-308)
    assert moments.mean == 0.4


def test_mean_and_deviation_are_those_of_the_population() -> None:
    numbers = np.random.default_rng(0).normal(1e6, 1e-3, 1000)
    moments = Moments.of(numbers)
    exact = [Fraction(number) for number in numbers.tolist()]
    assert moments.mean == float(statistics.mean(exact))
    assert moments.deviation == pytest.approx(
        math.sqrt(float(statistics.pvariance(exact))), rel=1e-15
    )
    assert Moments.of(np.array([3.1, 3.1, 3.1])).deviation == 0
    assert (Moments().mean, Moments().deviation) == (0, 0)


def test_signed_logarithms_keep_zero_and_sign() -> None:
    found = signed_logarithms(np.array([0.0, math.e - 1, 1 - math.e, 1e300, np.nan]))
    assert found[:3].tolist() == pytest.approx([0, 1, -1])
    assert found[3] == math.log1p(1e300)
    assert np.isnan(found[4])
