"""Pairs of nodes without an edge, drawn by what they are drawn for.

A client draws among pairs of which one node is its own: those alone it knows to have no edge. The
other may be its own or a peer's that borders on it, since it has the rows of both. Of a graph with
types both are of those that the relation joins.

Where edges have directions, pairs are ordered. An inner node u is then two rows of them: u where
the edge would begin at it, and N + u where it would end there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from retexo_fl.errors import PartitionError
from retexo_fl.layers.dropout import splitmix

#: After so many draws that hit an edge, the pair is looked up instead.
_MOST_DRAWS: Final = 64
_HALF: Final = np.uint64(32)
_LOW: Final = np.uint64(2**32 - 1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sides:
    """Nodes of which pairs may be.

    Attributes:
        rows: (r,) int64 inner nodes, ascending; of those where edges would end N + u.
        columns: (c,) int64 of the N + B, ascending: the other ends of their pairs.
        ranks: Rows rank columns, not the reverse: of a relation of two types, and where edges have
            directions, sources do.
    """

    rows: np.ndarray
    columns: np.ndarray
    ranks: bool = True

    def count(self, nodes: int) -> int:
        """Return how many pairs of two different nodes there are; N are inner ones."""
        alike = len(np.intersect1d(self.rows % nodes, self.columns, assume_unique=True))
        return len(self.rows) * len(self.columns) - alike


class NonEdges:
    """The pairs of a client's nodes that have no edge.

    Args:
        nodes: N, inner nodes.
        columns: N + B, these and the boundary nodes.
        codes: (e,) ``row * columns + column`` of each edge, as stored: ascending.
        sides: Of which nodes pairs are: no row is in two of them. None for any.
        is_directed: Rows are 2 N; else N.

    Attributes:
        num_columns: N + B.
        sides: Of which nodes pairs are, without such as are of none.
    """

    def __init__(
        self,
        nodes: int,
        columns: int,
        codes: np.ndarray,
        sides: Sequence[Sides] | None = None,
        *,
        is_directed: bool = False,
    ) -> None:
        self._nodes = nodes
        self._rows = 2 * nodes if is_directed else nodes
        self._columns = self.num_columns = columns
        self._codes = codes
        self._of_types = sides is not None
        everyone = Sides(rows=np.arange(nodes), columns=np.arange(columns))
        self.sides = (everyone,) if sides is None else tuple(s for s in sides if s.count(nodes))

    @property
    def ranking(self) -> tuple[Sides, ...]:
        """Sides of which rows rank columns."""
        return tuple(one for one in self.sides if one.ranks)

    @property
    def is_empty(self) -> bool:
        """Whether every pair of different nodes has an edge."""
        return len(self._codes) >= sum(one.count(self._nodes) for one in self.sides)

    def degrees(self) -> tuple[np.ndarray, np.ndarray]:
        """Return how many edges begin, and how many end, at each inner node: (N,) int64 each.

        The same where they have no directions.
        """
        counts = np.bincount(self._codes // self._columns, minlength=self._rows)
        return counts[: self._nodes], counts[self._rows - self._nodes :]

    def ends_of(self, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the edges of (n,) rows: each one's place among them, and its other end."""
        bounds = np.searchsorted(self._codes, np.stack([nodes, nodes + 1]) * self._columns)
        counts = bounds[1] - bounds[0]
        places = np.repeat(np.arange(len(nodes)), counts)
        starts = np.repeat(bounds[0] - (np.cumsum(counts) - counts), counts)
        codes = self._codes[starts + np.arange(len(starts))]
        return places, codes % self._columns

    def check(self, client: int) -> None:
        """Refuse to draw where there is nothing to draw; without nodes of a pair nothing is to be.

        Raises:
            PartitionError: Every pair has an edge.
        """
        if self.is_empty and (self.sides or not self._of_types):
            raise PartitionError(
                f"client {client}: every pair of its {self._nodes} nodes and "
                f"{self._columns - self._nodes} neighbours elsewhere has an edge; expected pairs "
                "without one, to learn the difference from (task links)"
            )

    def draw(
        self, keys: np.ndarray, count: int, place: str, *, first: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draw so many pairs for each of n edges, uniformly.

        Args:
            keys: (n,) uint64 of the edges.
            count: c.
            place: What is drawn for: the same text draws the same pairs.
            first: (n,) rows that pairs are to begin with; any if None. One that has an edge to
                every other node is replaced.

        Returns:
            (n, c) int64 rows, and (n, c) int64 of the N + B.
        """
        digest = hashlib.blake2b(f"{place}/no edge".encode(), digest_size=8).digest()
        numbers = np.arange(1, count + 1, dtype=np.uint64)
        mixed = splitmix(keys ^ np.frombuffer(digest, dtype="<u8"))
        state = splitmix(mixed[:, None] ^ splitmix(numbers)).reshape(-1)
        ones, others = self._pair(state, first, count)
        open_ = np.flatnonzero(self._is_edge(ones, others))
        for _ in range(_MOST_DRAWS):
            if not len(open_):
                break
            state[open_] = splitmix(state[open_])
            ones[open_], others[open_] = self._pair(state, first, count, open_)
            open_ = open_[self._is_edge(ones[open_], others[open_])]
        for place_ in open_.tolist():
            ones[place_], others[place_] = self._found(int(ones[place_]), int(state[place_]))
        return ones.reshape(-1, count), others.reshape(-1, count)

    def _pair(
        self,
        state: np.ndarray,
        first: np.ndarray | None,
        count: int,
        places: np.ndarray | slice = slice(None),
    ) -> tuple[np.ndarray, np.ndarray]:
        drawn = state[places]
        if self._of_types:
            firsts = None if first is None else np.repeat(first, count)[places]
            return self._pair_of_types(drawn, firsts)
        others = ((drawn & _LOW) % np.uint64(self._columns)).astype(np.int64)
        if first is not None:
            return np.repeat(first, count)[places], others
        return ((drawn >> _HALF) % np.uint64(self._nodes)).astype(np.int64), others

    def _pair_of_types(
        self, drawn: np.ndarray, firsts: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return pairs of both types: each as likely, or beginning with given nodes."""
        others = np.zeros(len(drawn), np.int64)
        if firsts is not None:
            for one in self.sides:
                of_side = np.isin(firsts, one.rows)
                places = drawn[of_side] % np.uint64(len(one.columns))
                others[of_side] = one.columns[places.astype(np.int64)]
            return firsts, others
        ones, sizes = (
            np.zeros(len(drawn), np.int64),
            [s.rows.size * s.columns.size for s in self.sides],
        )
        numbers, start = (drawn % np.uint64(sum(sizes))).astype(np.int64), 0
        for one, size in zip(self.sides, sizes, strict=True):
            of_side = (numbers >= start) & (numbers < start + size)
            row, column = np.divmod(numbers[of_side] - start, len(one.columns))
            ones[of_side], others[of_side] = one.rows[row], one.columns[column]
            start += size
        return ones, others

    def _is_edge(self, ones: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Return whether pairs have an edge, or are one node."""
        codes = ones * self._columns + others
        places = np.searchsorted(self._codes, codes)
        hit = np.zeros(len(codes), dtype=bool)
        inside = places < len(self._codes)
        hit[inside] = self._codes[places[inside]] == codes[inside]
        hit |= ones % max(1, self._nodes) == others
        return hit

    def _found(self, one: int, number: int) -> tuple[int, int]:
        """Return a pair of a node that has nearly all edges; of the next that has not all."""
        rows = np.concatenate([of_side.rows for of_side in self.sides])
        for node in np.roll(rows, -int(np.flatnonzero(rows == one)[0])):
            taken = np.append(self.ends_of(np.array([node]))[1], node % self._nodes)
            (columns,) = (s.columns for s in self.sides if node in s.rows)
            free = np.setdiff1d(columns, taken)
            if len(free):
                return int(node), int(free[number % len(free)])
        raise AssertionError("check() comes first")
