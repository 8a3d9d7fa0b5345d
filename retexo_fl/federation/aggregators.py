"""How updates of a round become one gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from retexo_fl.errors import PluginError, RemoteProtocolError
from retexo_fl.plugins import is_plugin, load_plugin


class Aggregator(Protocol):
    """Fed in client order, so that equal updates give equal bits.

    Attributes:
        needs: ``sum`` if the sum over clients is enough (what secure aggregation can give),
            ``each`` if single updates are looked at.
    """

    needs: Literal["sum", "each"]

    def start(self, size: int, dtype: str) -> None:
        """Begin a round of (size,) updates."""
        ...

    def add(self, client: int, gradient_sum: np.ndarray, count: int) -> None:
        """Add one client's (size,) gradient sum over ``count`` train nodes."""
        ...

    def finish(self) -> np.ndarray:
        """Return the (size,) gradient of the mean loss.

        Raises:
            RemoteProtocolError: No client has a train node.
        """
        ...


@dataclass(slots=True)
class WeightedMean:
    """The sum of all gradient sums divided by the number of all train nodes.

    Equal to the gradient of one client that holds every train node (RETEXO, section 3.1).
    """

    needs: Literal["sum", "each"] = "sum"

    def start(self, size: int, dtype: str) -> None:
        """See :class:`Aggregator`."""
        self._total = np.zeros(size, dtype=dtype)
        self._count = 0

    def add(self, client: int, gradient_sum: np.ndarray, count: int) -> None:
        """See :class:`Aggregator`."""
        if gradient_sum.shape != self._total.shape or gradient_sum.dtype != self._total.dtype:
            raise RemoteProtocolError(
                f"client {client}: got a {gradient_sum.dtype} update of shape "
                f"{gradient_sum.shape}; expected {self._total.dtype} of {self._total.shape}"
            )
        self._total += gradient_sum
        self._count += count

    def finish(self) -> np.ndarray:
        """See :class:`Aggregator`."""
        if self._count == 0:
            raise RemoteProtocolError("no client has a train node: there is nothing to average")
        self._total /= self._count
        return self._total

    _total: np.ndarray = None  # type: ignore[assignment]
    _count: int = 0


def make_aggregator(name: str) -> Aggregator:
    """Build the aggregator called ``name``: ``mean``, or ``module:attribute`` (a factory).

    Raises:
        PluginError: There is no such aggregator.
    """
    if name == "mean":
        return WeightedMean()
    factory = load_plugin("aggregator", name) if is_plugin(name) else None
    if not callable(factory):
        raise PluginError(
            f"aggregator {name!r}: expected mean, or module:attribute naming a factory"
        )
    found: Aggregator = factory()
    missing = [m for m in ("needs", "start", "add", "finish") if not hasattr(found, m)]
    if missing:
        raise PluginError(f"aggregator {name!r}: has no {', '.join(missing)}")
    return found
