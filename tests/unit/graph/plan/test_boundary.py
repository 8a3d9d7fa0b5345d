"""Plans: by hand on a small graph, and that both ends always agree."""

from __future__ import annotations

import hashlib
import struct

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from retexo_fl.errors import PartitionError
from retexo_fl.graph import BoundaryPlan, GraphPartition, PeerPlan, cut_graph
from tests.support.edge_lists import CutEdge, cut_edges, with_cut_edges
from tests.unit.graph.graphs import (
    SMALL_FEATURES,
    SMALL_SPLIT,
    CutCase,
    cut_cases,
    small_graph,
    small_parts,
)


def test_plan_lists_rows_and_slots_in_key_order() -> None:
    first, second = small_parts()
    plan = BoundaryPlan.from_partition(first)
    assert [item.peer for item in plan.peers] == [1]
    assert plan.peer(1).send.rows.tolist() == [0, 1]  # a and d; z has no edge
    assert plan.peer(1).receive.slots.tolist() == [0, 1, 2]
    assert (plan.num_send, plan.num_receive) == (2, 3)
    other = BoundaryPlan.from_partition(second)
    assert other.peer(0).send.rows.tolist() == [0, 1, 2]
    assert other.peer(0).receive.slots.tolist() == [0, 1]
    assert plan.peer(1).send.count == other.peer(0).receive.count == 2


def test_a_plan_of_rows_adds_gradients_alone() -> None:
    parts = cut_graph(small_graph(), np.array([0, 2, 1, 1, 2, 0]), SMALL_SPLIT)
    plan = BoundaryPlan.from_partition(parts[0])  # a and d, which have edges to both others
    assert plan.incoming_targets is None
    assert plan.num_added == 0
    sent = np.concatenate([peer.send.rows for peer in plan.peers]).tolist()
    assert plan.num_added_back == len(sent) - len(set(sent)) == 1
    alone = BoundaryPlan.from_partition(small_parts()[0], "cover")  # sums of one peer
    assert alone.num_added == 0


def test_plan_splits_slots_by_owner() -> None:
    parts = cut_graph(small_graph(), np.array([0, 2, 1, 1, 2, 0]), SMALL_SPLIT)
    plan = BoundaryPlan.from_partition(parts[1])  # b and c; b-d(0), c-a(2)
    assert [item.peer for item in plan.peers] == [0, 2]
    assert plan.peer(0).send.rows.tolist() == [0]
    assert plan.peer(0).receive.slots.tolist() == [0]
    assert plan.peer(2).send.rows.tolist() == [1]
    assert plan.peer(2).receive.slots.tolist() == [1]
    assert plan.peer(2).receive.slots.dtype == plan.peer(2).send.rows.dtype == np.int64


def test_plan_digest_is_as_documented() -> None:
    first, second = small_parts()  # a-ab, a-c, d-b; a and d are of client 0
    content = (
        b"rows"
        + first.partitioning.encode()
        + struct.pack("<5Q", 0, 1, 2, 3, 3)  # clients, nodes on each side, edges
        + struct.pack("<2I", 1, 1)
        + b"ad"
        + struct.pack("<3I", 2, 1, 1)
        + b"abbc"
        + struct.pack("<6I", 0, 0, 0, 2, 1, 1)
    )
    expected = hashlib.sha256(content).digest()
    assert BoundaryPlan.from_partition(first).peer(1).digest == expected
    assert BoundaryPlan.from_partition(second).peer(0).digest == expected


def test_plan_digests_differ_by_partitioning() -> None:
    plan = BoundaryPlan.from_partition(small_parts()[0])
    other = cut_graph(
        small_graph(features=-SMALL_FEATURES), np.array([0, 0, 1, 1, 1, 0]), SMALL_SPLIT
    )
    assert BoundaryPlan.from_partition(other[0]).peer(1).digest != plan.peer(1).digest


def test_plan_for_a_stranger_holds_nothing() -> None:
    plan = PeerPlan.of_stranger(7)
    assert (plan.peer, plan.num_edges, plan.send.count, plan.receive.count) == (7, 0, 0, 0)
    assert len(plan.digest) == 32


def test_rows_are_read_one_by_one_and_their_gradients_added() -> None:
    plan = BoundaryPlan.from_partition(small_parts()[0])
    assert plan.incoming_targets is None
    assert {p: t.tolist() for p, t in plan.returning_targets.items()} == {
        peer.peer: peer.send.rows.tolist() for peer in plan.peers
    }


def test_gather_takes_dense_and_sparse_rows() -> None:
    send = BoundaryPlan.from_partition(small_parts()[1]).peer(0).send
    matrix = np.arange(6, dtype=np.float32).reshape(3, 2)
    np.testing.assert_array_equal(send.gather(matrix), matrix)
    sparse = send.gather(csr_array(matrix))
    assert isinstance(sparse, csr_array)
    np.testing.assert_array_equal(sparse.toarray(), matrix)


def test_plan_of_a_part_without_peers_is_empty() -> None:
    (part,) = cut_graph(small_graph(), np.zeros(6, dtype=int), SMALL_SPLIT)
    plan = BoundaryPlan.from_partition(part)
    assert plan.peers == ()
    assert (plan.num_send, plan.num_receive) == (0, 0)


def test_plan_gives_no_peers_plan_for_a_client_between_its_peers() -> None:
    for part in cut_graph(small_graph(), np.arange(6), SMALL_SPLIT):
        plan = BoundaryPlan.from_partition(part)
        peers = {peer.peer for peer in plan.peers}
        for index in range(6):
            if index in peers:
                assert plan.peer(index).peer == index
                continue
            with pytest.raises(PartitionError, match=f"shares no edge with client {index}"):
                plan.peer(index)


@pytest.mark.parametrize("stranger", [0, 2, 7])
def test_plan_names_a_client_that_is_no_peer(stranger: int) -> None:
    parts = cut_graph(small_graph(), np.array([0, 2, 1, 1, 2, 3]), SMALL_SPLIT)
    plan = BoundaryPlan.from_partition(parts[3])  # z alone
    with pytest.raises(PartitionError, match=f"client 3 shares no edge with client {stranger}"):
        plan.peer(stranger)


@given(cut_cases())
def test_plans_of_two_clients_agree(case: CutCase) -> None:
    parts = cut_graph(case.graph, case.assignment, case.split)
    plans = [BoundaryPlan.from_partition(part) for part in parts]
    assert sum(plan.num_send for plan in plans) == sum(plan.num_receive for plan in plans)
    digests = set()
    for part, plan in zip(parts, plans, strict=True):
        assert tuple(item.peer for item in plan.peers) == part.peers
        assert plan.num_receive == part.num_boundary
        for item in plan.peers:
            far = plans[item.peer].peer(part.client)
            back = far.receive
            keys = part.node_keys[item.send.rows].tolist()
            assert keys == parts[item.peer].boundary_keys[back.slots].tolist()
            assert (item.num_edges, item.digest) == (far.num_edges, far.digest)
            assert item.send.count == back.count > 0
            digests.add(item.digest)
        assert sum(item.num_edges for item in plan.peers) == part.num_cut_edges
    assert 2 * len(digests) == sum(len(plan.peers) for plan in plans)


@given(cut_cases())
def test_plan_sends_a_row_to_exactly_the_peers_of_its_edges(case: CutCase) -> None:
    index = {key: node for node, key in enumerate(case.graph.node_keys.tolist())}
    expected = set()
    for u, v in case.graph.edge_list().T.tolist():
        for node, other in ((u, v), (v, u)):
            if case.assignment[node] != case.assignment[other]:
                expected.add((node, int(case.assignment[other])))
    found = set()
    for part in cut_graph(case.graph, case.assignment, case.split):
        for item in BoundaryPlan.from_partition(part).peers:
            keys = part.node_keys[item.send.rows].tolist()
            found |= {(index[key], item.peer) for key in keys}
    assert found == expected


def _edge_lists(part: GraphPartition) -> dict[int, tuple[int, bytes]]:
    plan = BoundaryPlan.from_partition(part)
    return {item.peer: (item.num_edges, item.digest) for item in plan.peers}


@given(cut_cases(), st.data())
def test_plan_shows_an_unlisted_edge_to_that_peer_alone(case: CutCase, data: st.DataObject) -> None:
    parts = cut_graph(case.graph, case.assignment, case.split)
    listing = [part for part in parts if part.num_boundary]
    assume(listing)
    part = data.draw(st.sampled_from(listing))
    edges = cut_edges(part)
    left_out = data.draw(st.sampled_from(edges))
    before = _edge_lists(part)
    after = _edge_lists(with_cut_edges(part, [edge for edge in edges if edge != left_out]))
    count, digest = before.pop(left_out.owner)
    count_after, digest_after = after.pop(left_out.owner, (0, b""))
    assert count_after == count - 1
    assert digest_after != digest
    assert after == before


@given(cut_cases(), st.data())
def test_plan_shows_an_edge_that_is_listed_at_another_node(
    case: CutCase, data: st.DataObject
) -> None:
    parts = cut_graph(case.graph, case.assignment, case.split)
    listing = [part for part in parts if part.num_boundary and part.num_inner > 1]
    assume(listing)
    part = data.draw(st.sampled_from(listing))
    edges = cut_edges(part)
    moved = data.draw(st.sampled_from(edges))
    others = [
        CutEdge(row, moved.owner, moved.key)
        for row in range(part.num_inner)
        if CutEdge(row, moved.owner, moved.key) not in edges
    ]
    assume(others)
    instead = data.draw(st.sampled_from(others))
    changed = with_cut_edges(part, [instead if edge == moved else edge for edge in edges])
    before, after = _edge_lists(part), _edge_lists(changed)
    (count, digest), (count_after, digest_after) = before.pop(moved.owner), after.pop(moved.owner)
    assert count_after == count
    assert digest_after != digest
    assert after == before
