"""Cora cut over two clients at random, or a graph of its sizes where Cora is not there."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import torch
from scipy.sparse import csr_array, random_array

from retexo_fl.graph import (
    BoundaryPlan,
    Graph,
    GraphPartition,
    assign_nodes,
    cut_graph,
    load_dataset,
    make_split,
)
from retexo_fl.layers.base import StageInput
from retexo_fl.layers.named import layer_class
from tests.support.data import real_graphs

#: Cora's sizes: nodes, undirected edges, features, classes, share of features that are 1.
_NODES: Final = 2708
_EDGES: Final = 5278
_FEATURES: Final = 1433
_CLASSES: Final = 7
_DENSITY: Final = 0.0127


def load_parts(folder: Path | None) -> tuple[list[GraphPartition], str]:
    """Return two parts and the name of what they were cut from.

    Args:
        folder: Holds ``cora.npz``; None for where the tests look.
    """
    graph = _cora(folder) or _cora_like()
    owners = assign_nodes(graph, partitioner="random", clients=2, seed=0)
    split = make_split(graph, owners, split="random:0.2/0.1/0.7", seed=0)
    return cut_graph(graph, owners, split), graph.name


def stage_input(parts: list[GraphPartition], model: str) -> StageInput:
    """Return client 0's sparse input of stage 1 as if its peers had sent their rows."""
    part, plan = parts[0], BoundaryPlan.from_partition(parts[0])
    received = csr_array((part.num_boundary, part.num_features), dtype=np.float32)
    for peer in part.peers:
        owner = parts[peer]
        scale = layer_class(model).message_scale(owner.degrees)
        factors = np.ones(owner.num_inner) if scale is None else scale
        features = csr_array(owner.features)
        rows = csr_array(features.multiply(factors.astype(np.float32)[:, None]))
        sent = BoundaryPlan.from_partition(owner).peer(0).send.gather(rows)
        slots = np.arange(part.num_boundary)[plan.peer(peer).receive.slots]
        place = csr_array(
            (np.ones(len(slots), np.float32), (slots, np.arange(len(slots)))),
            shape=(part.num_boundary, len(slots)),
        )
        received = csr_array(received + place @ sent)
    return StageInput(
        own=csr_array(part.features),
        received=received,
        indptr=part.indptr,
        indices=part.indices.astype(np.int64),
        neighbours=part.degrees,
        degrees=part.degrees,
        own_hashes=part.node_hashes,
        slot_hashes=part.boundary_hashes,
    )


def densified(inputs: StageInput) -> StageInput:
    """Return the same input as dense tensors."""
    return StageInput(
        own=_dense(inputs.own),
        received=_dense(inputs.received),
        indptr=inputs.indptr,
        indices=inputs.indices,
        neighbours=inputs.neighbours,
        degrees=inputs.degrees,
        own_hashes=inputs.own_hashes,
        slot_hashes=inputs.slot_hashes,
    )


def _dense(rows: torch.Tensor | csr_array) -> torch.Tensor:
    return rows if isinstance(rows, torch.Tensor) else torch.from_numpy(rows.toarray())


def _cora(folder: Path | None) -> Graph | None:
    folder = folder or real_graphs()
    return load_dataset("cora", data_dir=folder) if folder else None


def _cora_like() -> Graph:
    rng = np.random.default_rng(0)
    features = random_array((_NODES, _FEATURES), density=_DENSITY, format="csr", rng=rng)
    features.data[:] = 1.0
    features.sort_indices()
    pairs = np.sort(rng.integers(0, _NODES, (2 * _EDGES, 2)), axis=1)
    pairs = np.unique(pairs[pairs[:, 0] < pairs[:, 1]], axis=0)
    edges = rng.permutation(pairs)[:_EDGES].T
    return Graph.from_edges(
        edges,
        name="synthetic with Cora's sizes and density",
        features=csr_array(features.astype(np.float32)),
        labels=rng.integers(0, _CLASSES, _NODES),
        num_classes=_CLASSES,
    )
