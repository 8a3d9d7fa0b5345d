"""Epsilon, delta and sigma of Gaussian noise: against integrals, and figures of other programs."""

from __future__ import annotations

import math

import pytest
from scipy.integrate import quad
from scipy.stats import norm

from retexo_fl.gaussian_privacy import NoisedReleases, delta_of, epsilon_of, mu_of


@pytest.mark.parametrize("mu", [0.05, 0.3, 1.0, 4.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0, 8.0])
def test_delta_is_the_integral_that_defines_it(mu: float, epsilon: float) -> None:
    def excess(x: float) -> float:
        return float(max(0.0, norm.pdf(x - mu) - math.exp(epsilon) * norm.pdf(x)))

    # It is positive from here on.
    begin = epsilon / mu + mu / 2
    expected, _ = quad(excess, begin, max(begin, mu) + 15, epsabs=1e-14, limit=200)
    assert delta_of(epsilon, mu) == pytest.approx(expected, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize(
    ("epsilon", "releases", "sigma"),
    # Found by a prototype that had dp-accounting 0.6.0 beside it.
    [(1.0, 1, 3.730), (4.0, 2, 1.53), (4.0, 400, 21.6)],
)
def test_sigma_is_what_another_program_found(epsilon: float, releases: int, sigma: float) -> None:
    noise = NoisedReleases(epsilon=epsilon, delta=1e-5, clip=1.0, count=releases)
    assert noise.sigma == pytest.approx(sigma, rel=2e-3)


@pytest.mark.parametrize("delta", [1e-12, 1e-5, 1e-2])
@pytest.mark.parametrize("epsilon", [0.01, 0.7, 3.0, 50.0, 100.0])
def test_one_follows_from_the_other(epsilon: float, delta: float) -> None:
    mu = mu_of(epsilon, delta)
    assert delta_of(epsilon, mu) == pytest.approx(delta, rel=1e-6)
    assert epsilon_of(mu, delta) == pytest.approx(epsilon, rel=1e-6)


def test_releases_together_are_what_was_promised() -> None:
    noise = NoisedReleases(epsilon=2.0, delta=1e-6, clip=0.5, count=60)
    assert epsilon_of(math.sqrt(60 * noise.mu_squared), 1e-6) == pytest.approx(2.0)
    assert epsilon_of(math.sqrt(61 * noise.mu_squared), 1e-6) > 2.0


def test_no_release_costs_nothing_and_too_many_everything() -> None:
    assert epsilon_of(0.0, 1e-5) == 0.0
    assert epsilon_of(100.0, 1e-5) == math.inf
