"""The node cache of Global Neighbor Sampling: whom it may hold, one draw of it, and its neighbours.

Every node is cached independently of all others (Poisson sampling) with probability
``pi_u = min(1, c p_u)``. Inclusion probabilities are then exact and known beforehand, which weights
need; drawing a fixed number without replacement leaves them without a closed form.

Source: Dong, Zheng, Yang and Karypis, "Global Neighbor Sampling for Mixed CPU-GPU Training on Giant
Graphs" (KDD'21), section 3.2. There the cache is drawn with replacement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from scipy.sparse import csr_array

from retexo_fl.additions.devices.sampling.adjacency import Adjacency
from retexo_fl.additions.devices.sampling.base import checked_roots
from retexo_fl.additions.devices.sampling.compiled import compiled
from retexo_fl.errors import ConfigurationError

#: With fewer train nodes than this share of all, most nodes of a large degree are never reached,
#: and the cache is drawn by what walks from the train nodes reach.
FEW_TRAIN_NODES: Final = 0.1
_PURPOSE: Final = tuple(b"gns cache")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheChances:
    """Whom a cache may hold; the same for every draw.

    Attributes:
        chances: (N,) float64: ``pi_u``, the probability of each node to be cached.
        effective: (N,) float64: ``d^2 / sum of 1 / pi_u`` over the d neighbours of a node: the
            number of cached neighbours that an estimate from these alone is worth. 0 without
            neighbours, or where one of them is never cached.
        outgoing: The graph by source: row u lists whom u is a neighbour of.
    """

    chances: np.ndarray
    effective: np.ndarray
    outgoing: Adjacency

    @classmethod
    def of(cls, adjacency: Adjacency, mass: np.ndarray, share: float) -> Self:
        """Settle the probabilities.

        Args:
            adjacency: The graph, N nodes.
            mass: (N,) ``p``, not negative, of any sum.
            share: Expected size of the cache as a share of N.

        Raises:
            ConfigurationError: The share is not within (0, 1].
        """
        if not 0 < share <= 1:
            raise ConfigurationError(f"cache-share: got {share}; expected above 0, at most 1")
        chances = inclusion_chances(mass, share * adjacency.num_nodes)
        inverse = np.divide(1.0, chances, out=np.full(len(chances), np.inf), where=chances > 0)
        return cls(
            chances=chances,
            effective=_effective(adjacency.indptr, adjacency.indices, inverse),
            outgoing=_by_source(adjacency),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCache:
    """One draw of the cache, with the subgraph of all edges that leave it.

    Attributes:
        nodes: (c,) int64 ids of the cached nodes, ascending.
        indptr: (N + 1,) int64: ``places[indptr[v]:indptr[v + 1]]`` are v's cached neighbours.
        places: Their positions among all neighbours of v, int32, ascending; so the j-th neighbour
            that is *not* cached is found by bisection, too.
        ids: These neighbours, dtype of the graph's ``indices``.
        ends: Running sum of ``1 / pi_u`` over v's cached neighbours, float64.
        heaviest: (N,) float64: the largest ``1 / pi_u`` among them.
    """

    nodes: np.ndarray
    indptr: np.ndarray
    places: np.ndarray
    ids: np.ndarray
    ends: np.ndarray
    heaviest: np.ndarray

    @classmethod
    def draw(
        cls, adjacency: Adjacency, chances: CacheChances, *, seed: int, generation: int
    ) -> Self:
        """Draw a cache, and look up its neighbours in time O(N + edges of the cached nodes).

        Args:
            adjacency: The graph.
            chances: Of its nodes.
            seed: Of the sampler.
            generation: Number of the draw; with the seed, it decides the draw.
        """
        generator = np.random.default_rng([seed, generation, *_PURPOSE])
        nodes = np.flatnonzero(generator.random(adjacency.num_nodes) < chances.chances)
        outgoing = chances.outgoing
        indptr, *arrays = _cached_neighbours(
            (nodes, 1 / chances.chances[nodes]),
            (outgoing.indptr, outgoing.indices),
            (adjacency.indptr, adjacency.indices),
        )
        places, ids, ends, heaviest = arrays
        return cls(nodes=nodes, indptr=indptr, places=places, ids=ids, ends=ends, heaviest=heaviest)


def cache_mass(
    adjacency: Adjacency, fanouts: Sequence[int], train_nodes: np.ndarray | None
) -> np.ndarray:
    """Return the (N,) mass that a cache is drawn by.

    By degree, that is by how often a node is a neighbour; by :func:`walk_mass` where fewer than
    :data:`FEW_TRAIN_NODES` of all nodes are train nodes.

    Args:
        adjacency: The graph.
        fanouts: Of the sampler, roots' first.
        train_nodes: (T,) distinct ids; None where they are not known, or many.

    Raises:
        DatasetError: A train node is no node, or given twice.
    """
    few = FEW_TRAIN_NODES * adjacency.num_nodes
    if train_nodes is not None and 0 < len(train_nodes) < few:
        return walk_mass(adjacency, fanouts, train_nodes)
    return np.bincount(adjacency.indices, minlength=adjacency.num_nodes).astype(np.float64)


def walk_mass(adjacency: Adjacency, fanouts: Sequence[int], train_nodes: np.ndarray) -> np.ndarray:
    """Return how often each node is drawn on average when every train node is a root once.

    A node with mass m and d neighbours gives ``m min(fanout, d) / d`` to each, once for each layer;
    what all layers have brought is added up, train nodes included.

    Source: KDD'21, section 3.2, the probabilities for few train nodes.
    """
    layer = np.zeros(adjacency.num_nodes)
    layer[checked_roots(train_nodes, adjacency.num_nodes)] = 1
    total = layer.copy()
    degrees = np.maximum(adjacency.degrees, 1)
    for fanout in fanouts:
        handed = layer * np.minimum(fanout, degrees) / degrees
        layer = _handed_on(adjacency.indptr, adjacency.indices, handed)
        total += layer
    return total


def inclusion_chances(mass: np.ndarray, expected: float) -> np.ndarray:
    """Return (N,) ``min(1, c p_u)`` whose sum is ``expected``; at most 1 for each positive mass."""
    positive = np.count_nonzero(mass)
    if expected >= positive:
        return (mass > 0).astype(np.float64)
    falling = np.sort(mass)[::-1][:positive]
    rest = np.cumsum(falling[::-1])[::-1]
    # With the m largest certain, c is what spreads the rest of the size over the other masses.
    factors = (expected - np.arange(positive)) / rest
    factor = factors[np.argmax(factors * falling <= 1)]
    chances: np.ndarray = np.minimum(1.0, factor * mass)
    return chances


def _by_source(adjacency: Adjacency) -> Adjacency:
    """Return the graph by source; that of an undirected graph is the graph itself."""
    ones = np.ones(adjacency.num_edges, np.bool_)
    size = (adjacency.num_nodes, adjacency.num_nodes)
    turned = csr_array((ones, adjacency.indices, adjacency.indptr), shape=size).T.tocsr()
    same = np.array_equal(turned.indptr, adjacency.indptr)
    if same and np.array_equal(turned.indices, adjacency.indices):
        return adjacency
    return Adjacency(
        indptr=turned.indptr.astype(np.int64),
        indices=turned.indices.astype(adjacency.indices.dtype),
    )


@compiled
def _effective(indptr: np.ndarray, indices: np.ndarray, inverse: np.ndarray) -> np.ndarray:
    found = np.zeros(len(indptr) - 1)
    for node in range(len(found)):
        degree = indptr[node + 1] - indptr[node]
        total = 0.0
        for edge in range(indptr[node], indptr[node + 1]):
            total += inverse[indices[edge]]
        if degree:
            found[node] = degree * (degree / total)
    return found


@compiled
def _handed_on(indptr: np.ndarray, indices: np.ndarray, handed: np.ndarray) -> np.ndarray:
    found = np.zeros(len(handed))
    for node in range(len(handed)):
        if handed[node]:
            for edge in range(indptr[node], indptr[node + 1]):
                found[indices[edge]] += handed[node]
    return found


@compiled
def _cached_neighbours(
    cached: tuple[np.ndarray, np.ndarray],
    outgoing: tuple[np.ndarray, np.ndarray],
    incoming: tuple[np.ndarray, np.ndarray],
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    nodes, weights = cached
    out_indptr, out_indices = outgoing
    indptr, indices = incoming
    starts = np.zeros(len(indptr), np.int64)
    for node in nodes:
        for edge in range(out_indptr[node], out_indptr[node + 1]):
            starts[out_indices[edge] + 1] += 1
    for target in range(len(starts) - 1):
        starts[target + 1] += starts[target]
    places = np.empty(starts[-1], np.int32)
    ids = np.empty(starts[-1], indices.dtype)
    ends = np.empty(starts[-1])
    heaviest = np.zeros(len(indptr) - 1)
    filled = starts[:-1].copy()
    for number in range(len(nodes)):
        node = nodes[number]
        for edge in range(out_indptr[node], out_indptr[node + 1]):
            target = out_indices[edge]
            first, last = indptr[target], indptr[target + 1]
            place = np.searchsorted(indices[first:last], node)
            at = filled[target]
            places[at], ids[at] = place, node
            ends[at] = weights[number]
            if at > starts[target]:
                ends[at] += ends[at - 1]
            heaviest[target] = max(heaviest[target], weights[number])
            filled[target] += 1
    return starts, places, ids, ends, heaviest
