"""An aggregator between checks of what goes in and of what comes out."""

from __future__ import annotations

from typing import Literal

import numpy as np

from retexo_fl.errors import (
    ConfigurationError,
    PluginError,
    RemoteProtocolError,
    RoundIncomplete,
)
from retexo_fl.federation.aggregators.base import Aggregator, RoundFacts
from retexo_fl.units import counted
from retexo_fl.updates.zeros import Groups


class CheckedAggregator:
    """Checks what every aggregator may rely on, and what is expected of it; an aggregator itself.

    Clients without train nodes are left out here, unless it ``takes_uncounted`` updates.

    Attributes:
        needs: See :class:`Aggregator`.
        least_clients: How many clients with train nodes it needs.
    """

    needs: Literal["sum", "each"]

    def __init__(self, name: str, inner: Aggregator, *, takes_uncounted: bool = False) -> None:
        """Check what goes to and comes from ``inner``, which the configuration calls ``name``."""
        self._takes_uncounted = takes_uncounted
        self._name = name
        self._inner = inner
        self._add_groups = getattr(inner, "add_groups", None)
        self.least_clients: int = getattr(inner, "least_clients", 1)
        self.needs = inner.needs

    def check_clients(self, clients: int) -> None:
        """Check that so many clients with train nodes are enough, before any round.

        Raises:
            ConfigurationError: They are not.
        """
        if clients < self.least_clients:
            raise ConfigurationError(f"aggregator: {self._too_few(clients)}")

    def start(self, begun: RoundFacts) -> None:
        """See :class:`Aggregator`."""
        self._form = ((begun.size,), np.dtype(begun.dtype))
        self._clients = 0
        self._inner.start(begun)

    def add(self, client: int, update_sum: np.ndarray | Groups, count: int) -> None:
        """See :class:`Aggregator`; ``count`` may be 0 here.

        An aggregator with a method ``add_groups`` gets those as they are.

        Raises:
            RemoteProtocolError: The update is not of the shape or dtype of the round.
        """
        if (update_sum.shape, update_sum.dtype) != self._form:
            shape, dtype = self._form
            raise RemoteProtocolError(
                f"client {client}: got a {update_sum.dtype} update of shape "
                f"{update_sum.shape}; expected {dtype} of {shape}"
            )
        if count > 0 or self._takes_uncounted:
            self._clients += count > 0
            with np.errstate(over="ignore", invalid="ignore"):
                if not isinstance(update_sum, Groups):
                    self._inner.add(client, update_sum, count)
                elif self._add_groups is not None:
                    self._add_groups(client, update_sum, count)
                else:
                    self._inner.add(client, update_sum.dense(), count)

    def finish(self) -> np.ndarray:
        """Return the (P,) update of the round; it may be written to.

        Raises:
            RemoteProtocolError: No client has a train node.
            RoundIncomplete: Fewer clients with train nodes answered than the aggregator needs.
            PluginError: A plug-in returned something other than one such array.
        """
        if not self._clients:
            raise RemoteProtocolError("no client has a train node: there is nothing to average")
        if self._clients < self.least_clients:
            raise RoundIncomplete(self._too_few(self._clients))
        # What is not finite raises a named error after the optimizer's step, not a warning.
        with np.errstate(over="ignore", invalid="ignore"):
            result = self._inner.finish()
        shape, dtype = self._form
        if not isinstance(result, np.ndarray):
            raise PluginError(
                f"aggregator {self._name!r}: finish returned {type(result).__name__}; "
                f"expected an array of {dtype} and shape {shape}"
            )
        if (result.shape, result.dtype) != self._form:
            raise PluginError(
                f"aggregator {self._name!r}: finish returned {result.dtype} of shape "
                f"{result.shape}; expected {dtype} of shape {shape}"
            )
        return np.require(result, requirements=["C", "W"])

    def _too_few(self, clients: int) -> str:
        return (
            f"{self._name!r} needs updates of {counted(self.least_clients, 'client')} with "
            f"train nodes or more; got {clients}"
        )
