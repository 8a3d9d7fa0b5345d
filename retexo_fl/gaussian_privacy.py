"""What Gaussian noise promises: (epsilon, delta) of any number of releases, and back.

A release adds noise of standard deviation sigma to a sum that one contribution changes by at most 1
(in the Euclidean norm). Several, each chosen after the ones before, are together one release with

    mu**2 = sum of 1 / sigma**2,

and that is (epsilon, delta)-private with exactly

    delta = Phi(mu / 2 - epsilon / mu) - exp(epsilon) Phi(-mu / 2 - epsilon / mu).

Sources: Balle and Wang (ICML 2018), theorem 8; Dong, Roth and Su (2022), corollary 3.3.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Final

#: Larger ones promise nothing, and exp() of them would overflow.
MOST_EPSILON: Final = 100.0
#: Of noise that a run may have, in parts of what it hides.
MOST_SIGMA: Final = 2.0**13
_MOST_MU: Final = 2.0**10
_HALVINGS: Final = 200
#: Of train nodes times epsilon, below which noise was worse than no edges across (tables of
#: docs/measured/privacy.md): of updates, and of sums that a last layer is solved from.
_FEW_UPDATED: Final = 5_000
_FEW_SOLVED: Final = 3_000
_ROUNDING: Final = 1e-9


def delta_of(epsilon: float, mu: float) -> float:
    """Return the delta that belongs to an epsilon from 0 to :data:`MOST_EPSILON`."""
    if mu <= 0:
        return 0.0
    first, second = _phi(mu / 2 - epsilon / mu), _phi(-mu / 2 - epsilon / mu)
    return max(0.0, first - math.exp(epsilon) * second)


def epsilon_of(mu: float, delta: float) -> float:
    """Return the least epsilon that goes with a delta; infinite beyond :data:`MOST_EPSILON`."""
    if delta_of(MOST_EPSILON, mu) > delta:
        return math.inf
    low, high = 0.0, MOST_EPSILON
    if delta_of(0.0, mu) <= delta:
        return 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(middle, mu) > delta else (low, middle)
    return high


def is_within(epsilon: float, most: float) -> bool:
    """Return whether an epsilon is at most another one, but for what float64 loses."""
    return epsilon <= most * (1 + _ROUNDING)


@lru_cache(maxsize=16)
def mu_of(epsilon: float, delta: float) -> float:
    """Return the largest mu that an epsilon above 0 and a delta below 1 allow."""
    low, high = 0.0, _MOST_MU
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if delta_of(epsilon, middle) > delta else (middle, high)
    return low


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisedReleases:
    """What the noise of a training promises.

    Attributes:
        epsilon: Of all its releases together.
        delta: Likewise.
        clip: What one contribution changes a sum by at most, before it is rounded.
        count: How many releases there are at most.
        solves: They are sums of products, from which a last layer is solved; else updates.
    """

    epsilon: float
    delta: float
    clip: float
    count: int
    solves: bool = False

    @property
    def mu(self) -> float:
        """Of all releases together."""
        return mu_of(self.epsilon, self.delta)

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise of one release, in parts of what it hides."""
        return math.sqrt(self.count) / self.mu

    @property
    def mu_squared(self) -> float:
        """What one release adds to mu**2."""
        return self.sigma**-2

    def expected(self, train: int) -> str:
        """Return how the noise for so many train nodes compares with dropping edges across."""
        if train * self.epsilon >= (_FEW_SOLVED if self.solves else _FEW_UPDATED):
            return (
                "noise can still cost more accuracy than dropping all edges across, as it did on "
                "PubMed (docs/measured/privacy.md); train --algorithm drop, too, and compare both "
                "on validation nodes"
            )
        return (
            f"of {train} train nodes and an epsilon of {self.epsilon:g} expect less accuracy than "
            "without edges across (--algorithm drop)"
        )

    @property
    def facts(self) -> dict[str, float | str]:
        """The same as figures."""
        figures = {name: v for name, v in asdict(self).items() if name != "solves"}
        return {**figures, "sigma": self.sigma, "text": self.sentence}

    @property
    def sentence(self) -> str:
        """What is promised, of whom, and by how much noise."""
        what, release = ("products", "sum") if self.solves else ("loss", "update")
        return (
            f"each train node's own {what} {'have' if self.solves else 'has'} an epsilon of "
            f"{self.epsilon:g} with delta {self.delta:g} over at most {self.count} "
            f"{release}{'s' if self.count > 1 else ''}, by noise of {self.sigma:.4g} times the "
            f"clip {self.clip:g} in each; its row, and validation and test nodes, have none"
        )


def _phi(x: float) -> float:
    """Return the distribution function of the standard normal distribution."""
    return math.erfc(-x / math.sqrt(2)) / 2
