from __future__ import annotations

from threading import Thread

import numpy as np
import pytest

from retexo_fl.additions.devices.sampling import NeighbourSampler
from retexo_fl.additions.devices.sampling.workspace import (
    Workspace,
    Workspaces,
    add_nodes,
    forget_nodes,
)
from retexo_fl.additions.devices.workers.packing import pack_apart, unpack_apart
from tests.support.sampler_contract import NODES, random_adjacency, sample_digest


def test_each_thread_gets_its_own_workspace_again() -> None:
    workspaces = Workspaces(random_adjacency())
    found: list[Workspace] = []

    def take() -> None:
        with workspaces.taken() as workspace:
            found.append(workspace)

    take()
    take()
    other = Thread(target=take)
    other.start()
    other.join(timeout=10)
    assert found[0] is found[1]
    assert found[2] is not found[0]


def test_workspace_of_a_call_that_failed_is_dropped() -> None:
    workspaces = Workspaces(random_adjacency())
    with pytest.raises(MemoryError), workspaces.taken() as dirty:
        raise MemoryError
    with workspaces.taken() as workspace:
        assert workspace is not dirty


def test_nodes_get_places_in_order_found_even_if_all_are_found() -> None:
    adjacency = random_adjacency()
    found = np.random.default_rng(0).permutation(np.repeat(np.arange(NODES), 3))
    with Workspaces(adjacency).taken() as workspace:
        columns = np.empty(len(found), dtype=np.int32)
        assert add_nodes(found, workspace.places, workspace.nodes, 0, columns) == NODES
        expected = list(dict.fromkeys(found.tolist()))
        assert workspace.nodes[:NODES].tolist() == expected
        assert columns.tolist() == [expected.index(node) for node in found.tolist()]
        assert workspace.places[expected].tolist() == list(range(NODES))
        forget_nodes(workspace.nodes[:NODES], workspace.places)
        assert (workspace.places == -1).all()


def test_calls_within_a_call_do_not_share() -> None:
    workspaces = Workspaces(random_adjacency())
    with workspaces.taken() as outer, workspaces.taken() as inner:
        assert outer is not inner


def test_sampler_that_was_sent_to_another_process_draws_the_same() -> None:
    sampler = NeighbourSampler(random_adjacency(), (3, 2), seed=1)
    roots = np.arange(10)
    expected = sample_digest(sampler.sample(roots, epoch=0, batch=0))
    sent = unpack_apart(*pack_apart(sampler))
    assert sample_digest(sent.sample(roots, epoch=0, batch=0)) == expected
