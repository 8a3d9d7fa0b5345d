"""Splits that a training without clients shares with the trainings it is compared with."""

from __future__ import annotations

from typing import Final

import numpy as np

from retexo_fl.graph import Graph, Split, assign_nodes, make_split

#: Of each class of each client: train, validation, test.
#: Source: OpenFGL 1.1.0, ``subgraph_fl`` on the three citation graphs.
OPENFGL: Final = "per-client-class:0.2/0.4/0.4"
OPENFGL_CLIENTS: Final = 10


def openfgl_louvain(graph: Graph, assignment: np.ndarray, seed: int) -> Split:
    """Return the masks that ten clients by Louvain have, whoever asks."""
    del assignment
    return _of_ten_clients(graph, "louvain", seed)


def openfgl_metis(graph: Graph, assignment: np.ndarray, seed: int) -> Split:
    """Return the masks that ten clients by METIS have, whoever asks."""
    del assignment
    return _of_ten_clients(graph, "metis", seed)


def openfgl_random(graph: Graph, assignment: np.ndarray, seed: int) -> Split:
    """Return the masks that ten random clients have, whoever asks."""
    del assignment
    return _of_ten_clients(graph, "random", seed)


def _of_ten_clients(graph: Graph, partitioner: str, seed: int) -> Split:
    owners = assign_nodes(graph, partitioner=partitioner, clients=OPENFGL_CLIENTS, seed=seed)
    return make_split(graph, owners, split=OPENFGL, seed=seed)
