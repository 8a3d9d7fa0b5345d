"""Expected degrees that follow a power law, as a rule for drawing ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np

from retexo_fl.graph.sources.synthetic.spec import SyntheticSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerLaw:
    """Weights of n nodes in a row, from the largest to the smallest, without storing them.

    The node at the share q of the row has a weight in proportion to
    ``(cut + (1 - cut) q) ** (-1 / (power - 1))``, so that weights follow a Pareto law of the
    exponent ``power``, truncated at ``cut ** (-1 / (power - 1))`` times the smallest.

    Attributes:
        power: Exponent of the law.
        cut: From 0 (a law without end) to 1 (equal weights).
    """

    power: float
    cut: float

    @classmethod
    def of(cls, spec: SyntheticSpec) -> Self:
        """Return the law whose largest expected degree is the structural cut-off of a class.

        Beyond ``sqrt(m)``, m the ends of edges in the class, two hubs would be joined by more than
        one edge on average, which a simple graph cannot have.

        Source: Catanzaro, Boguñá, Pastor-Satorras, "Generation of uncorrelated random scale-free
        networks" (Physical Review E 71, 2005), section II.
        """
        mean = 2 * spec.edges / spec.nodes
        largest = math.sqrt(2 * spec.edges / spec.classes)
        return cls(power=spec.power, cut=_cut(spec.power, largest / mean))

    def ranks(self, uniform: np.ndarray, sizes: np.ndarray | int) -> np.ndarray:
        """Turn uniform numbers into places in a row, each as likely as its weight says.

        Args:
            uniform: [k] float64 from 0 to 1; used as scratch.
            sizes: Length of the row; one, or [k].

        Returns:
            [k] int32 from 0 (the largest weight).
        """
        if self.cut < 1:
            # Inverse of the weights' integral from the cut on.
            exponent = (self.power - 2) / (self.power - 1)
            low = self.cut**exponent
            uniform *= 1 - low
            uniform += low
            np.power(uniform, 1 / exponent, out=uniform)
            uniform -= self.cut
            uniform /= 1 - self.cut
        uniform *= sizes
        places = uniform.astype(np.int32)
        # Rounding may lead one past the end, or before the beginning.
        return np.clip(places, 0, np.asarray(sizes) - 1, out=places, casting="unsafe")


def _cut(power: float, largest_to_mean: float) -> float:
    """Return the cut at which the largest weight is so many times the mean, by bisection."""
    if largest_to_mean <= 1:
        return 1.0
    exponent = (power - 2) / (power - 1)

    def ratio(cut: float) -> float:
        mean = (1 - cut**exponent) / (exponent * (1 - cut))
        return float(cut ** (-1 / (power - 1)) / mean)

    low, high = 1e-15, 1 - 1e-9
    if ratio(low) <= largest_to_mean:
        return low
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if ratio(middle) < largest_to_mean else (middle, high)
    return math.sqrt(low * high)
