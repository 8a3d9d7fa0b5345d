"""Waits for vectors whichever way they come."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from retexo_fl.channels import BlockKey
from retexo_fl.channels.depot import BlockDepot
from retexo_fl.exchange.link.messages import Offer

if TYPE_CHECKING:
    # It loads numba, which agents that take no datagrams do without.
    from retexo_fl.additions.kernel_path.carrying.path import VectorPath


class VectorArrivals:
    """Waits for vectors whichever way they come.

    Args:
        depot: Has those that come as blocks.
        path: Has those that come as datagrams.
    """

    def __init__(self, depot: BlockDepot, path: VectorPath) -> None:
        self._depot = depot
        self._path = path

    def wait_for(self, keys: Collection[BlockKey], timeout_s: float) -> frozenset[BlockKey]:
        """Wait until all vectors are there or time is over; return those that are not.

        Raises:
            RetexoError: What went wrong with their exchange.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            # Before the look: what comes during it is not waited for.
            steps = self._path.steps
            by_datagrams = {key for key in keys if self._path.carries(key)}
            missing = self._path.missing(by_datagrams)
            missing |= self._depot.wait_for(set(keys) - by_datagrams, 0.0)
            left_s = deadline - time.monotonic()
            if not missing or left_s <= 0:
                return missing
            self._path.wait(left_s, since=steps)

    def offers(self, peer: int) -> Sequence[Offer]:
        """Return every block that a peer has not acknowledged."""
        return self._depot.offers(peer)
