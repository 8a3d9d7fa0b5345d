"""Neighbour sampling: every target of every layer draws a few of its neighbours.

Source: Hamilton, Ying and Leskovec, "Inductive representation learning on large graphs" (2017),
algorithm 2, without replacement.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from retexo_fl.additions.devices.sampling.adjacency import Adjacency
from retexo_fl.additions.devices.sampling.base import (
    checked_fanouts,
    checked_roots,
    checked_seed,
    fanouts_text,
)
from retexo_fl.additions.devices.sampling.expansion import count_drawn, expanded
from retexo_fl.additions.devices.sampling.keyed_random import below, keyed_state
from retexo_fl.additions.devices.sampling.sample import Sample
from retexo_fl.additions.devices.sampling.workspace import Workspaces


class NeighbourSampler:
    """Draws up to a fanout of neighbours, uniformly and without replacement, for each layer.

    Order of the fanouts: the roots' first. With (15, 10, 5) roots draw 15 neighbours, for the last
    block; the rows that the input layer makes draw 5, for the first.

    Expansion: the targets of a layer are all sources of the layer above, the roots among them, and
    every one of them draws anew for this layer. A node keeps its place in all layers.

    A target with no more neighbours than its fanout has all of them, ascending by id; of any other
    each set of ``fanout`` neighbours is equally likely, in the order drawn. Draws are keyed by
    (seed, epoch, batch, layer, target), so a target's draw does not depend on the other targets.
    """

    def __init__(self, adjacency: Adjacency, fanouts: Sequence[int], *, seed: int) -> None:
        """Prepare.

        Args:
            adjacency: The graph.
            fanouts: One for each layer, roots' first, from 1.
            seed: At least 0.

        Raises:
            ConfigurationError: A fanout or the seed is out of range.
        """
        self._adjacency = adjacency
        self._fanouts = checked_fanouts(fanouts)
        self._seed = checked_seed(seed)
        self._workspaces = Workspaces(adjacency)

    @property
    def adjacency(self) -> Adjacency:
        """The graph."""
        return self._adjacency

    @property
    def fanouts(self) -> tuple[int, ...]:
        """Roots' first."""
        return self._fanouts

    @property
    def num_layers(self) -> int:
        """One for each fanout."""
        return len(self._fanouts)

    @property
    def spec(self) -> str:
        """See ``Sampler``."""
        return f"neighbour fanouts={fanouts_text(self._fanouts)} seed={self._seed}"

    def sample(self, roots: np.ndarray, *, epoch: int, batch: int) -> Sample:
        """See ``Sampler``."""
        with self._workspaces.taken() as workspace:
            return expanded(
                self._adjacency,
                checked_roots(roots, self._adjacency.num_nodes),
                fanouts=self._fanouts,
                keys=self._keys(epoch, batch),
                workspace=workspace,
            )

    def count_aggregations(self, roots: np.ndarray, *, epoch: int, batch: int) -> np.ndarray:
        """See ``CountingSampler``."""
        with self._workspaces.taken() as workspace:
            return count_drawn(
                self._adjacency,
                checked_roots(roots, self._adjacency.num_nodes),
                fanouts=self._fanouts,
                keys=self._keys(epoch, batch),
                workspace=workspace,
            )

    def _keys(self, epoch: int, batch: int) -> list[np.uint64]:
        """Return the key above the targets of each draw, the roots' first."""
        above = keyed_state("neighbour", self._seed, epoch, batch)
        return [np.uint64(below(above, layer)) for layer in range(self.num_layers)]
