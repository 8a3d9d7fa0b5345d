"""Columns in place of the features of nodes without any: where a node is among the edges.

Symbols: N nodes, d columns, K steps, g degrees of a node (2 of a directed graph), A the weights of
edges between neighbours, both directions added, L (diagonal) the mean weight of a node's edges, or
1 without any, D = diag(A 1) + L. Of the random walk with loops ``P = D^-1 (A + L)``, clients make::

    y_0      random signs, which follow from the hashes of nodes
    y_1      = P' y_0                           P' = (P - c) / h
    y_(k+1)  = 2 P' y_k - y_(k-1)
    z        = y_K / T_K((1 - c) / h)

so that z is Chebyshev's polynomial T_K of P: at most 1 / T_K(...) of y_0 is left along eigenvectors
of P with eigenvalues in [c - h, c + h], more and more towards 1, of what differs little along
edges. What few random columns span is then nearly what these eigenvectors span. The interval is
where a random graph of the same mean degree has its eigenvalues; they say nothing of where a node
is. Vectors are rounded to few bits on their way. What that adds in the first steps is as good as
y_0 itself, and goes through the same filter; in the last ones it stays, so these have more bits.

What a node is known by is ``[(log(1 + degree) - mean) / deviation, z W]`` with W the inverse root
of the mean of z'z, so that columns are uncorrelated, with mean squares of 1. Mean, deviation and W
come from sums over all nodes.

Source: Zhou, Saad, Tiago and Chelikowsky, J. Comput. Phys. 219 (2006), algorithm 4.1 (the filter);
Tremblay, Puy, Gribonval and Vandergheynst, ICML 2016 (random columns through a filter replace
eigenvectors); Friedman, Mem. AMS 910 (2008) (2 sqrt(degree - 1) bounds the others of a random
graph's).
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np
from scipy.sparse import csr_array

from retexo_fl.config import RunConfig
from retexo_fl.errors import RemoteProtocolError
from retexo_fl.graph.parts.partition import GraphPartition
from retexo_fl.layers.dropout import splitmix
from retexo_fl.training.stage_model import label_columns_of

_WORD_BITS: Final = 64
#: Bounds of the interval. Below -.5 are few eigenvalues of a walk with loops; the upper ones were
#: found on Cora, PubMed (sparse) and two MUSAE graphs of mean degree 15, by validation nodes.
_LOW: Final = -0.5
_LEAST_HIGH, _MOST_HIGH = 0.75, 0.85
#: Degrees count as no more in the mean, logarithms and columns are no larger: what masks bound.
MOST_DEGREE: Final = 1024
_MOST_LOGARITHM: Final = 40.0
_MOST_COLUMN: Final = 32.0
#: Of the mean of z'z, what is added along its diagonal: directions that are rounding alone stay
#: short.
_RIDGE: Final = 1e-6
#: Vectors of the last steps are rounded to no fewer bits: what that adds is filtered no more.
_LAST_STEPS: Final = 3
_LAST_BITS: Final = 8
#: Of a sum under masks: whitening divides by roots of small ones.
MASKED_BITS: Final = 56
#: Numbers that say where the interval is.
NUM_BOUNDS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Eigenvalues that say nothing: from ``low`` to ``high``."""

    low: float
    high: float

    @classmethod
    def of_degree(cls, mean: float) -> Self:
        """Return the interval of a graph of a mean degree."""
        bulk = (1 + 2 * math.sqrt(max(mean - 1, 0.0))) / (mean + 1)
        return cls(low=_LOW, high=min(max(bulk, _LEAST_HIGH), _MOST_HIGH))

    @classmethod
    def read(cls, told: np.ndarray) -> Self:
        """Read what :attr:`told` has.

        Raises:
            RemoteProtocolError: It is no interval below 1.
        """
        if told.shape != (NUM_BOUNDS,) or not -1 <= told[0] < told[1] < 1:
            raise RemoteProtocolError("an interval of eigenvalues is none between -1 and 1")
        return cls(low=float(told[0]), high=float(told[1]))

    def told(self, dtype: str) -> np.ndarray:
        """(2,) as it travels."""
        return np.array([self.low, self.high], dtype)

    @property
    def _middle(self) -> float:
        return (self.low + self.high) / 2

    @property
    def _half(self) -> float:
        return (self.high - self.low) / 2

    def next(self, product: np.ndarray, last: np.ndarray, before: np.ndarray | None) -> np.ndarray:
        """Return y_(k+1).

        Args:
            product: (N, d) P y_k.
            last: (N, d) y_k.
            before: (N, d) y_(k-1); None of y_0.
        """
        walked: np.ndarray = (product - self._middle * last) / self._half
        return walked if before is None else 2 * walked - before

    def scaled(self, last: np.ndarray, steps: int) -> np.ndarray:
        """Return (N, d) z of y_K after K ``steps``."""
        at_one = math.cosh(steps * math.acosh((1 - self._middle) / self._half))
        scaled: np.ndarray = np.clip(last / at_one, -_MOST_COLUMN, _MOST_COLUMN)
        return scaled


def bits_of_step(step: int, *, steps: int, bits: int) -> int:
    """Return the bits of a value in the vectors that cross after a step (from 1), of ``bits``."""
    return bits if step < steps - _LAST_STEPS else max(bits, _LAST_BITS)


def signs(hashes: np.ndarray, columns: int, *, seed: int, dtype: str = "float32") -> np.ndarray:
    """Return the (n, d) signs of nodes with (n,) uint64 hashes: 1 or -1, the same everywhere."""
    found = np.empty((len(hashes), columns), dtype)
    for first in range(0, columns, _WORD_BITS):
        digest = hashlib.blake2b(f"{seed}/columns/{first}".encode(), digest_size=8).digest()
        word = np.frombuffer(digest, dtype="<u8")
        bits = splitmix(splitmix(np.asarray(hashes, np.uint64)) ^ word)
        count = min(_WORD_BITS, columns - first)
        places = np.arange(count, dtype=np.uint64)
        found[:, first : first + count] = (bits[:, None] >> places) & np.uint64(1)
    return 2 * found - 1


def logarithms(degrees: np.ndarray) -> np.ndarray:
    """Return (n, g) ``log(1 + degree)`` of (n,) or (n, 2) degrees, float64."""
    found = np.log1p(np.abs(np.asarray(degrees, np.float64))).reshape(len(degrees), -1)
    return np.minimum(found, _MOST_LOGARITHM)


def with_structure(part: GraphPartition, config: RunConfig) -> GraphPartition:
    """Return a part whose nodes have features: where they have none, what is made of the edges.

    That is ``log(1 + degree)``, of a directed graph of both directions, of weighted edges what they
    weigh together; beside it the random signs that columns are made of until they are made, and
    zeros where they are made of labels.

    Args:
        part: As it is stored, or as this function returned it before edges were left out.
        config: Of the run.
    """
    if (part.num_features and not part.is_structural) or part.relations is not None:
        return part
    features = logarithms(part.degrees).astype(np.float32)
    if config.structure == "columns":
        drawn = signs(np.asarray(part.node_hashes), config.structure_columns, seed=config.seed)
        features = np.hstack([features, drawn])
    elif config.structure == "labels":
        width = label_columns_of(part.num_classes)
        features = np.hstack([features, np.zeros((len(features), width), np.float32)])
    return replace(part, features=features, is_structural=True)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Walk:
    """P of a client's nodes.

    Attributes:
        own: (N, N) shares of own neighbours.
        others: (N, B) shares of received vectors.
        loops: (N, 1) share of a node's own row beside these.
    """

    own: csr_array
    others: csr_array
    loops: np.ndarray

    @classmethod
    def of(
        cls,
        *,
        indptr: np.ndarray,
        indices: np.ndarray,
        weights: np.ndarray | None,
        totals: np.ndarray,
        neighbours: np.ndarray,
        slots: int,
    ) -> Self:
        """Take the edges of a stage.

        Args:
            indptr: (N + 1,) places of each node's edges.
            indices: (E,) sources: own nodes, then slots.
            weights: (E,) or (E, 2) of them; None for 1.
            totals: (N,) or (N, 2) what the edges of a node weigh together.
            neighbours: (N,) how many neighbours it has.
            slots: B.
        """
        nodes = len(indptr) - 1
        if weights is None:
            weights = np.ones(len(indices))
        each, sums = (np.asarray(one, np.float64) for one in (weights, totals))
        each = each.sum(axis=1) if each.ndim > 1 else each
        sums = sums.sum(axis=1) if sums.ndim > 1 else sums
        has = (neighbours > 0) & (sums > 0)
        loops = np.divide(sums, neighbours, out=np.ones(nodes), where=has)
        shares = 1 / (np.where(has, sums, 0.0) + loops)
        each = each * np.repeat(shares, np.diff(indptr))
        both = csr_array((each, indices, indptr), shape=(nodes, nodes + slots))
        return cls(
            own=csr_array(both[:, :nodes]),
            others=csr_array(both[:, nodes:]),
            loops=(loops * shares)[:, None],
        )

    def step(self, own: np.ndarray, received: np.ndarray) -> np.ndarray:
        """Return (N, d) P y of (N, d) own and (B, d) received rows, in their dtype."""
        product = self.own @ own.astype(np.float64)
        if len(received):
            product += self.others @ received.astype(np.float64)
        found: np.ndarray = (product + self.loops * own).astype(own.dtype)
        return found


# ---- sums over nodes, and what follows from them -------------------------------------------------


def degree_values(degrees: int) -> int:
    """Return how many sums :func:`degree_sums` has for g ``degrees``."""
    return 1 + 2 * degrees


def product_values(columns: int) -> int:
    """Return how many sums :func:`product_sums` has."""
    return columns * (columns + 1) // 2


def degree_sums(neighbours: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Return the sums of (n,) numbers of neighbours, of (n, g) logarithms and of their squares."""
    counted = np.minimum(neighbours, MOST_DEGREE).sum()
    return np.concatenate([[counted], found.sum(axis=0), (found**2).sum(axis=0)])


def product_sums(columns: np.ndarray) -> np.ndarray:
    """Return the upper triangle, row by row, of z'z of (n, d) columns, float64."""
    wide = columns.astype(np.float64)
    upper: np.ndarray = (wide.T @ wide)[np.triu_indices(columns.shape[1])]
    return upper


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ColumnMap:
    """What makes features of degrees and columns.

    Attributes:
        interval: By which the columns are made.
        means: (g,) of logarithms of degrees.
        scales: (g,) that they are multiplied with then.
        mixing: (d, d) W; (0, 0) where columns stay as they are, None before it is known.
    """

    interval: Interval
    means: np.ndarray
    scales: np.ndarray
    mixing: np.ndarray | None = None

    @classmethod
    def of_degrees(cls, sums: np.ndarray, nodes: int) -> Self:
        """Take :func:`degree_sums` of all N nodes."""
        ends, *moments = sums / max(nodes, 1)
        means, squares = np.split(np.array(moments), 2)
        deviations = np.sqrt(np.maximum(squares - means**2, 0.0))
        scales = np.divide(1, deviations, out=np.ones(len(means)), where=deviations > _RIDGE)
        return cls(interval=Interval.of_degree(float(ends)), means=means, scales=scales)

    @staticmethod
    def mixed(sums: np.ndarray, nodes: int, columns: int) -> np.ndarray:
        """Return W of :func:`product_sums` of all N nodes."""
        upper = np.zeros((columns, columns))
        upper[np.triu_indices(columns)] = sums / max(nodes, 1)
        mean = upper + upper.T - np.diag(np.diag(upper))
        values, vectors = np.linalg.eigh(mean)
        values = np.maximum(values, 0.0) + _RIDGE * max(float(values.mean()), np.finfo(float).tiny)
        found: np.ndarray = (vectors / np.sqrt(values)) @ vectors.T
        return found

    def encode(self, dtype: str) -> np.ndarray:
        """Return it as it travels."""
        parts = [self.interval.told(dtype), self.means, self.scales]
        parts += [] if self.mixing is None else [self.mixing.ravel()]
        return np.concatenate(parts).astype(dtype)

    @classmethod
    def decode(cls, told: np.ndarray, *, degrees: int, columns: int) -> Self:
        """Read what :meth:`encode` gave.

        Raises:
            RemoteProtocolError: It is no map of so many degrees and columns.
        """
        size = map_values(degrees, columns)
        if told.shape != (size,) or not np.isfinite(told).all():
            raise RemoteProtocolError(
                f"a map of columns has shape {told.shape}; expected ({size},), finite"
            )
        interval, means, scales, mixing = np.split(
            told, np.cumsum([NUM_BOUNDS, degrees, degrees]).tolist()
        )
        return cls(
            interval=Interval.read(interval),
            means=means,
            scales=scales,
            mixing=mixing.reshape(columns, columns),
        )

    def features(self, found: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Return the (n, g + d) features of (n, g) logarithms and (n, d) z, in the dtype of z."""
        assert self.mixing is not None
        degrees = (found - self.means) * self.scales
        made = columns.astype(np.float64)
        made = made @ self.mixing if self.mixing.size else made
        return np.ascontiguousarray(np.hstack([degrees, made]), dtype=columns.dtype)


def map_values(degrees: int, columns: int) -> int:
    """Return how many values a :class:`ColumnMap` travels as."""
    return NUM_BOUNDS + 2 * degrees + columns**2
