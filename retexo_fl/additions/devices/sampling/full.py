"""The full neighbourhood: nothing is drawn."""

from __future__ import annotations

import numpy as np

from retexo_fl.additions.devices.sampling.adjacency import Adjacency
from retexo_fl.additions.devices.sampling.base import checked_layers, checked_roots
from retexo_fl.additions.devices.sampling.expansion import ALL_NEIGHBOURS, count_drawn, expanded
from retexo_fl.additions.devices.sampling.sample import Sample
from retexo_fl.additions.devices.sampling.workspace import Workspaces


class FullSampler:
    """Takes all neighbours of every target, ascending by id; epoch and batch do not matter.

    Targets and places are those of ``NeighbourSampler`` with fanouts that no degree exceeds.
    """

    def __init__(self, adjacency: Adjacency, layers: int) -> None:
        """Prepare.

        Raises:
            ConfigurationError: ``layers`` is not positive.
        """
        self._adjacency = adjacency
        self._layers = checked_layers(layers)
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
        return f"full layers={self._layers}"

    def sample(self, roots: np.ndarray, *, epoch: int, batch: int) -> Sample:
        """See ``Sampler``."""
        with self._workspaces.taken() as workspace:
            return expanded(
                self._adjacency,
                checked_roots(roots, self._adjacency.num_nodes),
                fanouts=[ALL_NEIGHBOURS] * self._layers,
                keys=[np.uint64(0)] * self._layers,
                workspace=workspace,
            )

    def count_aggregations(self, roots: np.ndarray, *, epoch: int, batch: int) -> np.ndarray:
        """See ``CountingSampler``."""
        with self._workspaces.taken() as workspace:
            return count_drawn(
                self._adjacency,
                checked_roots(roots, self._adjacency.num_nodes),
                fanouts=[ALL_NEIGHBOURS] * self._layers,
                keys=[np.uint64(0)] * self._layers,
                workspace=workspace,
            )
