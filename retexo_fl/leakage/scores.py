"""How well an attack does: areas under curves, and what is found at a few false alarms."""

from __future__ import annotations

from typing import Final

import numpy as np
from scipy.stats import rankdata

#: False alarms at which "found" is counted.
FALSE_ALARMS: Final = 0.01


def auc(true: np.ndarray, false: np.ndarray) -> float:
    """Return the chance that a true candidate scores above a false one, half of it where equal.

    Args:
        true: (n,) scores of what is there, at least one.
        false: (m,) scores of what is not, at least one.
    """
    ranks = rankdata(np.concatenate([true, false]))
    n, m = len(true), len(false)
    return float((ranks[:n].sum() - n * (n + 1) / 2) / (n * m))


def found_at_few_alarms(true: np.ndarray, false: np.ndarray) -> float:
    """Return the share of true candidates that score above all but 1 % of the false ones."""
    return float(np.mean(true > np.quantile(false, 1 - FALSE_ALARMS, method="higher")))


def precision_at(true: np.ndarray, false: np.ndarray, *, times: float) -> float:
    """Return how many are right among as many best candidates as there are true ones.

    Args:
        true: (n,) scores of what is there: all of it.
        false: (m,) scores of some of what is not, drawn uniformly.
        times: How many false candidates each of these represents.
    """
    # Of equal scores false ones come first.
    scores = np.concatenate([false, true])
    stands_for = np.concatenate([np.full(len(false), times), np.ones(len(true))])
    order = np.argsort(-scores, kind="stable")
    chosen = np.cumsum(stands_for[order]) <= len(true)
    # At least the first is looked at, even where it represents many.
    chosen[0] = True
    kept = order[chosen]
    right = np.count_nonzero(kept >= len(false))
    return float(right / stands_for[kept].sum())


def cosines(rows: np.ndarray, direction: np.ndarray) -> np.ndarray:
    """Return the (n,) cosines of (n, D) rows with a (D,) direction; 0 of what has no length."""
    lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(direction)
    products = rows @ direction
    found = np.divide(products, lengths, out=np.zeros(len(rows)), where=lengths > 0)
    clipped: np.ndarray = np.clip(found, -1.0, 1.0)
    return clipped
