"""The mean over all train nodes."""

from __future__ import annotations

from typing import Literal

import numpy as np

from retexo_fl.federation.aggregators.base import RoundFacts
from retexo_fl.updates.zeros import Groups


class WeightedMean:
    """The sum of all update sums divided by the number of all train nodes.

    Equal to the gradient of one client that holds every train node (RETEXO, section 3.1). One
    client alone can turn it anywhere.
    """

    needs: Literal["sum", "each"] = "sum"

    def start(self, begun: RoundFacts) -> None:
        """See :class:`~retexo_fl.federation.aggregators.Aggregator`."""
        self._total = np.zeros(begun.size, dtype=begun.dtype)
        self._count = 0

    def add(self, client: int, update_sum: np.ndarray, count: int) -> None:
        """See :class:`~retexo_fl.federation.aggregators.Aggregator`."""
        del client
        self._total += update_sum
        self._count += count

    def add_groups(self, client: int, update_sum: Groups, count: int) -> None:
        """Add one client's update that has few values other than zero; see :meth:`add`."""
        del client
        update_sum.add_to(self._total)
        self._count += count

    def finish(self) -> np.ndarray:
        """See :class:`~retexo_fl.federation.aggregators.Aggregator`."""
        self._total /= self._count
        return self._total
