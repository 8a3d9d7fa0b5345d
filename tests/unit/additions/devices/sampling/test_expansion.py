from __future__ import annotations

import numpy as np
import pytest

from retexo_fl.additions.devices.sampling import Adjacency
from retexo_fl.additions.devices.sampling.expansion import ALL_NEIGHBOURS, count_drawn, expanded
from retexo_fl.additions.devices.sampling.keyed_random import keyed_state
from retexo_fl.additions.devices.sampling.workspace import Workspace, Workspaces
from tests.support.sampler_contract import NODES, random_adjacency

KEYS = [keyed_state("test", layer) for layer in range(3)]


def left_as_it_was(workspace: Workspace) -> bool:
    """Whether the next call finds what the first one found."""
    return bool((workspace.places == -1).all()) and not workspace.marks.any()


def test_layers_are_drawn_from_roots_and_listed_from_the_input() -> None:
    # 0 hears of 1 and 2, 1 of 0 and 3, 2 of 1 alone.
    adjacency = Adjacency.from_edges(
        np.array([1, 2, 0, 3, 1]), np.array([0, 0, 1, 1, 2]), num_nodes=4
    )
    with Workspaces(adjacency).taken() as workspace:
        sample = expanded(
            adjacency,
            np.array([0]),
            fanouts=[ALL_NEIGHBOURS] * 2,
            keys=KEYS[:2],
            workspace=workspace,
        )
        assert left_as_it_was(workspace)
    inner, outer = sample.blocks
    assert outer.indptr.tolist() == [0, 2]
    assert outer.columns.tolist() == [1, 2]
    # The targets of the inner layer are all sources of the outer one: 0 draws once more.
    assert [nodes.tolist() for nodes in sample.layer_nodes] == [[0, 1, 2], [0]]
    assert inner.indptr.tolist() == [0, 2, 4, 5]
    assert inner.columns.tolist() == [1, 2, 0, 3, 1]
    assert sample.nodes.tolist() == [0, 1, 2, 3]
    assert sample.input_degrees.tolist() == [2, 2, 1, 0]
    assert sample.root_places.tolist() == [0]


@pytest.mark.parametrize("fanouts", [[4, 3, 2], [1, 1, 1], [ALL_NEIGHBOURS] * 3])
def test_count_is_that_of_each_root_drawn_alone(fanouts: list[int]) -> None:
    adjacency = random_adjacency()
    roots = np.arange(NODES)
    with Workspaces(adjacency).taken() as workspace:
        counts = count_drawn(adjacency, roots, fanouts=fanouts, keys=KEYS, workspace=workspace)
        assert left_as_it_was(workspace)
        alone = [
            expanded(
                adjacency, roots[root : root + 1], fanouts=fanouts, keys=KEYS, workspace=workspace
            ).num_aggregations
            for root in roots
        ]
    assert counts.tolist() == alone


def test_same_key_of_two_layers_would_draw_the_same() -> None:
    # Why each layer has a key of its own: a target draws by key and id alone.
    adjacency = random_adjacency()
    node = int(np.argmax(adjacency.degrees))
    with Workspaces(adjacency).taken() as workspace:
        sample = expanded(
            adjacency, np.array([node]), fanouts=[5, 5], keys=[KEYS[0]] * 2, workspace=workspace
        )
        other = expanded(
            adjacency, np.array([node]), fanouts=[5, 5], keys=KEYS[:2], workspace=workspace
        )
    assert sample.blocks[0].columns[:5].tolist() == sample.blocks[1].columns.tolist()
    assert other.blocks[0].columns[:5].tolist() != other.blocks[1].columns.tolist()
