from __future__ import annotations

import numpy as np
from hypothesis import given

from retexo_fl.graph import BoundaryPlan, cut_graph
from retexo_fl.graph.parts.isolated import without_peers
from tests.unit.graph.graphs import CutCase, cut_cases


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
