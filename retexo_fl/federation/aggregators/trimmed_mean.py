"""The mean of each coordinate without its extremes."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from retexo_fl.federation.aggregators.base import CoordinateWise


class TrimmedMean(CoordinateWise):
    """In each coordinate the mean of the clients' mean updates without the extreme ones.

    Of n clients, ``floor(share * n)`` are left out at each end: so many may lie.

    Source: Yin, Chen, Ramchandran and Bartlett, ICML 2018, definition 2.
    """

    def __init__(self, share: Fraction) -> None:
        """Leave out ``share`` at each end, above 0 and below one half; exact, not a float."""
        self._share = share
        #: With fewer, no update would be left out.
        self.least_clients = math.ceil(1 / share)

    def combine_sorted(self, values: np.ndarray) -> np.ndarray:
        """See :class:`~retexo_fl.federation.aggregators.base.CoordinateWise`."""
        clients = len(values)
        cut = math.floor(self._share * clients)
        mean: np.ndarray = values[cut : clients - cut].mean(axis=0)
        return mean
