"""The plan with the fewest vectors: both ends agree, every edge is read once, nothing is wasted."""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from dataclasses import asdict
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching

from retexo_fl.errors import PartitionError
from retexo_fl.graph import PLAN_KINDS, BoundaryPlan, GraphPartition, cut_graph
from retexo_fl.graph.plan import cut_edges as cut_edges_module
from retexo_fl.graph.plan.boundary import PeerPlans
from retexo_fl.graph.plan.cover_plan import minimum_vertex_cover
from retexo_fl.graph.plan.cut_edges import CutEdges
from retexo_fl.graph.plan.stage_edges import StageEdges
from tests.support.edge_lists import cut_edges
from tests.unit.graph.graphs import SMALL_SPLIT, CutCase, cut_cases, small_graph, small_parts

#: Each example is two plans for each of up to 14 clients.
FEW = settings(max_examples=40)


def plans_of(parts: list[GraphPartition], kind: str = "cover") -> list[BoundaryPlan]:
    return [BoundaryPlan.from_partition(part, kind) for part in parts]


def received(
    parts: list[GraphPartition], plans: list[BoundaryPlan], width: int
) -> list[np.ndarray]:
    """Return every client's received block when nodes' rows are unit vectors of the whole graph."""
    blocks = [np.zeros((plan.num_slots, width)) for plan in plans]
    first = np.concatenate(([0], np.cumsum([part.num_inner for part in parts])))
    for plan, part in zip(plans, parts, strict=True):
        rows = np.eye(width)[first[part.client] : first[part.client + 1]]
        for item in plan.peers:
            slots = plans[item.peer].peer(part.client).receive.slots
            blocks[item.peer][slots] += item.send.gather(rows)
    return blocks


def neighbour_sums(edges: StageEdges, own: np.ndarray, block: np.ndarray) -> np.ndarray:
    stacked = np.concatenate((own, block))
    return np.array(
        [
            stacked[edges.indices[a:b]].sum(axis=0)
            for a, b in zip(edges.indptr[:-1], edges.indptr[1:], strict=True)
        ]
    )


@FEW
@given(cut_cases(), st.sampled_from(PLAN_KINDS))
def test_counted_plans_have_the_vectors_of_whole_ones(case: CutCase, kind: str) -> None:
    for part in cut_graph(case.graph, case.assignment, case.split):
        whole = BoundaryPlan.from_partition(part, kind)
        counted = PeerPlans.counted(part, PLAN_KINDS)[kind]
        assert counted.client == whole.client
        for mine, other in zip(counted.peers, whole.peers, strict=True):
            assert (mine.peer, mine.num_edges) == (other.peer, other.num_edges)
            for name in ("send", "receive"):
                np.testing.assert_equal(asdict(getattr(mine, name)), asdict(getattr(other, name)))


@FEW
@given(cut_cases())
def test_many_cut_edges_are_ordered_as_few(case: CutCase) -> None:
    """Few are sorted, many counted: both ways of all that these graphs have."""
    for part in cut_graph(case.graph, case.assignment, case.split):
        if not part.num_boundary:
            continue
        few = CutEdges.of(part)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(cut_edges_module, "_SORTED_BELOW", 0)
            np.testing.assert_equal(asdict(CutEdges.of(part)), asdict(few))


def test_plan_by_hand() -> None:
    """Edges a-ab, a-c, d-b; client 0 owns a and d. a stands for two edges; of d and b the first."""
    first, second = plans_of(small_parts())
    assert (first.num_send, second.num_send) == (2, 2)
    assert (first.num_slots, second.num_slots) == (2, 2)
    out, back = first.peer(1).send, second.peer(0).send
    assert (out.rows.tolist(), out.sums) == ([0, 1], None)  # a, d
    assert back.rows.tolist() == []
    assert back.sums is not None
    assert back.sums.indptr.tolist() == [0, 2, 3]
    assert back.sums.members.tolist() == [0, 2, 1]  # ab and c for a, b for d
    # Client 0 reads d - a, then a sum for each; client 1 a row for ab, b and c, and an edge b - c.
    assert first.edges.indices.tolist() == [1, 3, 0, 4]
    assert first.edges.neighbours is not None
    assert first.edges.neighbours.tolist() == [1, 2, 1, 1]
    assert first.edges.neighbour_counts.tolist() == small_parts()[0].degrees.tolist()
    assert first.edges.slot_hashes.tolist() == [0, 0]
    hashes = small_parts()[0].node_hashes
    assert second.edges.slot_hashes.tolist() == hashes[:2].tolist()


@given(cut_cases())
@FEW
def test_a_slot_has_the_hash_of_the_node_whose_row_lands_there(case: CutCase) -> None:
    parts = cut_graph(case.graph, case.assignment, case.split)
    plans = plans_of(parts)
    for plan in plans:
        for item in plan.peers:
            rows = plans[item.peer].peer(plan.client).send.rows
            hashes = plan.edges.slot_hashes[item.receive.slots]
            expected = parts[item.peer].node_hashes[rows]
            assert hashes[: len(rows)].tolist() == expected.tolist()
            assert not hashes[len(rows) :].any()


def test_plan_digest_is_as_documented() -> None:
    first, second = small_parts()
    content = (
        b"cover"
        + first.partitioning.encode()
        + struct.pack("<5Q", 0, 1, 2, 3, 3)
        + struct.pack("<2I", 1, 1)
        + b"ad"
        + struct.pack("<3I", 2, 1, 1)
        + b"abbc"
        + struct.pack("<6I", 0, 0, 0, 2, 1, 1)
    )
    for part, peer in ((first, 1), (second, 0)):
        plan = BoundaryPlan.from_partition(part, "cover").peer(peer)
        assert plan.digest == hashlib.sha256(content).digest()
        assert plan.digest != BoundaryPlan.from_partition(part, "rows").peer(peer).digest


def test_other_kinds_of_plans_are_refused() -> None:
    with pytest.raises(PartitionError, match="'sums'; expected rows or cover"):
        BoundaryPlan.from_partition(small_parts()[0], "sums")


def test_plan_of_a_part_without_peers_is_empty() -> None:
    (part,) = cut_graph(small_graph(), np.zeros(6, dtype=int), SMALL_SPLIT)
    plan = BoundaryPlan.from_partition(part, "cover")
    assert (plan.peers, plan.num_slots, plan.num_send) == ((), 0, 0)
    np.testing.assert_array_equal(plan.edges.neighbour_counts, part.degrees)


@given(cut_cases())
@FEW
def test_stages_read_every_neighbour_once(case: CutCase) -> None:
    parts = cut_graph(case.graph, case.assignment, case.split)
    total = case.graph.num_nodes
    sums = {}
    for kind in ("rows", "cover"):
        plans = plans_of(parts, kind)
        blocks = received(parts, plans, total)
        first = np.concatenate(([0], np.cumsum([part.num_inner for part in parts])))
        sums[kind] = [
            neighbour_sums(plan.edges, np.eye(total)[a:b], block)
            for plan, block, a, b in zip(plans, blocks, first[:-1], first[1:], strict=True)
        ]
        for plan, part in zip(plans, parts, strict=True):
            np.testing.assert_array_equal(plan.edges.neighbour_counts, part.degrees)
    for rows, cover in zip(sums["rows"], sums["cover"], strict=True):
        np.testing.assert_array_equal(cover, rows)
        assert set(np.unique(cover)) <= {0.0, 1.0}


@given(cut_cases())
@FEW
def test_a_target_is_the_one_node_that_reads_the_sum(case: CutCase) -> None:
    parts = cut_graph(case.graph, case.assignment, case.split)
    for plan in plans_of(parts):
        sources = plan.edges.indices - plan.edges.num_nodes
        readers = np.repeat(np.arange(plan.edges.num_nodes), np.diff(plan.edges.indptr))
        incoming = plan.incoming_targets
        assert (incoming is None) == (not plan.peers)
        for item in plan.peers:
            targets = item.receive.targets
            assert incoming is not None
            assert targets is not None
            assert incoming[item.peer] is targets
            assert len(targets) == item.receive.count
            for slot, target in zip(item.receive.slots, targets, strict=True):
                assert (target < 0) == (plan.edges.slot_hashes[slot] != 0)
                if target >= 0:
                    assert readers[sources == slot].tolist() == [target]
            sums = item.send.sums.count if item.send.sums else 0
            returning = plan.returning_targets[item.peer]
            assert returning.tolist() == [*item.send.rows.tolist(), *[-1] * sums]


@given(cut_cases())
@FEW
def test_plans_of_two_clients_agree_and_waste_nothing(case: CutCase) -> None:
    parts = cut_graph(case.graph, case.assignment, case.split)
    plans, rows = plans_of(parts), plans_of(parts, "rows")
    for plan, other in zip(plans, rows, strict=True):
        assert plan.num_receive == plan.num_slots
        slots = [slot for item in plan.peers for slot in item.receive.slots.tolist()]
        assert slots == list(range(plan.num_slots))
        for item in plan.peers:
            back = plans[item.peer].peer(plan.client)
            assert item.send.count == back.receive.count == item.receive.count
            assert (item.num_edges, item.digest) == (back.num_edges, back.digest)
            # A node in the cover sends its row in one direction, and gets a sum in the other.
            sums = back.send.sums.count if back.send.sums else 0
            assert len(item.send.rows) == sums
            pure = other.peer(item.peer)
            assert 0 < item.send.count <= min(pure.send.count, pure.receive.count)


@given(cut_cases())
@FEW
def test_edges_without_a_peer_are_those_of_the_others(case: CutCase) -> None:
    parts = cut_graph(case.graph, case.assignment, case.split)
    for part, plan, rows in zip(parts, plans_of(parts), plans_of(parts, "rows"), strict=True):
        for missing in {item.peer for item in plan.peers}:
            left = [
                each.edges.without(each.peer(missing).receive.slots).neighbour_counts
                for each in (plan, rows)
            ]
            gone = Counter(edge.row for edge in cut_edges(part) if edge.owner == missing)
            lost = [gone[row] for row in range(part.num_inner)]
            np.testing.assert_array_equal(left[0], part.degrees - lost)
            np.testing.assert_array_equal(left[1], part.degrees - lost)


# ---- smallest vertex covers ---------------------------------------------------------------------

Edges = set[tuple[int, int]]


def graph_of(edges: Edges, left: int, right: int) -> csr_array:
    ends = np.array(sorted(edges), dtype=np.int64).reshape(-1, 2).T
    return csr_array((np.ones(len(edges), dtype=bool), tuple(ends)), shape=(left, right))


@st.composite
def bipartite(draw: st.DrawFn, most: int = 12) -> tuple[Edges, int, int]:
    left, right = draw(st.integers(1, most)), draw(st.integers(1, most))
    ends = st.tuples(st.integers(0, left - 1), st.integers(0, right - 1))
    return draw(st.sets(ends, max_size=3 * most)), left, right


@pytest.mark.parametrize(
    ("edges", "left", "right"),
    [
        (set(), [], []),
        ({(0, 0)}, [0], []),
        ({(1, 0), (1, 1), (1, 2)}, [1], []),
        ({(0, 1), (1, 1), (2, 1)}, [], [1]),
        ({(0, 0), (0, 1), (1, 1), (1, 2)}, [0, 1], []),
        # Node 0 on the left and 2 on the right are each the centre of a star, joined by an edge.
        ({(0, 0), (0, 1), (0, 2), (1, 2), (2, 2)}, [0], [2]),
    ],
)
def test_cover_of_small_graphs(edges: Edges, left: list[int], right: list[int]) -> None:
    on_left, on_right = minimum_vertex_cover(graph_of(edges, 3, 3))
    assert np.flatnonzero(on_left).tolist() == left
    assert np.flatnonzero(on_right).tolist() == right


@given(bipartite())
def test_cover_covers_every_edge_and_is_as_large_as_a_matching(
    drawn: tuple[Edges, int, int],
) -> None:
    edges, left, right = drawn
    graph = graph_of(edges, left, right)
    on_left, on_right = minimum_vertex_cover(graph)
    assert all(on_left[u] or on_right[v] for u, v in edges)
    matched = int((maximum_bipartite_matching(graph, perm_type="row") >= 0).sum())
    assert on_left.sum() + on_right.sum() == matched
    assert matched <= min(len({u for u, _ in edges}), len({v for _, v in edges}))


@given(bipartite(most=5))
def test_no_cover_is_smaller(drawn: tuple[Edges, int, int]) -> None:
    edges, left, right = drawn
    on_left, on_right = minimum_vertex_cover(graph_of(edges, left, right))
    # With some nodes of the left chosen, a cover needs the neighbours of all others.
    smallest = min(
        sum(chosen) + len({v for u, v in edges if not chosen[u]})
        for chosen in product((False, True), repeat=left)
    )
    assert on_left.sum() + on_right.sum() == smallest


@given(bipartite(), st.data())
def test_cover_is_the_same_whatever_matching_is_found(
    drawn: tuple[Edges, int, int], data: st.DataObject
) -> None:
    """Other numbers lead the search to other matchings."""
    edges, left, right = drawn
    new_left = np.array(data.draw(st.permutations(range(left))))
    new_right = np.array(data.draw(st.permutations(range(right))))
    renamed = {(int(new_left[u]), int(new_right[v])) for u, v in edges}
    on_left, on_right = minimum_vertex_cover(graph_of(edges, left, right))
    found_left, found_right = minimum_vertex_cover(graph_of(renamed, left, right))
    np.testing.assert_array_equal(found_left[new_left], on_left)
    np.testing.assert_array_equal(found_right[new_right], on_right)


def test_renamed_nodes_do_lead_to_another_matching() -> None:
    """What the test above relies on: these paths of 4 edges have several largest matchings."""
    edges = {(0, 0), (0, 1), (1, 1), (1, 2), (2, 0), (2, 2)}
    found = set()
    for shift in range(3):
        renamed = {((u + shift) % 3, (v * 2) % 3) for u, v in edges}
        partners = maximum_bipartite_matching(graph_of(renamed, 3, 3), perm_type="row")
        found.add(
            frozenset(((u - shift) % 3, (v * 2) % 3) for v, u in enumerate(partners.tolist()))
        )
    assert len(found) > 1


def test_cover_of_a_long_path_needs_no_recursion() -> None:
    nodes = 20_000
    edges = {(u, u) for u in range(nodes)} | {(u + 1, u) for u in range(nodes)}
    on_left, on_right = minimum_vertex_cover(graph_of(edges, nodes + 1, nodes))
    assert not on_left.any()
    assert on_right.all()
