"""ShaDow: each root has a subgraph of its own, in which all layers of a model work.

Source: Zeng et al., "Decoupling the depth and scope of graph neural networks" (2021), with
its k-hop extractor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from retexo_fl.additions.devices.sampling.adjacency import Adjacency
from retexo_fl.additions.devices.sampling.base import (
    checked_fanouts,
    checked_layers,
    checked_roots,
    checked_seed,
    fanouts_text,
)
from retexo_fl.additions.devices.sampling.compiled import compiled
from retexo_fl.additions.devices.sampling.induction import induced_block
from retexo_fl.additions.devices.sampling.keyed_random import below, keyed_state
from retexo_fl.additions.devices.sampling.picking import pick_places
from retexo_fl.additions.devices.sampling.sample import Block, Sample
from retexo_fl.additions.devices.sampling.workspace import Workspace, Workspaces, forget_nodes

#: Nodes whose room is taken at once for the scopes of some roots.
_MOST_NODES: Final = 2**20


class ShadowSampler:
    """Draws a scope of a few hops around each root, and takes all edges within it.

    Order of the fanouts: the root's first. In hop h every node that hop h - 1 found (in the first
    hop, the root) draws up to ``fanouts[h]`` neighbours, uniformly and without replacement; those
    that are not yet in the root's scope join it, in the order found. Draws are keyed by (seed,
    epoch, batch, hop, root, node).

    The scopes of two roots are apart, even where they hold the same node: it has then two rows. A
    root's scope is contiguous, the root first. All layers work on the same square block of the
    edges within the scopes, in which the edges of a target are ascending by the id of their source.
    ``degrees`` count neighbours within the scope.
    """

    def __init__(
        self, adjacency: Adjacency, fanouts: Sequence[int], layers: int, *, seed: int
    ) -> None:
        """Prepare.

        Args:
            adjacency: The graph.
            fanouts: One for each hop, the root's first, from 1.
            layers: Of the model, from 1; independent of the hops.
            seed: At least 0.

        Raises:
            ConfigurationError: One of them is out of range.
        """
        self._adjacency = adjacency
        self._fanouts = checked_fanouts(fanouts)
        self._layers = checked_layers(layers)
        self._seed = checked_seed(seed)
        self._workspaces = Workspaces(adjacency)

    @property
    def adjacency(self) -> Adjacency:
        """The graph."""
        return self._adjacency

    @property
    def num_layers(self) -> int:
        """As given."""
        return self._layers

    @property
    def spec(self) -> str:
        """See ``Sampler``."""
        fanouts = fanouts_text(self._fanouts)
        return f"shadow fanouts={fanouts} layers={self._layers} seed={self._seed}"

    def sample(self, roots: np.ndarray, *, epoch: int, batch: int) -> Sample:
        """See ``Sampler``."""
        roots = checked_roots(roots, self._adjacency.num_nodes)
        nodes, bounds, block = self._scopes(roots, epoch, batch)
        return Sample(
            roots=roots,
            nodes=nodes,
            input_degrees=block.degrees,
            blocks=(block,) * self._layers,
            root_places=bounds[:-1],
            layer_nodes=(nodes,) * self._layers,
        )

    def count_aggregations(self, roots: np.ndarray, *, epoch: int, batch: int) -> np.ndarray:
        """See ``CountingSampler``."""
        roots = checked_roots(roots, self._adjacency.num_nodes)
        _, bounds, block = self._scopes(roots, epoch, batch)
        edges: np.ndarray = np.diff(block.indptr[bounds])
        return edges * self._layers

    def _scopes(
        self, roots: np.ndarray, epoch: int, batch: int
    ) -> tuple[np.ndarray, np.ndarray, Block]:
        """Return (S,) nodes of all scopes, (B + 1,) where each begins, and the edges within."""
        above = keyed_state("shadow", self._seed, epoch, batch)
        keys = np.array([below(above, hop) for hop in range(len(self._fanouts))], dtype=np.uint64)
        with self._workspaces.taken() as workspace:
            nodes, bounds = self._nodes(roots, keys, workspace)
            return nodes, bounds, induced_block(self._adjacency, nodes, bounds, workspace)

    def _nodes(
        self, roots: np.ndarray, keys: np.ndarray, workspace: Workspace
    ) -> tuple[np.ndarray, np.ndarray]:
        """Find the scopes of some roots at a time, so that their room is bounded."""
        widths = [math.prod(self._fanouts[:hops]) for hops in range(len(self._fanouts) + 1)]
        largest = min(sum(widths), self._adjacency.num_nodes)
        at_once = max(1, _MOST_NODES // max(largest, 1))
        parts, sizes = [np.empty(0, dtype=np.int64)], np.empty(len(roots), dtype=np.int64)
        most_picks = min(max(self._fanouts), len(workspace.marks))
        for start in range(0, len(roots), at_once):
            some = slice(start, start + at_once)
            room = np.empty(len(roots[some]) * largest, dtype=np.int64)
            taken = _find_scopes(
                (self._adjacency.indptr, self._adjacency.indices),
                roots[some],
                (np.array(self._fanouts, dtype=np.int64), keys),
                (workspace.places, workspace.marks, np.empty(most_picks, dtype=np.int64)),
                room,
                sizes[some],
            )
            parts.append(room[:taken].copy())
        return np.concatenate(parts), np.concatenate(([0], np.cumsum(sizes)))


@compiled
def _find_scopes(  # noqa: PLR0917 - what is read, the draws, and what is written
    graph: tuple[np.ndarray, np.ndarray],
    roots: np.ndarray,
    draws: tuple[np.ndarray, np.ndarray],
    scratch: tuple[np.ndarray, np.ndarray, np.ndarray],
    nodes: np.ndarray,
    sizes: np.ndarray,
) -> int:
    """Write the nodes of each root's scope and how many these are; return all of them together.

    ``draws`` are fanouts and keys of the hops; ``scratch`` holds places, marks and picks.
    """
    indptr, indices = graph
    fanouts, keys = draws
    places, marks, picked = scratch
    count = 0
    for number in range(len(roots)):
        root, first = roots[number], count
        nodes[count] = root
        places[root] = 0
        count += 1
        frontier = first
        for hop in range(len(fanouts)):
            of_root = below(keys[hop], root)
            until = count
            for index in range(frontier, until):
                node = nodes[index]
                start = indptr[node]
                degree = indptr[node + 1] - start
                key = below(of_root, node)
                taken = pick_places(key, degree, fanouts[hop], marks, picked, 0)
                for pick in range(taken):
                    neighbour = indices[start + picked[pick]]
                    if places[neighbour] < 0:
                        places[neighbour] = 0
                        nodes[count] = neighbour
                        count += 1
            frontier = until
        forget_nodes(nodes[first:count], places)
        sizes[number] = count - first
    return count
