"""What every split must satisfy; a new one's test inherits :class:`SplitContract`."""

from __future__ import annotations

import numpy as np
import pytest

from retexo_fl.graph import Graph, Split, make_split
from tests.support.partitioner_contract import (
    NODES,
    graph_bytes,
    labelled_graph,
    random_states,
)


class SplitContract:
    """Set ``name``, as a configuration has it, in a subclass whose name begins with ``Test``."""

    name: str

    def split(self, graph: Graph, clients: int, seed: int = 0) -> Split:
        """Return the split of a graph over some clients; what is none is refused."""
        assignment = (np.arange(graph.num_nodes) % clients).astype(np.int32)
        assignment.flags.writeable = False
        return make_split(graph, assignment, split=self.name, seed=seed)

    @pytest.mark.parametrize("clients", [1, 2])
    def test_masks_are_disjoint_labelled_and_not_empty(self, clients: int) -> None:
        graph = labelled_graph()
        masks = self.split(graph, clients).named()
        assert all(mask.shape == (NODES,) for mask in masks.values())
        assert all(mask.dtype == bool for mask in masks.values())
        assert all(mask.any() for mask in masks.values())
        times = np.sum([mask.astype(int) for mask in masks.values()], axis=0)
        assert times.max() == 1
        assert not times[graph.labels < 0].any()

    @pytest.mark.parametrize("seed", [0, 5])
    def test_same_seed_gives_the_same_split(self, seed: int) -> None:
        one, other = (self.split(labelled_graph(), 2, seed).named() for _ in range(2))
        for name, mask in one.items():
            np.testing.assert_array_equal(mask, other[name])

    def test_shared_random_generators_are_left_alone(self) -> None:
        before = random_states()
        self.split(labelled_graph(), 2)
        assert random_states() == before

    def test_graph_is_left_as_it_was(self) -> None:
        graph = labelled_graph()
        before = graph_bytes(graph)
        self.split(graph, 2)
        assert graph_bytes(graph) == before
