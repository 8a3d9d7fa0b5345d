from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from retexo_fl.additions.devices.sampling import Adjacency, Block
from retexo_fl.additions.devices.sampling.induction import induced_block
from retexo_fl.additions.devices.sampling.workspace import Workspaces
from tests.support.reference_samplers import induced, rows_of
from tests.support.sampler_contract import NODES, random_adjacency


def block_of(adjacency: Adjacency, *groups: list[int]) -> Block:
    """Return the induced block of groups of nodes."""
    nodes = np.array([node for group in groups for node in group], dtype=np.int64)
    bounds = np.cumsum([0, *map(len, groups)])
    with Workspaces(adjacency).taken() as workspace:
        return induced_block(adjacency, nodes, bounds, workspace)


@given(nodes=st.lists(st.integers(0, NODES - 1), unique=True, max_size=NODES))
def test_one_group_is_what_scipy_selects(nodes: list[int]) -> None:
    adjacency = random_adjacency()
    block = block_of(adjacency, nodes)
    ones = np.ones(adjacency.num_edges, dtype=np.int8)
    shape = (NODES, NODES)
    whole = csr_array((ones, adjacency.indices, adjacency.indptr), shape=shape)
    expected = whole[nodes][:, nodes].toarray()
    found = np.zeros_like(expected)
    found[np.repeat(np.arange(len(nodes)), np.diff(block.indptr)), block.columns] += 1
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(block.degrees, expected.sum(axis=1))


@given(groups=st.lists(st.lists(st.integers(0, NODES - 1), unique=True, max_size=9), max_size=6))
def test_groups_share_no_edge(groups: list[list[int]]) -> None:
    adjacency = random_adjacency()
    block = block_of(adjacency, *groups)
    found = [row.tolist() for row in np.split(block.columns, block.indptr[1:-1])]
    expected, start = [], 0
    for group in groups:
        places = {node: start + place for place, node in enumerate(group)}
        expected += [[places[v] for v in row] for row in induced(rows_of(adjacency), group)]
        start += len(group)
    assert [row for row in found if row] == [row for row in expected if row]
    assert block.num_sources == block.num_targets == start


@pytest.mark.parametrize("wide", [False, True])
def test_long_rows_are_searched_with_the_same_result(wide: bool) -> None:
    # Rows of 5000 neighbours and of none against groups of 1 to 40: searched, and read whole.
    rng = np.random.default_rng(0)
    hubs = np.array([3, 8000, 9999])
    sources = [rng.choice(10_000, 5000, replace=False) for _ in hubs]
    few = rng.integers(0, 10_000, (2, 40_000))
    adjacency = Adjacency.from_edges(
        np.concatenate((*sources, few[0])),
        np.concatenate((np.repeat(hubs, 5000), few[1])),
        num_nodes=10_000,
    )
    if wide:
        adjacency = Adjacency(indptr=adjacency.indptr, indices=adjacency.indices.astype(np.int64))
    groups = [
        list(dict.fromkeys([*rng.permutation(hubs).tolist(), *rng.integers(0, 10_000, size)]))
        for size in (0, 1, 5, 40, 400)
    ]
    # The first and the last neighbour of a long row, which a search by halves may pass by.
    ends = adjacency.indices[[adjacency.indptr[3], adjacency.indptr[4] - 1]].tolist()
    groups.append([3, *ends])
    block = block_of(adjacency, *groups, [int(adjacency.indices[0])], [9999])
    nodes = np.concatenate((*groups, adjacency.indices[:1], [9999]))
    assert block.columns.dtype == np.int32
    assert block.num_edges > 500
    whole, start = rows_of(adjacency), 0
    for group in groups:
        members = set(group)
        for row, node in enumerate(group, start):
            found = nodes[block.columns[block.indptr[row] : block.indptr[row + 1]]]
            assert found.tolist() == [other for other in whole[node] if other in members]
        start += len(group)


def test_workspace_is_left_as_it_was() -> None:
    adjacency = random_adjacency()
    workspaces = Workspaces(adjacency)
    nodes = np.arange(5, 25)
    with workspaces.taken() as workspace:
        induced_block(adjacency, nodes, np.array([0, 12, 20]), workspace)
        assert not workspace.members.any()
        assert (workspace.places == -1).all()
        assert not workspace.marks.any()
