"""The plan with the fewest vectors: of each pair of clients, some nodes' rows and others' sums.

A node in the cover of the edges between two clients represents all its edges. Its owner sends its
row; to its owner comes the sum of the rows of those neighbours whose own row does not come. So one
cover serves both directions, and each direction takes as many vectors as the cover has nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy.sparse import csr_array

from retexo_fl.graph.parts.partition import GraphPartition
from retexo_fl.graph.plan.cut_edges import CutEdges, Ends
from retexo_fl.graph.plan.stage_edges import StageEdges
from retexo_fl.graph.plan.vectors import IncomingVectors, OutgoingVectors, PartialSums, PeerPlan


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CoveredEdges:
    """The edges between a client and its peers, and the nodes that cover them.

    Both sorts of nodes in a cover are listed by (peer, key); a peer's are ``own[begin:end]`` and
    ``foreign[begin:end]`` with its ends.

    Attributes:
        cut: The edges.
        own: [k] int64 covering nodes of this client, as numbers in ``cut.sent_rows``.
        foreign: [l] int64 covering boundary nodes.
        own_ends: Each peer's begin and end in ``own``.
        foreign_ends: The same in ``foreign``.
    """

    cut: CutEdges
    own: np.ndarray
    foreign: np.ndarray
    own_ends: list[Ends]
    foreign_ends: list[Ends]

    @classmethod
    def of(cls, cut: CutEdges) -> Self:
        """Cover the edges to all peers at once: they are parts that no edge joins."""
        own, foreign = _cover(cut)
        return cls(
            cut=cut,
            own=own,
            foreign=foreign,
            own_ends=_ends_among(own, cut.sent_ends),
            foreign_ends=_ends_among(foreign, cut.slot_ends),
        )

    def peer_plans(
        self, digests: Iterable[bytes], weights: np.ndarray | None = None
    ) -> Iterator[PeerPlan]:
        """Yield what goes to and comes from each peer.

        Args:
            digests: Of the peers.
            weights: [e] of the partition's edges; None for 1.
        """
        cut, starts = self.cut, self._slot_starts()
        rows = cut.sent_rows[self.own]
        members, bounds, places = self._sums()
        factors = None if weights is None else weights[places]
        slots = np.arange(starts[-1], dtype=np.int64)
        targets = np.full(len(slots), -1, dtype=np.int64)
        targets[self._sum_slots()[self.own]] = rows
        for at, (peer, digest) in enumerate(zip(cut.peers, digests, strict=True)):
            first, end = cut.edge_ends[at]
            low, high = self.foreign_ends[at]
            own, received = slice(*self.own_ends[at]), slice(starts[at], starts[at + 1])
            sums = None
            if high > low:
                part = slice(bounds[low], bounds[high])
                indptr = bounds[low : high + 1] - bounds[low]
                sums = PartialSums(
                    indptr=indptr,
                    members=members[part],
                    weights=None if factors is None else factors[part],
                )
            yield PeerPlan(
                peer=peer,
                num_edges=end - first,
                digest=digest,
                send=OutgoingVectors(rows=rows[own], sums=sums),
                receive=IncomingVectors(slots=slots[received], targets=targets[received]),
            )

    def stage_edges(self, partition: GraphPartition) -> StageEdges:
        """Return what a stage reads: of each peer first its nodes' rows, then sums."""
        cut, starts = self.cut, self._slot_starts()[:-1]
        foreign_starts, foreign_counts = _starts_and_counts(self.foreign_ends)
        row_slots = np.full(partition.num_boundary, -1, dtype=np.int64)
        row_slots[self.foreign] = np.arange(len(self.foreign)) + np.repeat(
            starts - foreign_starts, foreign_counts
        )
        slots = row_slots[cut.slots]
        hashes = np.zeros(len(self.own) + len(self.foreign), dtype=np.uint64)
        hashes[row_slots[self.foreign]] = partition.boundary_hashes[self.foreign]
        slots = np.where(slots >= 0, slots, self._sum_slots()[cut.own])
        is_sum = np.ones(len(hashes), dtype=bool)
        is_sum[row_slots[self.foreign]] = False
        return StageEdges.joined(partition, cut.places, slots, hashes, is_sum)

    def _sum_slots(self) -> np.ndarray:
        """[s] int64 slot of the sum for each of ``cut.sent_rows``; -1 for those without one."""
        own_starts, own_counts = _starts_and_counts(self.own_ends)
        foreign_counts = _starts_and_counts(self.foreign_ends)[1]
        slots = np.full(len(self.cut.sent_rows), -1, dtype=np.int64)
        slots[self.own] = np.arange(len(self.own)) + np.repeat(
            self._slot_starts()[:-1] + foreign_counts - own_starts, own_counts
        )
        return slots

    def _slot_starts(self) -> np.ndarray:
        """[P + 1] int64: the slots of peer number p are ``starts[p]:starts[p + 1]``."""
        counts = _starts_and_counts(self.own_ends)[1] + _starts_and_counts(self.foreign_ends)[1]
        return np.concatenate(([0], np.cumsum(counts)))

    def _sums(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the rows summed for covering boundary nodes, and where each node's begin.

        And the places of the edges along which they are summed.

        No sum is empty: a node of a smallest cover has an edge that no other node covers.
        """
        sends_row = np.zeros(len(self.cut.sent_rows), dtype=bool)
        sends_row[self.own] = True
        summed = ~sends_row[self.cut.own]
        slots, own = self.cut.slots[summed], self.cut.own[summed]
        order = slots.argsort(kind="stable")
        bounds = np.append(slots[order].searchsorted(self.foreign), len(order))
        return self.cut.sent_rows[own[order]], bounds, self.cut.places[summed][order]


def _cover(cut: CutEdges) -> tuple[np.ndarray, np.ndarray]:
    """Return the covering nodes: of this client by their number in ``sent_rows``, and boundary.

    On the left of each pair is the client with the lower index, at both ends. A pair with one
    node on a side needs no search: that node covers all, the left one if there is one on each.
    """
    own_counts, foreign_counts = (_starts_and_counts(e)[1] for e in (cut.sent_ends, cut.slot_ends))
    is_left = np.array(cut.peers) > cut.client
    is_star = (own_counts == 1) | (foreign_counts == 1)
    is_left_alone = np.where(is_left, own_counts, foreign_counts) == 1
    has_own_centre = is_star & (is_left == is_left_alone)
    own = np.repeat(has_own_centre, own_counts)
    foreign = np.repeat(is_star & ~has_own_centre, foreign_counts)
    if not is_star.all():
        edge_counts = _starts_and_counts(cut.edge_ends)[1]
        searched = np.repeat(~is_star, edge_counts)
        found = _searched_cover(cut, np.repeat(is_left, edge_counts)[searched], searched)
        own |= found[: len(own)]
        foreign |= found[len(own) :]
    return own.nonzero()[0], foreign.nonzero()[0]


def _searched_cover(cut: CutEdges, is_left: np.ndarray, searched: np.ndarray) -> np.ndarray:
    """Cover some edges; this client is on the left of some pairs and on the right of others.

    Args:
        cut: All edges.
        is_left: Of each searched edge, whether this client is on the left.
        searched: [E] bool.

    Returns:
        [s + b] bool: the covering nodes of this client, then the covering boundary nodes.
    """
    own, foreign = cut.own[searched], len(cut.sent_rows) + cut.slots[searched]
    total = len(cut.sent_rows) + cut.slot_ends[-1][1]
    # Each side has numbers for all nodes; those that are not on it have no edge there.
    ends = (np.where(is_left, own, foreign), np.where(is_left, foreign, own))
    on_left, on_right = minimum_vertex_cover(
        csr_array((np.ones(len(own), dtype=bool), ends), shape=(total, total))
    )
    return np.asarray(on_left | on_right)


def minimum_vertex_cover(edges: csr_array) -> tuple[np.ndarray, np.ndarray]:
    """Return a vertex cover as small as a largest matching: no cover can be smaller.

    Z are the nodes that alternating paths reach from unmatched nodes on the left. The left nodes
    outside Z and the right nodes in Z cover every edge, and each is the end of another matched
    edge. Z, and so the cover, does not depend on which of the largest matchings was found.

    Args:
        edges: [L, R] sparse matrix; a stored entry is an edge.

    Returns:
        [L] and [R] bool: which nodes of the left and of the right are in the cover.

    Source: Koenig, Matematikai es Fizikai Lapok 38, 1931; Dulmage and Mendelsohn, Canadian Journal
    of Mathematics 10, 1958 (Z is the same for every largest matching).
    """
    # Loaded here, like below: a training without covers does not wait for it.
    from scipy.sparse.csgraph import maximum_bipartite_matching

    num_left, num_right = edges.shape
    partners = np.asarray(maximum_bipartite_matching(edges, perm_type="row"))
    is_unmatched = np.ones(num_left, dtype=bool)
    is_unmatched[partners[partners >= 0]] = False
    reached = _reached(edges, partners, is_unmatched.nonzero()[0])
    right = np.zeros(num_right, dtype=bool)
    right[edges.indices[np.repeat(reached, np.diff(edges.indptr))]] = True
    return ~reached, right


def _reached(edges: csr_array, partners: np.ndarray, begin: np.ndarray) -> np.ndarray:
    """Say of each left node whether an alternating path from one of ``begin`` reaches it.

    Args:
        edges: [L, R].
        partners: [R] left node that each right node is matched with, -1 for none.
        begin: Unmatched left nodes.
    """
    from scipy.sparse.csgraph import breadth_first_order

    num_left = edges.shape[0]
    # One step goes along any edge to the right, and back along the matched one. Nothing unmatched
    # on the right can be reached, or the matching could grow: there the step may stay where it is.
    back = partners[edges.indices]
    own = np.repeat(np.arange(num_left), np.diff(edges.indptr))
    targets = np.concatenate((np.where(back >= 0, back, own), begin))
    indptr = np.append(edges.indptr, len(targets))
    steps = csr_array((np.ones(len(targets)), targets, indptr), shape=(num_left + 1, num_left + 1))
    found = breadth_first_order(steps, num_left, return_predecessors=False)
    reached = np.zeros(num_left + 1, dtype=bool)
    reached[found] = True
    return reached[:-1]


def _ends_among(chosen: np.ndarray, ends: list[Ends]) -> list[Ends]:
    """Return where the chosen of each range of numbers begin and end."""
    bounds = chosen.searchsorted(np.array(ends)).tolist()
    return [(first, end) for first, end in bounds]


def _starts_and_counts(ends: list[Ends]) -> tuple[np.ndarray, np.ndarray]:
    pairs = np.array(ends)
    return pairs[:, 0], pairs[:, 1] - pairs[:, 0]
