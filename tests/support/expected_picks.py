"""What the kernels of Global Neighbor Sampling do on average, integrated exactly."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from retexo_fl.additions.devices.sampling.gns_picks import _pick_by_weight, split_picks


def expected_scales(weights: np.ndarray, count: int) -> np.ndarray:
    """Return the (n,) mean scale of each of n weighted items of which ``count`` are picked.

    Which are picked changes only at starts where an item ends, so the mean is a sum over pieces.
    """
    uncertain, left = _uncertain(weights, count)
    ends = np.cumsum(weights[uncertain])
    starts = (ends * left / ends[-1]) % 1 if left else ends[:0]
    bounds = np.unique(np.concatenate([[0.0, 1.0], starts]))
    found = np.zeros(len(weights))
    picked, scales = np.empty(count, np.int64), np.empty(count, np.float32)
    marks = np.zeros(len(weights), np.uint8)
    for low, high in pairwise(bounds):
        _pick_by_weight(weights, (low + high) / 2, marks, picked, scales)
        found[picked] += (high - low) * scales
    return found


def _uncertain(weights: np.ndarray, count: int) -> tuple[list[int], int]:
    """Return the items that are not picked for certain, and how many of them are picked."""
    rest = sorted(range(len(weights)), key=lambda item: weights[item])
    while count and rest and weights[rest[-1]] * count >= weights[rest].sum():
        rest.pop()
        count -= 1
    return sorted(rest), count


def expected_given_cache(
    neighbours: np.ndarray,
    cached: np.ndarray,
    chances: np.ndarray,
    fanout: int,
    enough: float,
    *,
    at_input: bool,
) -> np.ndarray:
    """Return the (d,) mean scale of each neighbour of one target, given which are cached.

    Args:
        neighbours: (d,) ids.
        cached: (d,) bool.
        chances: (N,) of being cached.
        fanout: Of the layer.
        enough: Effective cached neighbours from which on no others are picked.
        at_input: The layer is the first.
    """
    degree, pi = len(neighbours), chances[neighbours]
    with np.errstate(divide="ignore"):
        effective = degree**2 / (1 / pi).sum()
    split = (np.empty(1), np.empty(1, np.int64), np.empty(1, np.int64))
    indptr = np.array([0, cached.sum()])
    split_picks(
        (np.zeros(1, np.int64), np.array([degree])),
        (indptr, np.array([effective])),
        fanout,
        enough,
        at_input,
        split,
    )
    alpha, from_cache, from_rest = (array[0] for array in split)
    mixed = np.maximum(alpha, pi)
    found = np.zeros(degree)
    if from_cache:
        found[cached] = expected_scales((mixed / pi)[cached], from_cache)
    if from_rest:
        found[~cached] = ((1 - mixed) / (1 - pi))[~cached]
    return found
