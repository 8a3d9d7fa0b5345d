"""Which layers take which edges; which are trained on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from retexo_fl.client.part import (
    as_read,
    check_edges,
    note_unused_edges,
    without_peers,
)
from retexo_fl.errors import PartitionError
from retexo_fl.graph import BoundaryPlan, GraphPartition, cut_graph
from tests.unit.graph.graphs import CutCase, cut_cases
from tests.unit.graph.test_edge_values import small_parts


def negative_part() -> GraphPartition:
    part = small_parts()[0]
    weights = part.edge_values.weights
    assert weights is not None
    weights = np.where(np.arange(len(weights)) == 1, -2, weights)
    return replace(part, edge_values=replace(part.edge_values, weights=weights))


@pytest.mark.parametrize("model", ["gcn", "sage", "gat"])
def test_negative_weights_are_refused_in_one_line(model: str) -> None:
    check_edges(model, small_parts()[0])
    with pytest.raises(PartitionError) as caught:
        check_edges(model, negative_part())
    told = f"the edge of 'a' and 'ab' weighs -2; expected at least 0 with model {model}"
    assert str(caught.value) == f"client 0: {told}"


@pytest.mark.parametrize("model", ["gin", "sage-pool"])
def test_negative_weights_are_taken_or_not_read(model: str) -> None:
    check_edges(model, negative_part())


def test_directed_edges_are_refused() -> None:
    with pytest.raises(PartitionError, match="edges have a direction, which model sage does not"):
        check_edges("sage", small_parts(directed=True)[0])


def test_what_is_not_read_is_left_out_and_said(caplog: pytest.LogCaptureFixture) -> None:
    part = small_parts()[0]
    assert as_read("sage-pool", part).edge_values.is_plain
    assert as_read("gcn", part).edge_values.weights is part.edge_values.weights
    note_unused_edges("sage-pool", [part])
    assert caplog.messages == ["model sage-pool: weights and attributes of edges not used"]


@given(cut_cases())
def test_only_edges_between_inner_nodes_stay(case: CutCase) -> None:
    for part in cut_graph(case.graph, case.assignment, case.split):
        alone = without_peers(part)
        for node in range(part.num_inner):
            before = part.indices[part.indptr[node] : part.indptr[node + 1]]
            kept = alone.indices[alone.indptr[node] : alone.indptr[node + 1]]
            assert kept.tolist() == [at for at in before.tolist() if at < part.num_inner]
            assert alone.degrees[node] == len(kept)
        assert (alone.num_boundary, alone.peers) == (0, ())
        assert BoundaryPlan.from_partition(alone).num_slots == 0
        np.testing.assert_array_equal(alone.node_keys, part.node_keys)
