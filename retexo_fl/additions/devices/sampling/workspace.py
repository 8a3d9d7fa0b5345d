"""Arrays of the size of the graph that kernels write in, kept by each thread for its next call."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from retexo_fl.additions.devices.sampling.adjacency import Adjacency
from retexo_fl.additions.devices.sampling.compiled import compiled


class Workspace:
    """What one call of a sampler writes in; between calls as it was made.

    Attributes:
        places: (N,) int32: place of each node found in this call, -1 of all others.
        nodes: (N + 1,) int64: the nodes found, by place; what is behind the last has no meaning.
        starts: (N,) int64: where the row of the node in each place begins.
        degrees: (N,) int64: of the node in each place.
        marks: (largest degree,) uint8 zeros.
        members: (N / 8,) uint8: a bit for each node, zeros.
    """

    def __init__(self, adjacency: Adjacency, largest_degree: int) -> None:
        """Take 4 bytes for each node of the graph, and further 24 for each that a call finds."""
        num_nodes = adjacency.num_nodes
        self.places = np.full(num_nodes, -1, dtype=np.int32)
        self.nodes = np.empty(num_nodes + 1, dtype=np.int64)
        self.starts = np.empty(num_nodes, dtype=np.int64)
        self.degrees = np.empty(num_nodes, dtype=np.int64)
        self.marks = np.zeros(largest_degree, dtype=np.uint8)
        self.members = np.zeros(num_nodes // 8 + 1, dtype=np.uint8)


class Workspaces:
    """A workspace for each thread that asks."""

    def __init__(self, adjacency: Adjacency) -> None:
        """Make none yet."""
        self._adjacency = adjacency
        self._largest_degree = int(adjacency.degrees.max(initial=0))
        self._of_thread = threading.local()

    def __reduce__(self) -> tuple[type[Workspaces], tuple[Adjacency]]:
        """Let samplers be sent to other processes, whose threads have workspaces of their own."""
        return Workspaces, (self._adjacency,)

    @contextmanager
    def taken(self) -> Iterator[Workspace]:
        """Lend this thread's workspace; after an error, which may have left it dirty, drop it."""
        found: Workspace | None = self._of_thread.__dict__.pop("workspace", None)
        workspace = found or Workspace(self._adjacency, self._largest_degree)
        yield workspace
        self._of_thread.workspace = workspace


@compiled
def add_nodes(
    found: np.ndarray, places: np.ndarray, nodes: np.ndarray, count: int, columns: np.ndarray
) -> int:
    """Give a place to each node that has none, in the order found, and write each node's place.

    Args:
        found: (E,) ids.
        places: (N,) place of each node, -1 without.
        nodes: (N + 1,) ids by place, the first ``count`` of them given.
        count: Nodes with a place.
        columns: (E,) int32 places of ``found``; may be the same array.

    Returns:
        Nodes with a place now.
    """
    # Unsigned, since of a negative index it would be asked whether it is; and without a branch on
    # what cannot be foreseen: the next node's entry is written in any case and kept if it is new.
    end = np.uint64(count)
    for edge in range(len(found)):
        node = np.uint64(found[edge])
        place = places[node]
        is_new = place < 0
        place = np.int32(end) if is_new else place
        places[node] = place
        nodes[end] = node
        end += np.uint64(is_new)
        columns[edge] = place
    return int(end)


@compiled
def read_rows(
    indptr: np.ndarray, nodes: np.ndarray, starts: np.ndarray, degrees: np.ndarray
) -> None:
    """Write where the row of each node begins and how long it is."""
    for place in range(len(nodes)):
        node = nodes[place]
        start = indptr[node]
        starts[place] = start
        degrees[place] = indptr[node + 1] - start


@compiled
def forget_nodes(nodes: np.ndarray, places: np.ndarray) -> None:
    """Take the places of nodes away."""
    for node in nodes:
        places[node] = -1
