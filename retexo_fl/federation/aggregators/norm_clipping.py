"""The mean of updates of limited length."""

from __future__ import annotations

import numpy as np

from retexo_fl.federation.aggregators.base import EachUpdate


class NormClipping(EachUpdate):
    """The mean of the clients' mean updates, those that are too long shortened to the limit.

    A lying client still pulls, but no harder than an honest one. Without a limit that is known
    beforehand, the limit is the median length of the round's updates.

    Source: Sun, Kairouz, Suresh and McMahan, "Can you really backdoor federated learning?", 2019,
    section 4. A quantile of the lengths as the limit: Andrew et al., NeurIPS 2021.
    """

    def __init__(self, norm: float | None) -> None:
        """Shorten to the Euclidean length ``norm``, above 0, or to the round's median length."""
        self._norm = norm

    def combine(self, updates: list[np.ndarray]) -> np.ndarray:
        """See :class:`~retexo_fl.federation.aggregators.base.EachUpdate`."""
        norms = np.array([_length(update) for update in updates])
        limit = float(np.median(norms)) if self._norm is None else self._norm
        result = np.zeros_like(updates[0])
        for update, norm in zip(updates, norms.tolist(), strict=True):
            if norm <= limit:
                result += update
            elif np.isfinite(norm):
                result += update * (limit / norm)
        result /= len(updates)
        return result


def _length(update: np.ndarray) -> float:
    """Return the Euclidean length, infinity for what has none."""
    length = float(np.sqrt(np.square(update, dtype=np.float64).sum()))
    return length if np.isfinite(length) else np.inf
