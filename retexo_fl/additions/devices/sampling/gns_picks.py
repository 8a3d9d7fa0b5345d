"""Kernels of Global Neighbor Sampling: how many picks are cached neighbours, and which."""

from __future__ import annotations

import numpy as np

from retexo_fl.additions.devices.sampling.compiled import compiled
from retexo_fl.additions.devices.sampling.keyed_random import below, unit
from retexo_fl.additions.devices.sampling.picking import pick_places


@compiled
def split_picks(  # noqa: PLR0917 - the draw, and what is written
    targets: tuple[np.ndarray, np.ndarray],
    cache: tuple[np.ndarray, np.ndarray],
    fanout: int,
    enough: float,
    spare_the_rest: bool,
    split: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> None:
    """Settle the mixture of each target, and how many cached and other neighbours it picks.

    Args:
        targets: (R,) ids and (R,) degrees.
        cache: Its ``indptr``, and the (N,) ``effective`` of its chances.
        fanout: Most picks of a target.
        enough: Effective cached neighbours from which on these alone are picked.
        spare_the_rest: A target with enough of them picks no other even if all would fit into the
            fanout.
        split: Where to write (R,) ``alpha``, and the picks among cached and among other
            neighbours.
    """
    ids, degrees = targets
    indptr, effective = cache
    alphas, from_cache, from_rest = split
    for row in range(len(ids)):
        node, degree = ids[row], degrees[row]
        cached = indptr[node + 1] - indptr[node]
        rest = degree - cached
        alpha = min(1.0, effective[node] / enough)
        if degree <= fanout and not (spare_the_rest and alpha == 1.0):
            alphas[row], from_cache[row], from_rest[row] = 0.0, cached, rest
        elif alpha == 1.0:
            alphas[row], from_cache[row], from_rest[row] = alpha, min(fanout, cached), 0
        else:
            others = min(rest, max(1, fanout - cached))
            alphas[row], from_rest[row] = alpha, others
            from_cache[row] = min(cached, fanout - others)


@compiled
def pick_mixed(  # noqa: PLR0913, PLR0917 - the graph, the cache, and what is written
    indices: np.ndarray,
    cache: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    chances: np.ndarray,
    targets: tuple[np.ndarray, np.ndarray, np.ndarray],
    split: tuple[np.ndarray, np.ndarray, np.ndarray],
    block_indptr: np.ndarray,
    key: np.uint64,
    marks: np.ndarray,
    picked: np.ndarray,
    scales: np.ndarray,
) -> None:
    """Pick the neighbours of each target, keyed by its id, and weigh them.

    Args:
        indices: Of the graph.
        cache: Its ``indptr``, ``places``, ``ids``, ``ends`` and ``heaviest``.
        chances: (N,) of all nodes.
        targets: (R,) ids, (R,) starts of their rows, (R,) degrees.
        split: As written by :func:`split_picks`.
        block_indptr: (R + 1,): where each target's picks are written.
        key: Above the targets' ids.
        marks: (largest degree,) uint8 zeros, zero again afterwards.
        picked: (E,) ids of the neighbours, dtype of ``indices``.
        scales: (E,) float32.
    """
    indptr, _, cached_ids, all_ends, heaviest = cache
    ids, _, degrees = targets
    alphas, from_cache, from_rest = split
    weights = np.empty(len(marks))
    for row in range(len(ids)):
        node, alpha = ids[row], alphas[row]
        cached = cached_ids[indptr[node] : indptr[node + 1]]
        first = block_indptr[row]
        middle = first + from_cache[row]
        own = below(key, node)
        ends = all_ends[indptr[node] : indptr[node + 1]]
        start = unit(below(own, 0))
        none_certain = middle > first and heaviest[node] * (middle - first) < ends[-1]
        if alpha == 1.0 and none_certain:
            _pick_by_ends(ends, start, picked[first:middle], scales[first:middle])
        else:
            for number in range(len(cached)):
                chance = chances[cached[number]]
                weights[number] = max(alpha, chance) / chance
            _pick_by_weight(
                weights[: len(cached)], start, marks, picked[first:middle], scales[first:middle]
            )
        rest = degrees[row] - len(cached)
        pick_places(below(own, 1), rest, from_rest[row], marks, picked, middle)
    # Reads of the graph wait for memory: apart from the draws, many of them wait together.
    _read_picks(indices, (indptr, cache[1], cached_ids), targets, split, block_indptr, picked)
    _weigh_rest(cache[0], chances, targets, split, block_indptr, picked, scales)


@compiled
def _read_picks(  # noqa: PLR0917 - the graph, the cache, and what is written
    indices: np.ndarray,
    cache: tuple[np.ndarray, np.ndarray, np.ndarray],
    targets: tuple[np.ndarray, np.ndarray, np.ndarray],
    split: tuple[np.ndarray, np.ndarray, np.ndarray],
    block_indptr: np.ndarray,
    picked: np.ndarray,
) -> None:
    """Replace numbers among a target's cached, and among its other neighbours, by ids."""
    indptr, places, cached_ids = cache
    ids, starts, _ = targets
    _, from_cache, _ = split
    for row in range(len(ids)):
        start, end = indptr[ids[row]], indptr[ids[row] + 1]
        middle = block_indptr[row] + from_cache[row]
        for edge in range(block_indptr[row], middle):
            picked[edge] = cached_ids[start + picked[edge]]
        for edge in range(middle, block_indptr[row + 1]):
            place = _place_of_rest(places[start:end], picked[edge])
            picked[edge] = indices[starts[row] + place]


@compiled
def _weigh_rest(  # noqa: PLR0917 - the cache, and what is written
    indptr: np.ndarray,
    chances: np.ndarray,
    targets: tuple[np.ndarray, np.ndarray, np.ndarray],
    split: tuple[np.ndarray, np.ndarray, np.ndarray],
    block_indptr: np.ndarray,
    picked: np.ndarray,
    scales: np.ndarray,
) -> None:
    """Scale the picks among neighbours that are not cached."""
    ids, _, degrees = targets
    alphas, _, from_rest = split
    for row in range(len(ids)):
        if from_rest[row]:
            rest = degrees[row] - (indptr[ids[row] + 1] - indptr[ids[row]])
            each = rest / from_rest[row]
            for edge in range(block_indptr[row + 1] - from_rest[row], block_indptr[row + 1]):
                chance = chances[picked[edge]]
                scales[edge] = (1.0 - max(alphas[row], chance)) / (1.0 - chance) * each


@compiled
def _pick_by_weight(
    weights: np.ndarray, start: float, marks: np.ndarray, picked: np.ndarray, scales: np.ndarray
) -> None:
    """Pick distinct ones of n weighted items, and scale them to the expected sum of all.

    Those whose weight is at least the mean weight of a pick are certain. The others are laid end
    to end by their weights, and picked where an evenly spaced row of points falls that begins at
    random: each with a probability proportional to its weight, so all get the same scale.

    Source: Madow, "On the theory of systematic sampling, II" (1949).

    Args:
        weights: (n,) above 0.
        start: Uniform in [0, 1): where the row of points begins.
        marks: (n or more,) uint8 zeros, zero again afterwards.
        picked: (c,) where to write the items, c at most n.
        scales: (c,) where to write their scales.
    """
    if len(picked) == len(weights):
        for item in range(len(weights)):
            picked[item], scales[item] = item, weights[item]
        return
    left, total, count = len(picked), weights.sum(), 0
    grown = left > 0
    while grown:
        grown = False
        for item in range(len(weights)):
            if left and not marks[item] and weights[item] * left >= total:
                marks[item], picked[count], scales[count] = 1, item, weights[item]
                total -= weights[item]
                left, count, grown = left - 1, count + 1, True
    step = total / max(left, 1)
    passed, point = 0.0, start * step
    spare = len(weights) - len(picked)
    for item in range(len(weights)):
        if marks[item]:
            marks[item] = 0
            continue
        passed += weights[item]
        # Rounding may let the last point fall behind the last item.
        if count < len(picked) and (passed > point or not spare):
            picked[count], scales[count] = item, step
            point += step
            count += 1
        else:
            spare -= 1


@compiled
def _pick_by_ends(ends: np.ndarray, start: float, picked: np.ndarray, scales: np.ndarray) -> None:
    """Do as :func:`_pick_by_weight` where no item is certain, in time O(c log n).

    Args:
        ends: (n,) running sum of the weights.
        start: See there.
        picked: (c,), c below n; see there.
        scales: (c,); see there.
    """
    step = ends[-1] / len(picked)
    point, low = start * step, 0
    for count in range(len(picked)):
        # As many items must be left as there are points.
        high = len(ends) - (len(picked) - count)
        while low < high:
            middle = (low + high) // 2
            if ends[middle] > point:
                high = middle
            else:
                low = middle + 1
        picked[count], scales[count] = low, step
        point += step
        low += 1


@compiled
def _place_of_rest(cached: np.ndarray, number: int) -> int:
    """Return the place of the uncached neighbour with ``number`` uncached ones before it."""
    low, high = 0, len(cached)
    while low < high:
        middle = (low + high) // 2
        if cached[middle] - middle <= number:
            low = middle + 1
        else:
            high = middle
    return number + low
