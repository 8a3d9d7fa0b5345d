"""Each client trains on its own part and shares nothing: what a federation is compared with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from retexo_fl.config import make_config
from retexo_fl.graph import Graph, Split, assign_nodes, make_split
from retexo_fl.graph.sources.datasets import load_dataset
from sims.trained import Trained
from sims.training import train_whole
from sims.trainings import Keys


def train_alone(keys: Keys) -> Trained:
    """Train a model for each client, on the nodes and edges that it has, and grade each at home.

    A client that lacks train or validation nodes has no model, and gets none of its nodes right.

    Returns:
        The share of all clients' test nodes that the owner's model gets right; no byte moves.
    """
    config = make_config(keys)
    folder = Path(config.data_dir) if config.data_dir else None
    graph = load_dataset(config.dataset, data_dir=folder)
    owners = assign_nodes(
        graph, partitioner=config.partitioner, clients=config.clients, seed=config.seed
    )
    split = make_split(graph, owners, split=config.split, seed=config.seed)
    own: dict[str, Any] = {**keys, "clients": 1, "partitioner": "random", "split": "published"}
    right, wall_s = 0, 0.0
    for client in range(config.clients):
        nodes = np.flatnonzero(owners == client)
        counts = [int(np.count_nonzero(mask[nodes])) for mask in split.named().values()]
        if not all(counts):
            continue
        trained = train_whole(own, graph=_part(graph, split, nodes))
        right += round(trained.accuracy * counts[-1])
        wall_s += trained.wall_s
    result = {
        "test_accuracy": right / int(np.count_nonzero(split.test)),
        "clients": config.clients,
        "bytes": {"payload": {"total": 0}},
    }
    return Trained(result=result, moved=[], history=[], wall_s=wall_s)


def _part(graph: Graph, split: Split, nodes: np.ndarray) -> Graph:
    """Return the graph of some nodes and the edges between them, with their masks."""
    place = np.full(graph.num_nodes, -1, dtype=np.int64)
    place[nodes] = np.arange(len(nodes))
    edges = place[graph.edge_list()]
    return Graph.from_edges(
        edges[:, (edges >= 0).all(axis=0)],
        name=graph.name,
        features=graph.features[nodes],
        labels=graph.labels[nodes],
        num_classes=graph.num_classes,
        split=Split(train=split.train[nodes], val=split.val[nodes], test=split.test[nodes]),
    )
