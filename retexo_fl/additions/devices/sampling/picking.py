"""Kernels that draw some of a node's neighbours, each set of that size with equal probability."""

from __future__ import annotations

from typing import Final

import numpy as np

from retexo_fl.additions.devices.sampling.compiled import compiled
from retexo_fl.additions.devices.sampling.keyed_random import advanced, below, bounded, mixed

#: Picks from which on marking those taken costs less than comparing with them.
_FEW: Final = 9


@compiled
def pick_places(  # noqa: PLR0917 - called for each node: a tuple would have to be made
    key: np.uint64, degree: int, fanout: int, marks: np.ndarray, places: np.ndarray, start: int
) -> int:
    """Write ``min(degree, fanout)`` distinct places of a row, in the order drawn.

    Source: Floyd's algorithm F2, in Bentley and Floyd, "A sample of brilliance" (1987).

    Args:
        key: What the draw is keyed by.
        degree: Length of the row.
        fanout: Most places to take; a row that is not longer is taken whole, in its order.
        marks: (degree or more,) uint8 zeros, zero again afterwards.
        places: Where to write, from ``start`` on.
        start: First index to write at.

    Returns:
        How many were written.
    """
    if degree <= fanout:
        for place in range(degree):
            places[start + place] = place
    elif fanout <= _FEW:
        _draw_few(key, degree, fanout, places, start)
    else:
        _draw_many(key, degree, fanout, marks, places, start)
    return min(degree, fanout)


@compiled
def _draw_few(key: np.uint64, degree: int, fanout: int, places: np.ndarray, start: int) -> None:
    """Compare each place with all before it."""
    for taken in range(fanout):
        last = degree - fanout + taken
        key = advanced(key)
        place = bounded(mixed(key), last + 1)
        is_taken = False
        for index in range(start, start + taken):
            is_taken |= places[index] == place
        places[start + taken] = last if is_taken else place


@compiled
def _draw_many(  # noqa: PLR0917 - see above
    key: np.uint64, degree: int, fanout: int, marks: np.ndarray, places: np.ndarray, start: int
) -> None:
    """Mark what is taken."""
    for taken in range(fanout):
        last = degree - fanout + taken
        key = advanced(key)
        place = bounded(mixed(key), last + 1)
        if marks[place]:
            place = last
        marks[place] = 1
        places[start + taken] = place
    for index in range(start, start + fanout):
        marks[places[index]] = 0


@compiled
def pick_neighbours(  # noqa: PLR0917 - what is read, the draw, and what is written
    indices: np.ndarray,
    targets: tuple[np.ndarray, np.ndarray, np.ndarray],
    block_indptr: np.ndarray,
    key: np.uint64,
    fanout: int,
    marks: np.ndarray,
    picked: np.ndarray,
) -> None:
    """Draw the neighbours of each target, keyed by its id.

    Args:
        indices: Of the graph.
        targets: (R,) ids, (R,) starts of their rows, (R,) degrees.
        block_indptr: (R + 1,): where each target's picks are written.
        key: Above the targets' ids.
        fanout: Most picks of a target.
        marks: See :func:`pick_places`.
        picked: (E,) ids of the neighbours, dtype of ``indices``.
    """
    ids, starts, degrees = targets
    for row in range(len(ids)):
        pick_places(below(key, ids[row]), degrees[row], fanout, marks, picked, block_indptr[row])
    # Reads of the graph wait for memory: apart from the draws, many of them wait together. They are
    # unsigned, since of a negative index it would be asked whether it is.
    for row in range(len(ids)):
        start = np.uint64(starts[row])
        for edge in range(np.uint64(block_indptr[row]), np.uint64(block_indptr[row + 1])):
            picked[edge] = indices[start + np.uint64(picked[edge])]


@compiled
def fill_scales(degrees: np.ndarray, block_indptr: np.ndarray, scales: np.ndarray) -> None:
    """Write for each edge its target's degree by the number of its picks: (E,) float32."""
    for row in range(len(degrees)):
        picks = block_indptr[row + 1] - block_indptr[row]
        for edge in range(block_indptr[row], block_indptr[row + 1]):
            scales[edge] = degrees[row] / picks
