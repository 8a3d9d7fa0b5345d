from __future__ import annotations

import numpy as np
import pytest

from retexo_fl.additions.devices.locality import near_ranks
from retexo_fl.additions.devices.sampling import Adjacency, NeighbourSampler


def ring_of(places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return both directions of the edges of a ring through ``places``."""
    following = np.roll(places, -1)
    return np.concatenate([places, following]), np.concatenate([following, places])


def regions(count: int, size: int, *, seed: int) -> tuple[Adjacency, np.ndarray]:
    """Return rings that do not touch, whose nodes are numbered at random, and each one's ring."""
    places = np.random.default_rng(seed).permutation(count * size).reshape(count, size)
    rings = [ring_of(ring) for ring in places]
    sources, targets = (np.concatenate(ends) for ends in zip(*rings, strict=True))
    ring_number = np.empty(count * size, np.int64)
    ring_number[places] = np.arange(count)[:, None]
    return Adjacency.from_edges(sources, targets, num_nodes=count * size), ring_number


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_neighbours_on_a_ring_stand_at_most_two_apart(dtype: type[np.signedinteger]) -> None:
    sources, targets = ring_of(np.random.default_rng(0).permutation(500))
    ring = Adjacency.from_edges(sources, targets, num_nodes=500)
    ranks = near_ranks(ring.indptr.astype(dtype), ring.indices.astype(dtype))
    assert sorted(ranks) == list(range(500))
    assert np.abs(ranks[sources] - ranks[targets]).max() == 2


def test_nodes_without_edges_have_places_too() -> None:
    assert sorted(near_ranks(np.zeros(4, np.int64), np.empty(0, np.int32))) == [0, 1, 2]
    assert len(near_ranks(np.zeros(1, np.int64), np.empty(0, np.int32))) == 0


def test_pieces_of_near_nodes_draw_hardly_any_neighbour_twice() -> None:
    adjacency, ring_number = regions(6, 200, seed=1)
    roots = np.random.default_rng(2).choice(1200, 300, replace=False)
    sampler = NeighbourSampler(adjacency, (2, 2), seed=0)

    def drawn_twice(ordered: np.ndarray) -> int:
        pieces = [sampler.sample(piece, epoch=0, batch=0).nodes for piece in np.split(ordered, 3)]
        return sum(map(len, pieces)) - len(np.unique(np.concatenate(pieces)))

    near = adjacency.near_together(roots)
    assert sorted(near) == sorted(roots)
    assert np.count_nonzero(np.diff(ring_number[near])) == 5
    assert drawn_twice(near) <= 16
    assert drawn_twice(roots) > 250
