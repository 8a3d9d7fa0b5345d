"""How the server makes one update of all clients' updates."""

from __future__ import annotations

import numpy as np

from retexo_fl.federation.aggregators import EachUpdate


class EqualClients(EachUpdate):
    """The mean of the clients' updates: a small branch counts as much as a large one."""

    def combine(self, updates: list[np.ndarray]) -> np.ndarray:
        """Return the update of a round."""
        finite = [update for update in updates if np.isfinite(update).all()]
        mean: np.ndarray = np.mean(finite or [np.zeros_like(updates[0])], axis=0)
        return mean
