"""Planetoid's files, rebuilt from a ``.npz`` data set."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
from scipy.sparse import csr_array

from tests.support.python2_pickles import pickled_array, pickled_csr, pickled_graph


def planetoid_files(path: Path) -> dict[str, bytes]:
    """Return the files that a data set could have been made from, by name.

    ``y`` and ``ally`` are those of the source, to the byte. The order of test nodes and of
    neighbours is not kept in a data set, so it is made up; neighbour lists get a self loop, a
    repeated neighbour and edges that only one end knows.
    """
    stem = f"ind.{path.stem}"
    with np.load(path) as arrays:
        labels, edges = arrays["y"], arrays["edge_index"]
        train, test_mask = int(arrays["train_mask"].sum()), arrays["test_mask"]
        parts = (arrays["x_data"], arrays["x_indices"], arrays["x_indptr"])
        features = csr_array(parts, shape=tuple(arrays["x_shape"]))
    test = np.random.default_rng(0).permutation(np.flatnonzero(test_mask))
    known = int(test.min())
    one_hot = np.eye(labels.max() + 1, dtype=np.int32)[labels]
    neighbours: defaultdict[int, list[int]] = defaultdict(list)
    for node in range(len(labels)):
        neighbours[node]
    for number, (low, high) in enumerate(edges.T.tolist()):
        neighbours[low].append(high)
        if number % 10:
            neighbours[high].append(low)
    some = next(node for node, others in neighbours.items() if others)
    neighbours[some] += [some, neighbours[some][0]]
    return {
        f"{stem}.tx": pickled_csr(features[test]),
        f"{stem}.allx": pickled_csr(features[:known]),
        f"{stem}.y": pickled_array(one_hot[:train]),
        f"{stem}.ty": pickled_array(one_hot[test]),
        f"{stem}.ally": pickled_array(one_hot[:known]),
        f"{stem}.graph": pickled_graph(neighbours),
        f"{stem}.test.index": "".join(f"{node}\n" for node in test).encode(),
    }
