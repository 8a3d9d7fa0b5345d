"""Edges that a model learns to predict, and those that it is judged by: both ends split alone.

What an edge is for follows from the seed and the hashes of its two nodes' keys, and so does which
of its two clients counts it. Neither depends on how nodes are split over clients, and clients need
not talk about it.

Of a graph with types the edges of one relation are learned; all others are read. Where they have
directions, an edge and that which leads back are two.

Symbols: N inner nodes, B slots (boundary nodes), e stored edges, n pairs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Final, Self

import numpy as np

from retexo_fl.config import RunConfig
from retexo_fl.graph.parts.partition import GraphPartition
from retexo_fl.graph.splits import parse_shares
from retexo_fl.layers.base import IN, OUT
from retexo_fl.layers.dropout import splitmix
from retexo_fl.relations import Relation
from retexo_fl.training.link_negatives import NonEdges, Sides
from retexo_fl.training.model_checks import predicted_relation
from retexo_fl.training.recipe import objective_of

#: Uses of edges, by number; an edge of none of them is read by layers, and not predicted.
USES: Final = ("train", "validation", "test")
_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)
#: The last end of shares that sum to one still fits into 64 bits.
_DRAW_BITS: Final = 63


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pairs:
    """Edges that a client counts: of its inner edges, and of half of those to other clients.

    Where nodes rank others, held-out edges are counted by those: by sources of a relation of two
    types, or of edges with directions; else at both ends. So they are where one end is joined with
    its neighbours: the other may be known by these alone. Each end of a train edge counts it then.

    Attributes:
        first: (n,) int64 inner nodes u; N + u of an edge that ends there (:mod:`.link_negatives`).
        second: (n,) int64: below N an inner node, N + s slot s.
        keys: (n,) uint64 of the edges, the same for both ends; others where one end
            is joined, which both may count.
    """

    first: np.ndarray
    second: np.ndarray
    keys: np.ndarray

    def __len__(self) -> int:
        """Return n."""
        return len(self.first)

    def taken(self, places: np.ndarray | slice) -> Self:
        """Return some of them."""
        return replace(
            self, first=self.first[places], second=self.second[places], keys=self.keys[places]
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ranking:
    """What some nodes rank.

    Attributes:
        nodes: (R,) int64 inner nodes.
        others: (M,) int64 of the N + B.
        labels: (R, M) int64: 1 of an edge that is judged, -1 of what is no candidate, else 0.
    """

    nodes: np.ndarray
    others: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinkSplit:
    """The edges of one client's part by use.

    Attributes:
        part: The part without the edges of validation and test; its boundary nodes are still all
            there, since both ends of every edge need the other's row. Degrees are those without.
        is_directed: Edges that are learned have directions.
        pairs: By use.
        known: Pairs that no use has an edge between; held-out edges are judged against those. Where
            one end is joined, such as begin with a node that ranks.
        unseen: Pairs without an edge that layers read, or that is trained on: train edges are
            trained against those, since what is held out must not be known.
    """

    part: GraphPartition
    pairs: Mapping[str, Pairs]
    known: NonEdges
    unseen: NonEdges
    is_directed: bool = False

    @classmethod
    def of(
        cls,
        part: GraphPartition,
        *,
        split: str,
        seed: int,
        predicted: int | None = None,
        ranks_nodes: bool = False,
        joins_one_end: bool = False,
    ) -> Self:
        """Split the edges of a part.

        Args:
            part: With all edges.
            split: ``random:TRAIN/VAL/TEST``, shares of the edges; they hold on average.
            seed: Of the run.
            predicted: Relation whose edges are learned, a number; None of a graph without types.
            ranks_nodes: Held-out edges are judged by how nodes rank others.
            joins_one_end: Of a pair the first node alone is joined with its neighbours.
        """
        learned = _Learned.of(part, predicted)
        rows, indices = learned.rows, learned.indices
        keys, is_ours, is_first = _edge_keys(learned, seed)
        shares = parse_shares(split, split.partition(":")[2])
        ends = np.array([int(total * 2**_DRAW_BITS) for total in accumulate(shares)], np.uint64)
        uses = np.searchsorted(ends, _drawn(keys, seed, "use") >> np.uint64(1), side="right")
        # Of each end other pairs are drawn, where both count an edge.
        named = np.where(is_first, keys, ~keys) if joins_one_end else keys
        pairs = {}
        for number, use in enumerate(USES):
            counts = is_ours
            if use != "train" and (ranks_nodes or joins_one_end):
                counts = learned.begins
            elif joins_one_end:
                counts = np.ones_like(is_ours)
            counted = counts & learned.is_edge & (uses == number)
            pairs[use] = Pairs(first=rows[counted], second=indices[counted], keys=named[counted])
        is_read = (uses == USES.index("train")) | (uses == len(USES))
        return cls(
            part=learned.without(~is_read),
            pairs=pairs,
            known=learned.non_edges(that_rank=joins_one_end),
            unseen=learned.non_edges(is_read),
            is_directed=learned.is_directed,
        )

    @classmethod
    def asked(cls, part: GraphPartition, config: RunConfig) -> Self:
        """Split the edges of a part as a run asks for.

        Raises:
            ConfigurationError: As :func:`.predicted_relation`.
        """
        return cls.of(
            part,
            split=config.split_name,
            seed=config.seed,
            predicted=predicted_relation(config, part.relations),
            ranks_nodes=objective_of(config).ranks_nodes,
            joins_one_end=config.joins_one_end,
        )

    def rankings(self, use: str, most_values: int) -> Iterator[Ranking]:
        """Yield what nodes rank by their edges of a use, of so many values at once.

        Candidates are what a node has no edge of another use to, and what it is not.
        """
        pairs, known = self.pairs[use], self.known
        order = np.lexsort((pairs.second, pairs.first))
        first, second = pairs.first[order], pairs.second[order]
        for side in known.ranking:
            place = np.full(known.num_columns, -1)
            place[side.columns] = np.arange(len(side.columns))
            nodes = np.intersect1d(first, side.rows)
            height = max(1, most_values // max(1, len(side.columns)))
            for start in range(0, len(nodes), height):
                some = nodes[start : start + height]
                labels = np.zeros((len(some), len(side.columns)), dtype=np.int64)
                rows, ends = known.ends_of(some)
                labels[rows, place[ends]] = -1
                own = place[some]
                labels[np.flatnonzero(own >= 0), own[own >= 0]] = -1
                held = slice(*np.searchsorted(first, [some[0], some[-1] + 1]))
                labels[np.searchsorted(some, first[held]), place[second[held]]] = 1
                yield Ranking(nodes=some, others=side.columns, labels=labels)

    def only(self, uses: frozenset[str]) -> Self:
        """Return the same without the pairs of other uses."""
        kept = {use: p if use in uses else p.taken(slice(0)) for use, p in self.pairs.items()}
        return replace(self, pairs=kept)

    @classmethod
    def whole(cls, part: GraphPartition, predicted: int | None = None) -> Self:
        """Hold no edge out: layers read them all, and none is counted."""
        none, learned = np.zeros(0, np.int64), _Learned.of(part, predicted)
        pairs, known = (
            Pairs(first=none, second=none, keys=none.astype(np.uint64)),
            learned.non_edges(),
        )
        return cls(
            part=part,
            pairs=dict.fromkeys(USES, pairs),
            known=known,
            unseen=known,
            is_directed=learned.is_directed,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Learned:
    """Of a part, the edges that are learned.

    Of directed ones each stored place is two: an edge that begins at its inner node, and one that
    ends there.

    Attributes:
        part: It.
        relation: Theirs; None of a graph without types.
        channels: Numbers of their weights: of that into the target, and that back into the source;
            empty of edges without types and directions.
        is_directed: They have directions that do not follow from the types of their ends.
        rows: (e,) int64 inner node of each edge, or 2 e rows (:mod:`.link_negatives`).
        indices: (e,) int64 its other end.
        is_edge: (e,) whether there is one of the relation.
    """

    part: GraphPartition
    relation: Relation | None
    channels: tuple[int, ...]
    is_directed: bool
    rows: np.ndarray
    indices: np.ndarray
    is_edge: np.ndarray

    @classmethod
    def of(cls, part: GraphPartition, predicted: int | None) -> Self:
        relations, values, relation = part.relations, part.edge_values, None
        channels = tuple[int, ...]()
        rows = np.repeat(np.arange(part.num_inner), np.diff(part.indptr))
        indices = np.asarray(part.indices, np.int64)
        is_edge, is_directed = np.ones(len(indices), dtype=bool), values.is_directed
        if relations is not None and predicted is not None:
            relation = relations.relations[predicted]
            channels = (predicted, relations.num_channels - 1 - predicted)
            is_directed = relation.has_directions
        elif is_directed:
            channels = (IN, OUT)
        if channels:
            assert values.weights is not None
            there = np.asarray(values.weights)[:, channels] != 0
            is_edge = there[:, ::-1].T.reshape(-1) if is_directed else there.any(axis=1)
        if is_directed:
            rows, indices = np.append(rows, rows + part.num_inner), np.tile(indices, 2)
        return cls(
            part=part,
            relation=relation,
            channels=channels,
            is_directed=is_directed,
            rows=rows,
            indices=indices,
            is_edge=is_edge,
        )

    @property
    def ends_here(self) -> np.ndarray:
        """(e,) whether it is known that the edge ends at its inner node."""
        found: np.ndarray = self.rows >= self.part.num_inner
        return found

    @property
    def begins(self) -> np.ndarray:
        """(e,) whether the inner node is one that ranks others by its edges."""
        one, kinds = self.relation, self.part.kinds
        if one is None or kinds is None or self.is_directed:
            return ~self.ends_here
        found: np.ndarray = (kinds == one.source)[self.rows]
        return found

    def non_edges(self, some: np.ndarray | None = None, *, that_rank: bool = False) -> NonEdges:
        """Return the pairs without an edge, or without one of some of the (e,).

        With ``that_rank`` those alone that begin with a node that ranks others.
        """
        part, kept = self.part, self.is_edge if some is None else self.is_edge & some
        sides = self._sides()
        if that_rank and sides is not None:
            kept, sides = kept & self.begins, tuple(one for one in sides if one.ranks)
        columns = part.num_inner + part.num_boundary
        codes = self.rows[kept] * columns + self.indices[kept]
        return NonEdges(part.num_inner, columns, codes, sides, is_directed=self.is_directed)

    def _sides(self) -> tuple[Sides, ...] | None:
        one, own, foreign = self.relation, self.part.kinds, self.part.boundary_kinds
        nodes = self.part.num_inner
        rows, columns = np.arange(nodes), np.arange(nodes + self.part.num_boundary)
        if one is not None and own is not None and foreign is not None:
            everyone = np.concatenate((own, foreign))
            rows, columns = rows[own == one.source], columns[everyone == one.target]
        if self.is_directed:
            begins = Sides(rows=rows, columns=columns)
            return begins, Sides(rows=nodes + rows, columns=columns, ranks=False)
        if one is None or own is None or foreign is None:
            return None
        ends = {one.source: one.target, one.target: one.source}
        return tuple(
            Sides(
                rows=np.flatnonzero(own == kind),
                columns=np.flatnonzero(everyone == other),
                ranks=kind == one.source,
            )
            for kind, other in ends.items()
        )

    def without(self, held: np.ndarray) -> GraphPartition:
        """Return the part without some of the (e,) edges, as far as they are of the relation."""
        values, left = self.part.edge_values, ~(self.is_edge & held)
        if self.channels:
            assert values.weights is not None
            weights = np.array(values.weights)
            if self.is_directed:
                # That back into the source, where the inner node is one, comes first.
                for channel, some in zip(self.channels[::-1], left.reshape(2, -1), strict=True):
                    weights[~some, channel] = 0
                left = left.reshape(2, -1).all(axis=0)
            else:
                weights[np.ix_(~left, self.channels)] = 0
            left |= (weights != 0).any(axis=1)
            values = replace(values, weights=weights)
        return replace(
            self.part,
            indptr=np.concatenate(([0], np.cumsum(left)))[np.asarray(self.part.indptr)],
            indices=np.asarray(self.part.indices)[left],
            edge_values=values.taken(left),
        )


def counts_by_use(config: RunConfig, part: GraphPartition) -> dict[str, int]:
    """Return how many nodes, or with task ``links`` edges, a client has of each use.

    Of ``nodes`` in all, too.
    """
    counts = {"nodes": part.num_inner}
    if not config.goal.splits_nodes:
        split = LinkSplit.asked(part, config)
        return counts | {use: len(pairs) for use, pairs in split.pairs.items()}
    masks = (part.train_mask, part.val_mask, part.test_mask)
    return counts | {use: int(mask.sum()) for use, mask in zip(USES, masks, strict=True)}


def _edge_keys(learned: _Learned, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (e,) uint64 keys of edges; (e,) bool: whether this end of an edge counts it.

    An edge of two inner nodes is stored at both; one of them counts it. Last (e,) bool: whether
    this end is the first of the two.
    """
    part = learned.part
    hashes = np.concatenate((np.asarray(part.node_hashes), np.asarray(part.boundary_hashes)))
    own, other = hashes[learned.rows % max(1, part.num_inner)], hashes[learned.indices]
    # An edge is named by where it begins, or by the lower of both hashes.
    is_first = ~learned.ends_here if learned.is_directed else own < other
    one, two = np.where(is_first, own, other), np.where(is_first, other, own)
    with np.errstate(over="ignore"):
        keys = splitmix(one) + _MULTIPLIER * splitmix(two)
    by_first = (_drawn(keys, seed, "end") & np.uint64(1)) == 0
    return keys, is_first == by_first, is_first


def _drawn(keys: np.ndarray, seed: int, purpose: str) -> np.ndarray:
    """Return a uint64 for each of (n,) keys."""
    digest = hashlib.blake2b(f"{seed}/links/{purpose}".encode(), digest_size=8).digest()
    return splitmix(keys ^ np.frombuffer(digest, dtype="<u8"))
