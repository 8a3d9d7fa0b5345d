"""Clients whose shares of each class differ by chance."""

from __future__ import annotations

from typing import Final

import numpy as np

from retexo_fl.errors import ConfigurationError
from retexo_fl.graph.graph import Graph
from retexo_fl.graph.seeding import seeded_generator

#: Of a client, at least; of few nodes, half of what an equal share would be.
_LEAST_NODES: Final = 10
_LEAST_SHARE: Final = 0.5
#: So many draws are tried before a small BETA is refused.
_MOST_DRAWS: Final = 1000


def assign_by_dirichlet(graph: Graph, beta: float, clients: int, seed: int) -> np.ndarray:
    """Share each class out by proportions drawn from a symmetric Dirichlet distribution.

    A client that has N / clients nodes gets none of the classes that follow. All is drawn anew
    where a client has fewer than 10 nodes. Nodes without a label are one more class.

    Args:
        graph: With classes as labels.
        beta: Above 0: the larger, the more alike the clients.
        clients: At least 1, at most N.
        seed: At least 0.

    Raises:
        ConfigurationError: Labels are no classes, or ``beta`` is too small for so many clients.

    Source: FedGraph, ``label_dirichlet_partition``; Li, Diao, Chen, He, Federated Learning on
        Non-IID Data Silos: An Experimental Study, ICDE 2022.
    """
    if not graph.label_kind.are_classes:
        raise ConfigurationError(
            f"partitioner: 'dirichlet' shares out classes, and the labels of data set "
            f"{graph.name!r} are {graph.label_kind.what}; expected random, louvain or metis"
        )
    generator = seeded_generator(seed, "dirichlet partition")
    least = max(1, min(_LEAST_NODES, int(_LEAST_SHARE * graph.num_nodes / clients)))
    for _ in range(_MOST_DRAWS):
        assignment = _drawn(graph.labels, beta, clients, generator)
        if assignment is None:
            continue
        if np.bincount(assignment, minlength=clients).min() >= least:
            return assignment
    raise ConfigurationError(
        f"partitioner: 'dirichlet:{beta:g}' left one of {clients} clients with fewer than {least} "
        f"nodes of data set {graph.name!r} in {_MOST_DRAWS:,} draws; expected a larger number, or "
        "fewer clients"
    )


def _drawn(
    labels: np.ndarray, beta: float, clients: int, generator: np.random.Generator
) -> np.ndarray | None:
    """Return one draw, [N] the client of each node; None where a class has no client."""
    assignment = np.empty(len(labels), dtype=np.int32)
    sizes = np.zeros(clients, dtype=np.int64)
    for label in np.unique(labels):
        nodes = generator.permutation(np.flatnonzero(labels == label))
        shares = generator.dirichlet(np.full(clients, beta))
        shares = np.where(sizes * clients < len(labels), shares, 0.0)
        if not shares.any():  # all of it fell to clients that are full
            return None
        ends = (np.cumsum(shares) / shares.sum() * len(nodes)).astype(np.int64)
        ends[-1] = len(nodes)
        owners = np.searchsorted(ends, np.arange(len(nodes)), side="right")
        assignment[nodes] = owners
        sizes += np.bincount(owners, minlength=clients)
    return assignment
