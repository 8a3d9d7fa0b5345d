"""How fast a cost grows: the exponent of a power law, fitted beyond a smallest point."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from scipy.stats import linregress

#: A point tells how fast a cost grows once at least this share of it is beyond the smallest's.
_LEAST_SHARE: Final = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """``cost - constant`` grows as ``(size - smallest) ** exponent``.

    What a smallest point costs is mostly what any point costs (imports, a graph that is the same
    for all), so the law is fitted to what is beyond it.

    Attributes:
        exponent: Slope of the line through the logarithms, by least squares.
        error: Its standard error; 0 of two points.
        steepest: The steepest slope between neighbouring points.
    """

    exponent: float
    error: float
    steepest: float

    @classmethod
    def of(cls, costs: Mapping[float, float]) -> Self | None:
        """Fit costs by size, the smallest size being the constant part.

        Returns:
            None where fewer than two points cost much more than the smallest.
        """
        beyond = beyond_smallest(costs)
        if len(beyond) < 2:
            return None
        x, y = (np.log(np.array(column)) for column in zip(*beyond, strict=True))
        line = linregress(x, y)
        steepest = max(np.diff(y) / np.diff(x))
        return cls(
            exponent=float(line.slope),
            error=float(line.stderr),
            steepest=float(steepest),
        )


def beyond_smallest(costs: Mapping[float, float]) -> list[tuple[float, float]]:
    """Return (size, cost) beyond the smallest size's, where that is a good part of the cost."""
    smallest = min(costs)
    return [
        (size - smallest, cost - costs[smallest])
        for size, cost in sorted(costs.items())
        if cost - costs[smallest] > _LEAST_SHARE * cost
    ]
