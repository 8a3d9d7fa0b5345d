"""Coordinates of the input features in a subspace that labels choose: fewer weights, fewer bytes.

Symbols: N nodes, F features, C classes, B blocks, d = min(B C, F) coordinates. With rows x, their
mean m over all nodes and Z = x - m over the train nodes, the blocks are those of a block Krylov
space, as partial least squares has them::

    V_1 = orth(Z' Y),   V_(b+1) = orth(Z' Z V_b), each orthogonal to those before

Y are the labels as (train nodes, C) indicators. A client adds up its own nodes' part of each
product; the server adds the clients' parts, makes V orthonormal and sends it back. What a node is
then known by is ``(x - m) V s`` with one scale s, which gives coordinates a mean square near 1.

Source: Wold, Ruhe, Wold and Dunn, SIAM J. Sci. Stat. Comput. 5 (1984), in block form; Golub and Van
Loan, Matrix Computations, section 10.3.6.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from scipy.sparse import csr_array

from retexo_fl.errors import LocalProtocolError
from retexo_fl.graph.features import Features

#: Directions that add less than this share of all sums hold rounding alone.
_SHORTEST: Final = 1e-6


def basis_width(*, blocks: int, classes: int, features: int) -> int:
    """Return d."""
    return min(blocks * classes, features)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Basis:
    """A mean and directions: a whole basis, or one block of it while it is made.

    Attributes:
        mean: (F,) that is subtracted from rows.
        directions: (F, d), scaled.
    """

    mean: np.ndarray
    directions: np.ndarray

    @property
    def flat(self) -> np.ndarray:
        """(F + F d,) values: the mean, then the rows of the directions."""
        return np.concatenate([self.mean, self.directions.reshape(-1)])

    @classmethod
    def of(cls, flat: np.ndarray, *, features: int) -> Self:
        """Read :attr:`flat`.

        Raises:
            LocalProtocolError: It is of another length, or not finite.
        """
        if not len(flat) or len(flat) % features:
            raise LocalProtocolError(
                f"a basis has {len(flat)} values; expected a multiple of {features}, the features"
            )
        if not np.isfinite(flat).all():
            raise LocalProtocolError("a basis has values that are not finite")
        return cls(mean=flat[:features], directions=flat[features:].reshape(features, -1))

    def coordinates(self, rows: Features) -> np.ndarray:
        """Return the (N, d) coordinates of (N, F) rows, in their dtype."""
        directions = self.directions.astype(rows.dtype)
        moved: np.ndarray = rows @ directions - self.mean.astype(rows.dtype) @ directions
        return moved


# ---- what a client adds up -----------------------------------------------------------------------


def feature_sums(rows: Features) -> np.ndarray:
    """Return the (F,) float64 sums of (N, F) rows."""
    return np.asarray(rows.sum(axis=0, dtype=np.float64)).reshape(-1)


def label_sums(rows: Features, mean: np.ndarray, labels: np.ndarray, classes: int) -> np.ndarray:
    """Return ``Z' Y``: (F, C) float64 of (n, F) train rows with (n,) labels."""
    indicators = np.zeros((len(labels), classes))
    indicators[np.arange(len(labels)), labels] = 1.0
    return _centred_product(rows, mean, indicators)


def direction_sums(rows: Features, block: Basis) -> np.ndarray:
    """Return ``Z' Z V``: (F, c) float64 of (n, F) train rows and a block's (F, c) directions."""
    wide = rows.astype(np.float64)
    return _centred_product(rows, block.mean, block.coordinates(wide))


def _centred_product(rows: Features, mean: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """Return ``(rows - mean)' factors`` without making centred rows, which are not sparse."""
    product = np.asarray(_transposed(rows) @ factors)
    return product - np.outer(mean.astype(np.float64), factors.sum(axis=0))


def _transposed(rows: Features) -> Features:
    wide = rows.astype(np.float64)
    return wide.T if isinstance(wide, np.ndarray) else csr_array(wide.T)


# ---- what the server makes of it -----------------------------------------------------------------


class BasisBuilder:
    """Makes the blocks of a basis, one after the other.

    Args:
        mean: (F,) of all nodes' rows.
        width: d.
        dtype: ``float32`` or ``float64``, in which blocks are sent.
    """

    def __init__(self, mean: np.ndarray, *, width: int, dtype: str) -> None:
        self._mean = mean.astype(dtype)
        self._width = width
        self._dtype = dtype
        self._blocks: list[np.ndarray] = []
        self._squares = 0.0

    @property
    def is_complete(self) -> bool:
        """Whether there are d directions."""
        return self._made == self._width

    @property
    def last(self) -> Basis:
        """The last block, or the mean alone before the first: what clients need for the next."""
        nothing = np.zeros((len(self._mean), 0), self._dtype)
        return Basis(mean=self._mean, directions=self._blocks[-1] if self._blocks else nothing)

    def add(self, sums: np.ndarray) -> None:
        """Make the next block of (F, c) :func:`label_sums` or :func:`direction_sums`."""
        if self._blocks:
            # Of the train nodes' coordinates in the last block.
            self._squares += float(np.sum(self._blocks[-1] * sums))
        left = sums.astype(np.float64)
        for _ in range(2):  # once more, for what rounding left of the first time
            for block in self._blocks:
                left = left - block @ (block.T.astype(np.float64) @ left)
        room = self._width - self._made
        found = _orthonormal(left, shortest=_SHORTEST * float(np.linalg.norm(sums)))
        self._blocks.append(found[:, :room].astype(self._dtype))

    def basis(self, examples: int) -> Basis:
        """Return the whole basis, scaled by the coordinates of so many train nodes."""
        mean_square = self._squares / (examples * self._width)
        scale = 1.0 / math.sqrt(mean_square) if mean_square > 0 else 1.0
        directions = np.concatenate(self._blocks, axis=1).astype(np.float64) * scale
        return Basis(mean=self._mean, directions=directions.astype(self._dtype))

    @property
    def _made(self) -> int:
        return sum(block.shape[1] for block in self._blocks)


def _orthonormal(columns: np.ndarray, *, shortest: float) -> np.ndarray:
    """Return the (F, c) orthonormal columns that continue each other; zero where nothing is new.

    By QR with a positive diagonal, which follows small changes of its input as singular vectors,
    free in sign and within near-equal singular values, do not.
    """
    found, triangle = np.linalg.qr(columns)
    lengths = np.diagonal(triangle)
    signs: np.ndarray = np.where(lengths < 0, -1.0, 1.0) * (np.abs(lengths) > shortest)
    full = np.zeros(columns.shape)
    full[:, : len(signs)] = found * signs
    return full
