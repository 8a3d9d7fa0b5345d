"""What every partitioner must satisfy; a new one's test inherits :class:`PartitionerContract`."""

from __future__ import annotations

import random

import numpy as np
import pytest
from scipy.sparse import csr_array

from retexo_fl.graph import Graph, assign_nodes

NODES, CLASSES = 60, 3


def labelled_graph(seed: int = 0) -> Graph:
    """Return a random graph of 60 nodes; node 0 has no edge and every seventh node no label."""
    rng = np.random.default_rng(seed)
    edges = np.argwhere(np.triu(rng.random((NODES, NODES)) < 0.1, k=1))
    edges = edges[edges[:, 0] > 0]
    labels = rng.integers(0, CLASSES, NODES)
    labels[::7] = -1
    return Graph.from_edges(
        edges.T,
        name="random",
        features=rng.random((NODES, 4)).astype(np.float32),
        labels=labels,
        num_classes=CLASSES,
    )


def graph_bytes(graph: Graph) -> bytes:
    """Return all arrays of a graph."""
    features = graph.features.toarray() if isinstance(graph.features, csr_array) else graph.features
    arrays = (graph.indptr, graph.indices, graph.labels, graph.node_keys, features)
    return b"".join(array.tobytes() for array in arrays)


def random_states() -> str:
    """Return the states of the generators that all code of a process shares."""
    states = np.random.get_state(legacy=False)
    return f"{random.getstate()} {states['state']['pos']} {states['state']['key'].tolist()}"


class PartitionerContract:
    """Set ``name``, as a configuration has it, in a subclass whose name begins with ``Test``.

    Attributes:
        name: Of the partitioner.
        clients: Numbers of clients that it can do.
    """

    name: str
    clients: tuple[int, ...] = (1, 2, 7)

    def assign(self, graph: Graph, clients: int, seed: int = 0) -> np.ndarray:
        """Return what the partitioner makes of a graph; what is no assignment is refused."""
        return assign_nodes(graph, partitioner=self.name, clients=clients, seed=seed)

    def test_every_client_has_nodes(self) -> None:
        for clients in self.clients:
            found = self.assign(labelled_graph(), clients)
            assert found.shape == (NODES,)
            assert found.dtype == np.int32
            assert sorted(set(found.tolist())) == list(range(clients))

    @pytest.mark.parametrize("seed", [0, 5])
    def test_same_seed_gives_the_same_assignment(self, seed: int) -> None:
        for clients in self.clients:
            results = [self.assign(labelled_graph(), clients, seed) for _ in range(2)]
            np.testing.assert_array_equal(results[0], results[1])

    def test_shared_random_generators_are_left_alone(self) -> None:
        before = random_states()
        self.assign(labelled_graph(), self.clients[-1])
        assert random_states() == before

    def test_graph_is_left_as_it_was(self) -> None:
        graph = labelled_graph()
        before = graph_bytes(graph)
        self.assign(graph, self.clients[-1])
        assert graph_bytes(graph) == before
