"""The edges between a client and its peers, numbered alike at both ends."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Self

import numpy as np
from scipy.sparse import csr_array

from retexo_fl.graph.parts.partition import GraphPartition

#: Bytes of a key's length.
_LENGTH_BYTES: Final = 4
#: Values are sorted where they may be so many times as many as there are.
_SORTED_ABOVE: Final = 4
#: So few are sorted faster than a matrix is made.
_SORTED_BELOW: Final = 4_000

#: Begin and end of a range.
Ends = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CutEdges:
    """All edges between clients that one client lists, grouped by peer.

    The nodes of a pair of clients are numbered from 0 by ascending key, on each side those that
    have an edge to the other side. So both ends list an edge by the same two numbers.

    Attributes:
        client: Who lists them.
        peers: Ascending.
        sent_rows: [s] int64 inner nodes with an edge to a peer, by (peer, row).
        sent_ends: Where each peer's rows begin and end in ``sent_rows``.
        slot_ends: Where each peer's nodes begin and end among the boundary nodes.
        places: [E] int64 where each edge is among the partition's; by peer, then ascending by
            ``positions``, as the other arrays of edges.
        own: [E] int64 each edge's end in ``sent_rows``.
        slots: [E] int64 its other end among the boundary nodes.
        positions: [E, 2] little-endian uint32: an edge's number on the side of the client with the
            lower index, and on the other.
        edge_ends: Where each peer's edges begin and end in ``positions``.
    """

    client: int
    peers: list[int]
    sent_rows: np.ndarray
    sent_ends: list[Ends]
    slot_ends: list[Ends]
    places: np.ndarray
    own: np.ndarray
    slots: np.ndarray
    positions: np.ndarray
    edge_ends: list[Ends]

    @classmethod
    def of(cls, partition: GraphPartition) -> Self:
        """Find them; the partition has a boundary node."""
        inner, owners = partition.num_inner, partition.boundary_owners
        slot_starts = begins_group(owners).nonzero()[0]
        peers = owners[slot_starts]
        cut = (partition.indices >= inner).nonzero()[0]
        rows = np.repeat(np.arange(inner), np.diff(partition.indptr))[cut]
        slots = partition.indices[cut] - inner
        place = np.repeat(np.arange(len(peers)), np.diff(slot_starts, append=len(owners)))[slots]
        # Edges come by (row, slot). Sorted by peer, and by slot where the peer's index is the
        # lower one, they are in the order of both numbers, since sorting is stable.
        is_lower = peers > partition.client
        order = _stable_order(np.where(is_lower[place], slot_starts[place], slots), len(owners))
        rows, slots, place = rows[order], slots[order], place[order]
        sent, own = _numbered(place * inner + rows, len(peers) * inner)
        sent_starts = sent.searchsorted(np.arange(len(peers)) * inner)
        number = own - sent_starts[place]
        foreign = slots - slot_starts[place]
        positions = np.empty((len(cut), 2), dtype="<u4")
        positions[:, 0] = np.where(is_lower[place], number, foreign)
        positions[:, 1] = np.where(is_lower[place], foreign, number)
        return cls(
            client=partition.client,
            peers=peers.tolist(),
            sent_rows=sent % inner,
            sent_ends=_ends(sent_starts, len(sent)),
            slot_ends=_ends(slot_starts, len(owners)),
            places=cut[order],
            own=own,
            slots=slots,
            positions=positions,
            edge_ends=_ends(begins_group(place).nonzero()[0], len(cut)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyTexts:
    """Keys one after the other, and where each begins."""

    lengths: bytes
    content: bytes
    starts: list[int]

    @classmethod
    def of(cls, keys: np.ndarray) -> Self:
        """Join keys of dtype ``S``."""
        names = keys.tolist()
        lengths = list(map(len, names))
        return cls(
            lengths=np.array(lengths, dtype="<u4").tobytes(),
            content=b"".join(names),
            starts=list(accumulate(lengths, initial=0)),
        )

    def between(self, first: int, end: int) -> tuple[int, bytes, bytes]:
        """Return the number, the lengths and the content of some keys."""
        lengths = self.lengths[_LENGTH_BYTES * first : _LENGTH_BYTES * end]
        return end - first, lengths, self.content[self.starts[first] : self.starts[end]]


def begins_group(grouped: np.ndarray) -> np.ndarray:
    """Say of each value whether it differs from the one before it."""
    begins = np.empty(len(grouped), dtype=bool)
    begins[0] = True
    np.not_equal(grouped[1:], grouped[:-1], out=begins[1:])
    return begins


def _stable_order(values: np.ndarray, bound: int) -> np.ndarray:
    """Return the places of values, ascending by value, then by place.

    Args:
        values: [n] below ``bound``, none negative.
        bound: Where it is no larger than a few n, many values are counted instead of compared.
    """
    if len(values) < _SORTED_BELOW or bound > _SORTED_ABOVE * len(values):
        return values.argsort(kind="stable")
    # A matrix with a row for each value: its columns are put into rows by counting.
    one = np.ones(len(values), dtype=np.int8)
    shape = (bound, len(values))
    order: np.ndarray = csr_array((one, (values, np.arange(len(values)))), shape=shape).indices
    return order


def _numbered(values: np.ndarray, bound: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the different values, ascending, and each value's place among them."""
    order = _stable_order(values, bound)
    ordered = values[order]
    begins = begins_group(ordered)
    places = np.empty(len(order), dtype=np.int64)
    places[order] = begins.cumsum() - 1
    return ordered[begins], places


def _ends(starts: np.ndarray, total: int) -> list[Ends]:
    begins = starts.tolist()
    return list(zip(begins, [*begins[1:], total], strict=True))
