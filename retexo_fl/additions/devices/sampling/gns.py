"""Global Neighbor Sampling: neighbours that are in a cache on the device come first.

Source: Dong, Zheng, Yang and Karypis, "Global Neighbor Sampling for Mixed CPU-GPU Training on Giant
Graphs" (KDD'21), sections 3.2 to 3.4. The weights are our own: those of the released code divide by
``k / min(k, n)`` where a cached neighbour is picked with probability ``min(k, n) / n``.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import numpy as np

from retexo_fl.additions.devices.sampling.adjacency import Adjacency
from retexo_fl.additions.devices.sampling.base import (
    checked_fanouts,
    checked_roots,
    checked_seed,
    fanouts_text,
)
from retexo_fl.additions.devices.sampling.gns_cache import CacheChances, NodeCache, cache_mass
from retexo_fl.additions.devices.sampling.gns_picks import pick_mixed, split_picks
from retexo_fl.additions.devices.sampling.keyed_random import below, keyed_state
from retexo_fl.additions.devices.sampling.sample import Block, Sample
from retexo_fl.additions.devices.sampling.workspace import (
    Workspace,
    Workspaces,
    add_nodes,
    forget_nodes,
    read_rows,
)
from retexo_fl.errors import ConfigurationError

#: Effective cached neighbours from which on the input layer reads no others. Chosen: on six real
#: graphs with a tenth of the nodes cached, 2 in place of the fanout of 5 saves 11 to 28 % of the
#: misses, for 1.2 to 1.8 times the variance.
ENOUGH_AT_INPUT: Final = 2.0
#: Caches kept at once: threads that work ahead may be an epoch before those that compute.
_KEPT_CACHES: Final = 2


class GnsSampler:
    """Draws neighbours as ``NeighbourSampler`` does, but from a cache C of nodes where it can.

    The cache is drawn anew every ``cache_epochs`` epochs; node u is in it with probability pi_u,
    independently of all others (see ``gns_cache``). A target v with the neighbours N(v), of which
    n are cached and r are not, picks up to a fanout k of them:

    - Inner layers take all neighbours where these are at most k. Otherwise they prefer cached
      ones, and top up from the others to k; unless these are *enough*, one pick is another.
    - The input layer does the same, but where cached ones are enough it takes these alone, be they
      fewer than k or none.

    What is enough is known before the cache is drawn, or weights would be biased: with
    ``h_v = d^2 / sum 1 / pi_u``, the number of cached neighbours that an estimate from these alone
    is worth, it is ``h_v >= k`` in inner layers and ``h_v >= 2`` in the input layer.

    Weights. Let ``alpha_v = min(1, h_v / enough)``, 0 for a target that takes all, and
    ``a = max(alpha_v, pi_u)``. Cached neighbours have the weight ``a / pi_u``: the c picks among
    them fall on each with a probability proportional to its weight, or certainly where that would
    be above 1, and a pick is scaled by weight over probability. One of o picks among the r others,
    all equally likely, has the scale ``(1 - a) / (1 - pi_u) * r / o``.

    Without bias: given C, the expected scale of u is ``a / pi_u`` if u is cached and
    ``(1 - a) / (1 - pi_u)`` if not. That holds for whatever c and o, which may depend on C, as long
    as both are positive where n and r are, or the weights of that part are 0, which those of the
    others are with ``alpha_v = 1``. Over the draw of C the expectation is
    ``pi_u a / pi_u + (1 - pi_u) (1 - a) / (1 - pi_u) = 1``, since a depends on v and u alone. A
    node that is always cached has a = 1; one that never is has a = 0, since then h_v = 0. With
    ``a >= pi_u`` no other neighbour has a larger scale than ``r / o``, and a target that takes all
    has scales of 1.

    The layers share one cache. Their estimates are of different nodes and so independent, except on
    walks that come back to a node: a linear model is estimated without bias up to two layers, and
    in three except for what comes over u - w - u.

    All draws are keyed by (seed, epoch, batch, layer, target), the cache by the seed and
    ``epoch // cache_epochs``.
    """

    def __init__(
        self,
        adjacency: Adjacency,
        fanouts: Sequence[int],
        *,
        seed: int,
        cache_share: float = 0.2,
        cache_epochs: int = 1,
        train_nodes: np.ndarray | None = None,
    ) -> None:
        """Prepare.

        Args:
            adjacency: The graph.
            fanouts: One for each layer, roots' first, from 2.
            seed: At least 0.
            cache_share: Expected size of the cache as a share of all nodes, in (0, 1].
            cache_epochs: Epochs for which a cache is kept, from 1.
            train_nodes: (T,) ids of all roots of the training; None where they are not known. Few
                of them change whom the cache prefers, see ``cache_mass``.

        Raises:
            ConfigurationError: A parameter is out of range.
            DatasetError: A train node is no node, or given twice.
        """
        self._adjacency = adjacency
        self._fanouts = _at_least_two(checked_fanouts(fanouts))
        self._seed = checked_seed(seed)
        if cache_epochs < 1:
            raise ConfigurationError(f"cache-epochs: got {cache_epochs}; expected 1 or more")
        self._cache_epochs = cache_epochs
        self._cache_share = cache_share
        mass = cache_mass(adjacency, self._fanouts, train_nodes)
        self._chances = CacheChances.of(adjacency, mass, cache_share)
        self._train_nodes = train_nodes
        self._caches: OrderedDict[int, NodeCache] = OrderedDict()
        self._drawing = threading.Lock()
        self._workspaces = Workspaces(adjacency)

    @property
    def adjacency(self) -> Adjacency:
        """The graph."""
        return self._adjacency

    @property
    def num_layers(self) -> int:
        """One for each fanout."""
        return len(self._fanouts)

    @property
    def spec(self) -> str:
        """See ``Sampler``."""
        roots = b"" if self._train_nodes is None else self._train_nodes.astype(np.int64).tobytes()
        return (
            f"gns fanouts={fanouts_text(self._fanouts)} seed={self._seed} "
            f"cache-share={self._cache_share} cache-epochs={self._cache_epochs} "
            f"train-nodes={hashlib.sha256(roots).hexdigest()[:16]}"
        )

    @property
    def chances(self) -> np.ndarray:
        """(N,) float64: the probability of each node to be cached."""
        return self._chances.chances

    def cached_nodes(self, epoch: int) -> np.ndarray:
        """Return the ids that the cache of an epoch holds, ascending, int64."""
        return self._cache(epoch).nodes

    def sample(self, roots: np.ndarray, *, epoch: int, batch: int) -> Sample:
        """See ``Sampler``."""
        cache = self._cache(epoch)
        key = keyed_state("gns", self._seed, epoch, batch)
        found = checked_roots(roots, self._adjacency.num_nodes)
        with self._workspaces.taken() as workspace:
            return self._expanded(found, cache, key, workspace)

    def _cache(self, epoch: int) -> NodeCache:
        generation = epoch // self._cache_epochs
        with self._drawing:
            if generation not in self._caches:
                self._caches[generation] = NodeCache.draw(
                    self._adjacency, self._chances, seed=self._seed, generation=generation
                )
                if len(self._caches) > _KEPT_CACHES:
                    self._caches.popitem(last=False)
            self._caches.move_to_end(generation)
            return self._caches[generation]

    def _expanded(
        self, roots: np.ndarray, cache: NodeCache, key: np.uint64, workspace: Workspace
    ) -> Sample:
        """Draw one block for each fanout, from the roots on; sources are the next targets."""
        columns = np.empty(len(roots), np.int32)
        count = add_nodes(roots, workspace.places, workspace.nodes, 0, columns)
        sizes, blocks = [count], []
        self._read_rows(workspace, 0, count)
        for layer in range(self.num_layers):
            blocks.append(self._block(layer, cache, np.uint64(below(key, layer)), workspace, count))
            self._read_rows(workspace, count, blocks[-1].num_sources)
            count = blocks[-1].num_sources
            sizes.append(count)
        nodes = workspace.nodes[:count].copy()
        forget_nodes(nodes, workspace.places)
        return Sample(
            roots=roots,
            nodes=nodes,
            input_degrees=workspace.degrees[:count].copy(),
            blocks=tuple(blocks[::-1]),
            root_places=np.arange(len(roots), dtype=np.int64),
            layer_nodes=tuple(nodes[:size] for size in sizes[-2::-1]),
        )

    def _read_rows(self, workspace: Workspace, start: int, stop: int) -> None:
        read_rows(
            self._adjacency.indptr,
            workspace.nodes[start:stop],
            workspace.starts[start:stop],
            workspace.degrees[start:stop],
        )

    def _block(
        self, layer: int, cache: NodeCache, key: np.uint64, workspace: Workspace, count: int
    ) -> Block:
        """Draw for the first ``count`` nodes of the workspace; new ones get places behind them."""
        ids, degrees = workspace.nodes[:count], workspace.degrees[:count].copy()
        split = self._split(layer, cache, ids, degrees)
        alphas, from_cache, from_rest = split
        indptr = np.zeros(count + 1, np.int64)
        np.cumsum(from_cache + from_rest, out=indptr[1:])
        picked = np.empty(indptr[-1], self._adjacency.indices.dtype)
        scales = np.empty(indptr[-1], np.float32)
        pick_mixed(
            self._adjacency.indices,
            (cache.indptr, cache.places, cache.ids, cache.ends, cache.heaviest),
            self.chances,
            (ids, workspace.starts[:count], degrees),
            split,
            indptr,
            key,
            workspace.marks,
            picked,
            scales,
        )
        columns = np.empty(len(picked), np.int32)
        num_sources = add_nodes(picked, workspace.places, workspace.nodes, count, columns)
        complete = not alphas.any() and np.array_equal(np.diff(indptr), degrees)
        return Block(
            indptr=indptr,
            columns=columns,
            scales=None if complete else scales,
            degrees=degrees,
            num_sources=num_sources,
        )

    def _split(
        self, layer: int, cache: NodeCache, ids: np.ndarray, degrees: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        at_input = layer == self.num_layers - 1
        fanout = self._fanouts[layer]
        count = len(ids)
        split = (np.empty(count), np.empty(count, np.int64), np.empty(count, np.int64))
        enough = min(ENOUGH_AT_INPUT, fanout) if at_input else float(fanout)
        found = (cache.indptr, self._chances.effective)
        split_picks((ids, degrees), found, fanout, enough, at_input, split)
        return split


def _at_least_two(fanouts: tuple[int, ...]) -> tuple[int, ...]:
    if min(fanouts) < 2:
        raise ConfigurationError(
            f"fanouts: got '{fanouts_text(fanouts)}'; expected numbers from 2 for the sampler "
            "'gns', which picks both from the cache and from outside it"
        )
    return fanouts
