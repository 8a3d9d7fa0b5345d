from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from retexo_fl.additions.devices.training.locality import near_together
from retexo_fl.additions.devices.training.stage_task import unit_nodes
from retexo_fl.layers.base import StageInput
from retexo_fl.training.layer_trainer import NodeSets

SIZE = 1200


def path(seed: int, slots: int = 0) -> StageInput:
    """Return the edges of a path whose nodes are numbered at random; its last ones are slots."""
    places = np.random.default_rng(seed).permutation(SIZE)
    inner = SIZE - slots
    # Whoever has a slot's number is one.
    ends = [(places[at], places[at + 1]) for at in range(SIZE - 1)]
    edges = [(a, b) for a, b in [*ends, *[(b, a) for a, b in ends]] if b < inner]
    targets = np.array([b for _, b in edges])
    order = np.argsort(targets, kind="stable")
    counts = np.bincount(targets, minlength=inner)
    return StageInput(
        own=torch.zeros(inner, 1),
        received=torch.zeros(slots, 1),
        indptr=np.concatenate(([0], np.cumsum(counts))),
        indices=np.array([a for a, _ in edges], np.int64)[order],
        neighbours=counts,
        degrees=counts,
        own_hashes=np.zeros(inner, np.uint64),
        slot_hashes=np.zeros(slots, np.uint64),
    )


def sets(inputs: StageInput) -> NodeSets:
    nodes = np.arange(inputs.num_nodes)
    return NodeSets(
        train=nodes[nodes % 2 == 0],
        validation=nodes[nodes % 4 == 1],
        test=nodes[nodes % 4 == 3],
        labels=nodes % 3,
    )


def rows_read(nodes: NodeSets, inputs: StageInput) -> int:
    read = 0
    for unit in unit_nodes(nodes):
        sources = [
            inputs.indices[inputs.indptr[node] : inputs.indptr[node + 1]] for node in unit.train
        ]
        read += len(np.unique(np.concatenate([unit.train, *sources])))
    return read


def test_units_of_a_path_hardly_read_the_same_rows() -> None:
    for inputs in (path(1), path(2, slots=100)):
        nodes = sets(inputs)
        assert len(unit_nodes(nodes)) > 3
        ordered = near_together(nodes, inputs)
        assert rows_read(ordered, inputs) < 0.85 * rows_read(nodes, inputs)


def test_nodes_stay_the_same_and_ascend_within_a_unit() -> None:
    inputs = path(3)
    nodes = sets(inputs)
    ordered = near_together(nodes, inputs)
    for use in ("train", "validation", "test"):
        np.testing.assert_array_equal(np.sort(getattr(ordered, use)), getattr(nodes, use))
        for unit in unit_nodes(ordered):
            assert (np.diff(getattr(unit, use)) > 0).all()
    again = near_together(nodes, inputs)
    np.testing.assert_array_equal(again.train, ordered.train)


def test_nodes_without_edges_are_ordered_too() -> None:
    inputs = path(4)
    alone = replace(inputs, indptr=np.zeros(SIZE + 1, np.int64), indices=np.zeros(0, np.int64))
    assert len(near_together(sets(inputs), alone).train) == SIZE // 2
