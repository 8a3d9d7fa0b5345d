"""The digits that come with the package are scikit-learn's, joined as documented."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits

from retexo_fl.graph.sources.digits import load_digits_graph

_NEIGHBOURS = 8


def test_the_graph_is_that_of_the_eight_nearest_digits() -> None:
    digits, graph = load_digits(), load_digits_graph()
    pixels = digits.data.astype(np.int64)
    lengths = (pixels**2).sum(axis=1)
    distances = lengths[:, None] + lengths - 2 * (pixels @ pixels.T)
    np.fill_diagonal(distances, np.iinfo(np.int64).max)
    nearest = np.argsort(distances, axis=1, kind="stable")[:, :_NEIGHBOURS]
    ends = np.stack((np.repeat(np.arange(len(pixels)), _NEIGHBOURS), nearest.reshape(-1)))
    expected = np.unique(np.concatenate([ends, ends[::-1]], axis=1), axis=1)
    found = np.stack((np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr)), graph.indices))
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(graph.features, (pixels / 16).astype(np.float32))
    np.testing.assert_array_equal(graph.labels, digits.target)
