"""Pairs of nodes without an edge, drawn by what they are drawn for.

A client draws among pairs of which one node is its own: those alone it knows to have no edge. The
other may be its own or a peer's that borders on it, since it has the rows of both.
"""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np

from retexo_fl.errors import PartitionError
from retexo_fl.layers.dropout import splitmix

#: After so many draws that hit an edge, the pair is looked up instead.
_MOST_DRAWS: Final = 64
_HALF: Final = np.uint64(32)
_LOW: Final = np.uint64(2**32 - 1)


class NonEdges:
    """The pairs of a client's nodes that have no edge.

    Args:
        nodes: N, inner nodes.
        columns: N + B, these and the boundary nodes.
        codes: (e,) ``row * columns + column`` of each edge, as stored: ascending.
    """

    def __init__(self, nodes: int, columns: int, codes: np.ndarray) -> None:
        self._nodes = nodes
        self._columns = columns
        self._codes = codes

    @property
    def is_empty(self) -> bool:
        """Whether every pair of different nodes has an edge."""
        return len(self._codes) >= self._nodes * (self._columns - 1)

    def ends_of(self, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the edges of (n,) inner nodes: each one's place among them, and its other end."""
        bounds = np.searchsorted(self._codes, np.stack([nodes, nodes + 1]) * self._columns)
        counts = bounds[1] - bounds[0]
        places = np.repeat(np.arange(len(nodes)), counts)
        starts = np.repeat(bounds[0] - (np.cumsum(counts) - counts), counts)
        codes = self._codes[starts + np.arange(len(starts))]
        return places, codes % self._columns

    def check(self, client: int) -> None:
        """Refuse to draw where there is nothing to draw.

        Raises:
            PartitionError: Every pair has an edge.
        """
        if self.is_empty:
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
            first: (n,) inner nodes that pairs are to begin with; any if None. One that has an edge
                to every other node is replaced.

        Returns:
            (n, c) int64 inner nodes, and (n, c) int64 of the N + B.
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
        others = ((drawn & _LOW) % np.uint64(self._columns)).astype(np.int64)
        if first is not None:
            return np.repeat(first, count)[places], others
        return ((drawn >> _HALF) % np.uint64(self._nodes)).astype(np.int64), others

    def _is_edge(self, ones: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Return whether pairs have an edge, or are one node."""
        codes = ones * self._columns + others
        places = np.searchsorted(self._codes, codes)
        hit = np.zeros(len(codes), dtype=bool)
        inside = places < len(self._codes)
        hit[inside] = self._codes[places[inside]] == codes[inside]
        hit |= ones == others
        return hit

    def _found(self, one: int, number: int) -> tuple[int, int]:
        """Return a pair of a node that has nearly all edges; of the next that has not all."""
        for node in (np.arange(self._nodes) + one) % self._nodes:
            taken = np.append(self.ends_of(np.array([node]))[1], node)
            free = np.setdiff1d(np.arange(self._columns), taken)
            if len(free):
                return int(node), int(free[number % len(free)])
        raise AssertionError("check() comes first")
