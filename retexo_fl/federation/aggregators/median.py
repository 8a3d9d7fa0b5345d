"""The median of each coordinate."""

from __future__ import annotations

import numpy as np

from retexo_fl.federation.aggregators.base import CoordinateWise


class Median(CoordinateWise):
    """In each coordinate the median of the clients' mean updates.

    Holds as long as fewer than half of the clients lie. With rare input features it is zero where
    most clients have no example of a feature, so that such weights are hardly trained.

    Source: Yin, Chen, Ramchandran and Bartlett, ICML 2018, definition 1.
    """

    def combine_sorted(self, values: np.ndarray) -> np.ndarray:
        """See :class:`~retexo_fl.federation.aggregators.base.CoordinateWise`."""
        clients = len(values)
        middle: np.ndarray = (values[(clients - 1) // 2] + values[clients // 2]) / 2
        return middle
