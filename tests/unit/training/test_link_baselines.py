"""What degrees and sides alone make of test edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from retexo_fl.client.preparation import make_parts
from retexo_fl.config import make_config
from retexo_fl.training.link_baselines import LinkBaselines, link_baselines
from retexo_fl.training.link_split import LinkSplit

SPLIT = "random:0.6/0.1/0.3"


def baselines(edges: Any, nodes: int, *, clients: int = 1, seed: int = 0) -> LinkBaselines | None:
    config = make_config({"task": "links", "split": SPLIT, "clients": clients, "seed": seed})
    graph = {"edge_index": np.asarray(edges), "x": np.ones((nodes, 1), np.float32)}
    return link_baselines(make_parts(config, graph=graph, quiet=True), config)


def two_sides(seed: int, users: int, items: int, edges: int, power: float) -> np.ndarray:
    """Return edges of users and items without any signal but the items' popularity."""
    generator = np.random.default_rng(seed)
    shares = 1.0 / np.arange(1, items + 1) ** power
    drawn = generator.choice(items, size=edges, p=shares / shares.sum())
    codes = np.unique(generator.integers(0, users, edges) * items + drawn)
    return np.stack((codes // items, users + codes % items))


@pytest.mark.parametrize("clients", [1, 3])
def test_degrees_are_those_of_all_clients(clients: int) -> None:
    nodes = 60
    ends = np.random.default_rng(1).integers(0, nodes, (2, 300))
    ends.sort(axis=0)
    ends = np.unique(ends[:, ends[0] != ends[1]], axis=1)
    found = baselines(ends, nodes, clients=clients)
    config = make_config({"task": "links", "split": SPLIT, "clients": clients})
    graph = {"edge_index": ends, "x": np.ones((nodes, 1), np.float32)}
    parts = make_parts(config, graph=graph, quiet=True)
    splits = [LinkSplit.of(part, split=SPLIT, seed=0) for part in parts]
    # Each client's own nodes, by key; what borders on it is looked up at its owner's.
    degrees = {
        key: degree
        for part, split in zip(parts, splits, strict=True)
        for key, degree in zip(part.node_keys, np.diff(split.part.indptr).tolist(), strict=True)
    }
    scores, truth = [], []
    for part, split in zip(parts, splits, strict=True):
        keys = [*part.node_keys, *part.boundary_keys]
        test = split.pairs["test"]
        ones, others = split.known.draw(test.keys, 1, "0/test")
        for first, second, is_edge in (
            (test.first, test.second, 1),
            (ones[:, 0], others[:, 0], 0),
        ):
            scores += [
                degrees[keys[a]] * degrees[keys[b]] for a, b in zip(first, second, strict=True)
            ]
            truth += [is_edge] * len(first)
    assert found is not None
    assert found.degrees == pytest.approx(roc_auc_score(truth, scores))
    assert found.sides is None


def test_without_signal_sides_and_popularity_rank_edges() -> None:
    even = [baselines(two_sides(seed, 400, 100, 4000, 0.0), 500, seed=seed) for seed in range(3)]
    uneven = [baselines(two_sides(seed, 400, 100, 4000, 1.0), 500, seed=seed) for seed in range(3)]
    for found in (*even, *uneven):
        assert found is not None
        assert found.sides is not None
        # Of all pairs without an edge about two thirds are of one side.
        assert found.sides == pytest.approx(0.84, abs=0.04)
    means = [
        float(np.mean([one.degrees for one in some if one is not None])) for some in (even, uneven)
    ]
    assert means[0] == pytest.approx(0.8, abs=0.04)
    assert means[1] > means[0] + 0.04


@pytest.mark.parametrize(
    ("edges", "is_bipartite"),
    [
        # A cycle of four, one of three, both, two of four, and a tree.
        ([[0, 1, 2, 3], [1, 2, 3, 0]], True),
        ([[0, 1, 2], [1, 2, 0]], False),
        ([[0, 1, 2, 3, 4, 5, 6], [1, 2, 3, 0, 5, 6, 4]], False),
        ([[0, 1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 0, 5, 6, 7, 4]], True),
        ([[0, 0, 0, 3, 3], [1, 2, 3, 4, 5]], False),
    ],
)
def test_a_graph_is_bipartite_where_it_has_cycles_and_none_is_odd(
    edges: list[list[int]], is_bipartite: bool
) -> None:
    # With some seed an edge is tested.
    found = [baselines(edges, 9, seed=seed) for seed in range(6)]
    there = [one.sides is not None for one in found if one is not None]
    assert there
    assert set(there) == {is_bipartite}
