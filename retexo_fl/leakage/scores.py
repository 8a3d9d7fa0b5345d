"""How well an attack does: areas under curves, and what is found at a few false alarms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from scipy.stats import norm, rankdata

#: False alarms at which "found" is counted.
FALSE_ALARMS: Final = 0.01
#: How often a guess exceeds :func:`guess_limit`.
EXCEEDED: Final = 0.05
_DRAWS: Final = 999


def auc(true: np.ndarray, false: np.ndarray) -> float:
    """Return the chance that a true candidate scores above a false one, half of it where equal.

    Args:
        true: (n,) scores of what is there, at least one.
        false: (m,) scores of what is not, at least one.
    """
    ranks = rankdata(np.concatenate([true, false]))
    n, m = len(true), len(false)
    return float((ranks[:n].sum() - n * (n + 1) / 2) / (n * m))


def guess_limit(counts: Sequence[tuple[int, int]]) -> float:
    """Return what the mean of areas under curves exceeds by guessing in 5 of 100 cases, about.

    A guess orders n true and m false candidates at random. Its area then has the mean .5 and the
    variance (n + m + 1) / (12 n m), less where scores are equal; the mean over clients is taken as
    normal. Whether scores are good or bad has no part in it, nor how they depend on each other.

    Args:
        counts: By client, how many candidates are true and how many are false.

    Source: Mann and Whitney, Ann. Math. Stat. 18 (1947), section 4.
    """
    variance = sum((n + m + 1) / (12 * n * m) for n, m in counts) / len(counts) ** 2
    return min(1.0, 0.5 + float(norm.isf(EXCEEDED) * np.sqrt(variance)))


def drawn_limit(
    groups: Sequence[tuple[np.ndarray, np.ndarray]], generator: np.random.Generator
) -> float:
    """Return what the area over all groups together exceeds by guessing in 5 of 100 cases.

    A guess knows how many candidates of each group are true, and not which: drawn 999 times.

    Args:
        groups: Of each, (n,) scores of true and (m,) of false candidates; there are some of both.
        generator: Draws which are true.
    """
    sizes = [(len(true), len(true) + len(false)) for true, false in groups]
    ranks = rankdata(np.concatenate([np.concatenate(group) for group in groups]))
    pieces = np.split(ranks, np.cumsum([size for _, size in sizes])[:-1])
    num_true = sum(n for n, _ in sizes)
    sums = [
        sum(
            generator.permutation(piece)[:n].sum()
            for piece, (n, _) in zip(pieces, sizes, strict=True)
        )
        for _ in range(_DRAWS)
    ]
    least = num_true * (num_true + 1) / 2
    limit = np.quantile(sums, 1 - EXCEEDED, method="higher")
    return float((limit - least) / (num_true * (len(ranks) - num_true)))


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
