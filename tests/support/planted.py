"""Graphs in which nothing but what an attack looks for is to be found."""

from __future__ import annotations

from typing import Any

import numpy as np


def planted(*, clients: int, each: int, features: int, across: bool = True) -> dict[str, Any]:
    """Return a graph of random rows, labels and edges: nothing but rows tells an inner edge."""
    generator = np.random.default_rng(7)
    owner = np.repeat(np.arange(clients), each)
    edges = []
    for client in range(clients):
        # A ring: every node has two inner edges, and one to each other client.
        order = generator.permutation(np.flatnonzero(owner == client))
        edges.append(np.stack([order, np.roll(order, 1)]))
        for other in range(client if across else 0):
            ends = [generator.permutation(np.flatnonzero(owner == c)) for c in (client, other)]
            edges.append(np.stack(ends))
    return {
        "x": generator.standard_normal((len(owner), features)).astype(np.float32),
        "edge_index": np.concatenate(edges, axis=1),
        "y": generator.integers(0, 3, len(owner)),
        "owner": owner,
    }
