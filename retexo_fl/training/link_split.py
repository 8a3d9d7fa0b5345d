"""Edges that a model learns to predict, and those that it is judged by: both ends split alone.

What an edge is for follows from the seed and the hashes of its two nodes' keys, and so does which
of its two clients counts it. Neither depends on how nodes are split over clients, and clients need
not talk about it.

Symbols: N inner nodes, B slots (boundary nodes), e stored edges, n pairs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Final, Self

import numpy as np

from retexo_fl.config import RunConfig
from retexo_fl.graph.parts.partition import GraphPartition
from retexo_fl.graph.splits import parse_shares
from retexo_fl.layers.dropout import splitmix
from retexo_fl.training.link_negatives import NonEdges

#: Uses of edges, by number; an edge of none of them is read by layers, and not predicted.
USES: Final = ("train", "validation", "test")
_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)
#: The last end of shares that sum to one still fits into 64 bits.
_DRAW_BITS: Final = 63


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pairs:
    """Edges that a client counts: of its inner edges, and of half of those to other clients.

    Attributes:
        first: (n,) int64 inner nodes.
        second: (n,) int64: below N an inner node, N + s slot s.
        keys: (n,) uint64 of the edges, the same for both ends.
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
class LinkSplit:
    """The edges of one client's part by use.

    Attributes:
        part: The part without the edges of validation and test; its boundary nodes are still all
            there, since both ends of every edge need the other's row. Degrees are those without.
        pairs: By use.
        known: Pairs that no use has an edge between; held-out edges are judged against those.
        unseen: Pairs without an edge that layers read, or that is trained on: train edges are
            trained against those, since what is held out must not be known.
    """

    part: GraphPartition
    pairs: Mapping[str, Pairs]
    known: NonEdges
    unseen: NonEdges

    @classmethod
    def of(cls, part: GraphPartition, *, split: str, seed: int) -> Self:
        """Split the edges of a part.

        Args:
            part: With all edges.
            split: ``random:TRAIN/VAL/TEST``, shares of the edges; they hold on average.
            seed: Of the run.
        """
        rows = np.repeat(np.arange(part.num_inner), np.diff(part.indptr))
        indices = np.asarray(part.indices, np.int64)
        keys, is_ours = _edge_keys(part, rows, indices, seed)
        shares = parse_shares(split, split.partition(":")[2])
        ends = np.array([int(total * 2**_DRAW_BITS) for total in accumulate(shares)], np.uint64)
        uses = np.searchsorted(ends, _drawn(keys, seed, "use") >> np.uint64(1), side="right")
        pairs = {}
        for number, use in enumerate(USES):
            counted = is_ours & (uses == number)
            pairs[use] = Pairs(first=rows[counted], second=indices[counted], keys=keys[counted])
        is_read = (uses == USES.index("train")) | (uses == len(USES))
        columns = part.num_inner + part.num_boundary
        codes = rows * columns + indices
        return cls(
            part=_with_edges(part, is_read),
            pairs=pairs,
            known=NonEdges(part.num_inner, columns, codes),
            unseen=NonEdges(part.num_inner, columns, codes[is_read]),
        )

    def only(self, uses: frozenset[str]) -> Self:
        """Return the same without the pairs of other uses."""
        kept = {use: p if use in uses else p.taken(slice(0)) for use, p in self.pairs.items()}
        return replace(self, pairs=kept)

    @classmethod
    def whole(cls, part: GraphPartition) -> Self:
        """Hold no edge out: layers read them all, and none is counted."""
        rows = np.repeat(np.arange(part.num_inner), np.diff(part.indptr))
        columns = part.num_inner + part.num_boundary
        codes = rows * columns + np.asarray(part.indices, np.int64)
        none, known = np.zeros(0, np.int64), NonEdges(part.num_inner, columns, codes)
        pairs = Pairs(first=none, second=none, keys=none.astype(np.uint64))
        return cls(part=part, pairs=dict.fromkeys(USES, pairs), known=known, unseen=known)


def counts_by_use(config: RunConfig, part: GraphPartition) -> dict[str, int]:
    """Return how many nodes, or with task ``links`` edges, a client has of each use.

    Of ``nodes`` in all, too.
    """
    counts = {"nodes": part.num_inner}
    if not config.goal.splits_nodes:
        split = LinkSplit.of(part, split=config.split_name, seed=config.seed)
        return counts | {use: len(pairs) for use, pairs in split.pairs.items()}
    masks = (part.train_mask, part.val_mask, part.test_mask)
    return counts | {use: int(mask.sum()) for use, mask in zip(USES, masks, strict=True)}


def _edge_keys(
    part: GraphPartition, rows: np.ndarray, indices: np.ndarray, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return (e,) uint64 keys of edges, and (e,) bool: whether this end of an edge counts it.

    An edge of two inner nodes is stored at both; one of them counts it.
    """
    hashes = np.concatenate((np.asarray(part.node_hashes), np.asarray(part.boundary_hashes)))
    own, other = hashes[rows], hashes[indices]
    with np.errstate(over="ignore"):
        keys = splitmix(np.minimum(own, other)) + _MULTIPLIER * splitmix(np.maximum(own, other))
    by_lower = (_drawn(keys, seed, "end") & np.uint64(1)) == 0
    return keys, (own < other) == by_lower


def _drawn(keys: np.ndarray, seed: int, purpose: str) -> np.ndarray:
    """Return a uint64 for each of (n,) keys."""
    digest = hashlib.blake2b(f"{seed}/links/{purpose}".encode(), digest_size=8).digest()
    return splitmix(keys ^ np.frombuffer(digest, dtype="<u8"))


def _with_edges(part: GraphPartition, kept: np.ndarray) -> GraphPartition:
    """Return a part with some of its (e,) edges, and all of its boundary nodes."""
    return replace(
        part,
        indptr=np.concatenate(([0], np.cumsum(kept)))[np.asarray(part.indptr)],
        indices=np.asarray(part.indices)[kept],
        edge_values=part.edge_values.taken(kept),
    )
