from __future__ import annotations

import numpy as np
import pytest

from retexo_fl.client.preparation import make_parts
from retexo_fl.config import make_config
from retexo_fl.graph import BoundaryPlan, assign_nodes, load_dataset
from sims import boundary_counts
from sims.boundary_counts import count_pairs

pytestmark = pytest.mark.slow

GRAPH = "synthetic:nodes=300,features=4,degree=6"


@pytest.mark.parametrize("chunk", [64, 2**16])
@pytest.mark.parametrize("clients", [1, 2, 5])
def test_pairs_are_those_of_the_parts_that_a_cut_gives(
    clients: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boundary_counts, "_CHUNK_NODES", chunk)
    graph = load_dataset(GRAPH, data_dir=None)
    owners = assign_nodes(graph, partitioner="random", clients=clients, seed=3)
    found = count_pairs(graph, owners, clients)
    parts = make_parts(make_config({"dataset": GRAPH, "clients": clients, "seed": 3}))
    expected = np.zeros((clients, clients), dtype=np.int64)
    for part in parts:
        for peer in BoundaryPlan.from_partition(part).peers:
            expected[part.client, peer.peer] = peer.receive.count
    assert np.array_equal(found, expected)
    assert bool(found.sum()) == (clients > 1)
