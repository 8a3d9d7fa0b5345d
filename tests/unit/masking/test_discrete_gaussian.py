"""The discrete Gaussian distribution is drawn from exactly."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import chisquare, kstest, norm

from retexo_fl.masking import discrete_gaussian as module
from retexo_fl.masking.discrete_gaussian import discrete_gaussian, is_below

DRAWS = 1_000_000


def probabilities(variance: int, most: int) -> np.ndarray:
    weights = np.exp(-np.square(np.arange(-most, most + 1.0)) / (2 * variance))
    return np.asarray(weights / weights.sum())


@pytest.mark.parametrize("variance", [1, 2, 17])
def test_a_million_draws_have_the_frequencies_of_the_definition(variance: int) -> None:
    drawn = discrete_gaussian(DRAWS, variance, b"a" * 32)
    most = math.ceil(9 * math.sqrt(variance))
    expected = probabilities(variance, most) * DRAWS
    found = np.bincount(drawn + most, minlength=2 * most + 1)
    often = expected > 20
    rest = DRAWS - found[often].sum(), DRAWS - expected[often].sum()
    observed, awaited = np.append(found[often], rest[0]), np.append(expected[often], rest[1])
    assert chisquare(observed, awaited).pvalue > 1e-3


@pytest.mark.parametrize("deviation", [1_000, 2**20, 2**33 + 1])
def test_wide_ones_have_variance_shape_and_low_bits_of_the_definition(deviation: int) -> None:
    drawn = discrete_gaussian(DRAWS, deviation**2, b"b" * 32)
    # The variance of a sample variance is 2 / n.
    assert drawn.var() / deviation**2 == pytest.approx(1, abs=4 * math.sqrt(2 / DRAWS))
    assert abs(drawn.mean()) / deviation < 4 / math.sqrt(DRAWS)
    spread = drawn + np.random.default_rng(0).uniform(-0.5, 0.5, DRAWS)
    assert kstest(spread / deviation, norm.cdf).pvalue > 1e-3
    assert chisquare(np.bincount(drawn % 16)).pvalue > 1e-3


def test_what_is_too_close_to_tell_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    # Now all of it is.
    monkeypatch.setattr(module, "_DOUBT", 2.0)
    few = 3_000
    drawn = discrete_gaussian(few, 4, b"c" * 32)
    found = np.bincount(np.clip(drawn, -5, 5) + 5)
    expected = probabilities(4, 40)
    expected = np.array([expected[:36].sum(), *expected[36:45], expected[45:].sum()])
    assert chisquare(found, expected * few).pvalue > 1e-3


def test_a_comparison_sees_the_last_of_many_digits() -> None:
    # exp(-1) in words of 64 bits.
    words = [0x5E2D58D8B3BCDF1A, 0xBADEC7829054F90D, 0xDA9805AAB56C7733, 0x3024B9D0A507DAED]
    assert not is_below([*words[:3], words[3] + 1], Fraction(1))
    assert is_below(words, Fraction(1))
    assert is_below([2**64 - 1] * 4, Fraction(0))


def test_draws_follow_from_the_seed() -> None:
    one, other = (discrete_gaussian(99, 10**6, seed * 32) for seed in (b"d", b"e"))
    assert np.array_equal(one, discrete_gaussian(99, 10**6, b"d" * 32))
    assert not np.array_equal(one, other)
    assert len(discrete_gaussian(0, 1, b"d" * 32)) == 0
