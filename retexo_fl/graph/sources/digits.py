"""The built-in data set: handwritten digits, each joined to those that look most like it."""

from __future__ import annotations

from functools import cache
from typing import Final

import numpy as np

from retexo_fl.graph.graph import Graph

#: Nearest neighbours of each digit. Chosen; not tuned.
_NEIGHBOURS: Final = 8
#: Pixels are whole numbers from 0 to 16.
_LARGEST_PIXEL: Final = 16


def load_digits_graph() -> Graph:
    """Build the graph of scikit-learn's digits: 1,797 nodes, 64 features, 10 classes.

    Two digits are joined if either is among the eight nearest of the other, by Euclidean distance;
    of equally near ones those that come first. Distances are whole numbers, so every machine
    builds the same graph.
    """
    pixels, labels, edges = _digits()
    return Graph.from_edges(
        edges,
        name="digits",
        features=(pixels / _LARGEST_PIXEL).astype(np.float32),
        labels=labels,
    )


@cache
def _digits() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (N, 64) int64 pixels, (N,) int64 labels and (2, E) int64 edges, found once a process.

    Finding them takes longer than a short training.
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = digits.data.astype(np.int64)
    lengths = (pixels**2).sum(axis=1)
    distances = lengths[:, None] + lengths - 2 * (pixels @ pixels.T)
    np.fill_diagonal(distances, np.iinfo(np.int64).max)
    nearest = np.argsort(distances, axis=1, kind="stable")[:, :_NEIGHBOURS]
    ends = np.stack((np.repeat(np.arange(len(pixels)), _NEIGHBOURS), nearest.reshape(-1)))
    return pixels, digits.target.astype(np.int64), np.unique(np.sort(ends, axis=0), axis=1)
