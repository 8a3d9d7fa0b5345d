"""Coordinates of the input features in a subspace that labels choose: fewer weights, fewer bytes.

Symbols: F features, C classes, B blocks, d = min(B C, F) coordinates. With rows x of the
train nodes, their mean m and Z = x - m, the blocks are those of a block Krylov space, as partial
least squares has them::

    V_1 = orth(Z' Y),   V_(b+1) = orth(Z' Z V_b), each orthogonal to those before

Y are the labels as (train nodes, C) indicators, or standardised numbers. A
client adds up its own nodes' part of each product; the server adds the clients' parts, makes V
orthonormal and sends it back. What a node is then known by is ``(x - m) V s`` with one scale s,
which gives coordinates a mean square near 1.

Source: Wold, Ruhe, Wold and Dunn, SIAM J. Sci. Stat. Comput. 5 (1984), in block form; Golub and Van
Loan, Matrix Computations, section 10.3.6.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from retexo_fl.errors import RemoteProtocolError
from retexo_fl.graph.features import Features
from retexo_fl.training.judging import indicators
from retexo_fl.updates import array_digest
from retexo_fl.updates.grid import Grid

#: Directions that add less than this share of all sums hold rounding alone.
_SHORTEST: Final = 1e-6
_TRACE_BYTES: Final = 8
#: Sums of features and of squares are off by less than this for each node, and than this share.
_SLACK: Final = 2.0**-20
#: The last two that were decoded of bytes, and what they follow from: thousands of clients of one
#: process decode the same.
_DECODED: Final[list[tuple[tuple[int, str, int, bytes], Basis]]] = []


def basis_width(*, blocks: int, classes: int, features: int) -> int:
    """Return d."""
    return min(blocks * classes, features)


def masked_sum_bits(basis_bits: int) -> int:
    """Return the bits of a sum of products under masks.

    Of the largest sum they leave 2**-20 or less where nothing is rounded without masks, 2**-12
    where that is to few bits.
    """
    return 32 if basis_bits == 32 else 24


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Basis:
    """A mean and directions: a whole basis, or one block of it while it is made.

    Attributes:
        mean: (F,) that is subtracted from rows.
        directions: (F, d), scaled.
    """

    mean: np.ndarray
    directions: np.ndarray

    def coordinates(self, rows: Features) -> np.ndarray:
        """Return the (N, d) coordinates of (N, F) rows, in their dtype."""
        directions = self.directions.astype(rows.dtype)
        moved: np.ndarray = rows @ directions - self.mean.astype(rows.dtype) @ directions
        return moved


class BasisForm:
    """How a basis, and sums for one, travel: flat, in ``bits`` bits a value; 32 rounds nothing.

    Plain, a basis is (F + F d,) floats: the mean, then the rows of the directions. Coded, it is
    bytes: the mean as upper halves of float32, then the coded directions, if there are any.

    Sums ``Z' Z V_b`` lie mostly along V_b itself, of which the next block has nothing: coded with
    the rest, that part would set the steps, and the rest would be rounding's. So it is taken out;
    its trace travels as a float64 before the coded rest.
    """

    def __init__(self, *, features: int, dtype: str, bits: int) -> None:
        self._features = features
        self._dtype = dtype
        self.bits = bits
        self._grid = None if bits == 32 else Grid(bits)

    def encode(self, basis: Basis) -> np.ndarray:
        """Return a basis as it travels."""
        if self._grid is None:
            flat = np.concatenate([basis.mean, basis.directions.reshape(-1)])
            return flat.astype(self._dtype)
        upper = (basis.mean.astype(np.float32).view(np.uint32) >> 16).astype("<u2")
        mean = upper.view(np.uint8)
        if not basis.directions.size:
            return mean
        return np.concatenate([mean, self._grid.encode_nearest(basis.directions.reshape(-1))])

    def decode(self, array: np.ndarray) -> Basis:
        """Read what :meth:`encode` returned; what was coded is shared, and nobody can write to it.

        Raises:
            RemoteProtocolError: It is no basis of so many features.
        """
        if self._grid is None:
            return self._decoded(array)
        made_of = self._features, self._dtype, self.bits, array_digest(array)
        for key, decoded in _DECODED:
            if key == made_of:
                return decoded
        basis = self._decoded(array)
        for part in (basis.mean, basis.directions):
            part.flags.writeable = False
        _DECODED[:] = [*_DECODED[-1:], (made_of, basis)]
        return basis

    def _decoded(self, array: np.ndarray) -> Basis:
        is_coded = self._grid is not None
        if array.dtype != ("uint8" if is_coded else self._dtype):
            raise RemoteProtocolError(
                f"a basis is of dtype {array.dtype}; expected that of basis-bits"
            )
        mean, flat = self._coded_parts(array) if is_coded else self._plain_parts(array)
        if not len(mean) or len(mean) != self._features or len(flat) % self._features:
            raise RemoteProtocolError(
                f"a basis has {len(mean)} and {len(flat)} values; expected multiples of "
                f"{self._features}, the features"
            )
        if not (np.isfinite(mean).all() and np.isfinite(flat).all()):
            raise RemoteProtocolError("a basis has values that are not finite; expected finite")
        columns = len(flat) // self._features
        directions = flat.reshape(self._features, columns).astype(self._dtype)
        return Basis(mean=mean.astype(self._dtype), directions=directions)

    def encode_sums(self, sums: np.ndarray, key: str, block: Basis | None = None) -> np.ndarray:
        """Return sums as they travel; on average, what they are beside ``block``.

        Args:
            sums: (F,) or (F, c), flat or not.
            key: What is drawn when they are rounded follows from it.
            block: Whose products :func:`direction_sums` they are; None of other sums.
        """
        flat = sums.reshape(-1).astype(self._dtype)
        if self._grid is None:
            return flat
        key = f"{key}/basis"
        if block is None or not block.directions.size:
            return self._grid.encode(flat, key)
        directions = block.directions.astype(np.float64)
        table = sums.reshape(directions.shape).astype(np.float64)
        along = directions.T @ table
        beside = (table - directions @ along).reshape(-1).astype(self._dtype)
        trace = np.array([np.trace(along)], "<f8").view(np.uint8)
        return np.concatenate([trace, self._grid.encode(beside, key)])

    def decode_sums(self, array: np.ndarray, block: Basis | None = None) -> np.ndarray:
        """Read what :meth:`encode_sums` returned for the same block.

        Returns:
            (F c,) sums; what lies along a block is a multiple of it, of the same trace.

        Raises:
            RemoteProtocolError: It cannot be decoded.
        """
        if self._grid is None:
            return array
        if block is None or not block.directions.size:
            return self._grid.decode(array)
        if array.dtype != np.uint8 or len(array) < _TRACE_BYTES:
            raise RemoteProtocolError(
                f"sums of products have {len(array)} values of dtype {array.dtype}; expected bytes "
                "of a trace, then of a coded array"
            )
        beside = self._grid.decode(array[_TRACE_BYTES:])
        # A block that found nothing new is of zeros, along which nothing lies.
        flat = block.directions.astype(np.float64).reshape(-1)
        if len(beside) != len(flat):
            raise RemoteProtocolError(
                f"sums of products are {len(beside)} values; expected {len(flat)}"
            )
        trace = np.frombuffer(array[:_TRACE_BYTES].tobytes(), "<f8")[0]
        squares = float(flat @ flat)
        share = trace / squares if squares else 0.0
        found: np.ndarray = (beside + share * flat).astype(self._dtype)
        return found

    def _plain_parts(self, array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return array[: self._features], array[self._features :]

    def _coded_parts(self, array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        assert self._grid is not None
        upper = array[: 2 * self._features]
        mean = np.ascontiguousarray(upper[: len(upper) // 2 * 2]).view("<u2").astype(np.uint32)
        rest = array[2 * self._features :]
        flat = self._grid.decode(rest) if len(rest) else np.zeros(0, np.float32)
        return (mean << 16).view(np.float32), flat


def joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Return arrays of one dtype as one: bytes behind the lengths of all but the last.

    Floats are as many in each part.
    """
    if parts[0].dtype != np.uint8:
        return np.concatenate(parts)
    lengths = np.array([len(part) for part in parts[:-1]], "<u4")
    return np.concatenate([lengths.view(np.uint8), *parts])


def parted(array: np.ndarray, count: int) -> list[np.ndarray]:
    """Return the ``count`` arrays that :func:`joined` was given.

    Raises:
        RemoteProtocolError: There are not so many.
    """
    if count == 1:
        return [array]
    if array.dtype != np.uint8:
        if len(array) % count:
            raise RemoteProtocolError(
                f"an array has {len(array)} values; expected a multiple of {count}"
            )
        return np.split(array, count)
    lengths, content = np.split(array, [4 * (count - 1)])
    if len(lengths) == 4 * (count - 1):
        ends = np.cumsum(np.frombuffer(lengths.tobytes(), "<u4"), dtype=np.int64)
        if ends[-1] <= len(content):
            return np.split(content, ends)
    raise RemoteProtocolError(
        f"{len(array)} bytes are not {count} arrays behind the lengths of all but the last"
    )


# ---- what a client adds up -----------------------------------------------------------------------


def feature_sums(rows: Features) -> np.ndarray:
    """Return the (F,) float64 sums of (N, F) rows."""
    return np.asarray(rows.sum(axis=0, dtype=np.float64)).reshape(-1)


def label_products(
    rows: Features, mean: np.ndarray, labels: np.ndarray, classes: int
) -> np.ndarray:
    """Return ``Z' Y``: (F, C) float64 of (n, F) train rows with n labels."""
    return _centred_product(rows, mean, indicators(labels, classes))


def direction_sums(rows: Features, block: Basis) -> np.ndarray:
    """Return ``Z' Z V``: (F, c) float64 of (n, F) train rows and a block's (F, c) directions."""
    wide = rows.astype(np.float64)
    return _centred_product(rows, block.mean, block.coordinates(wide))


def square_sums(rows: Features, labels: np.ndarray, classes: int) -> tuple[float, float]:
    """Return the sums of squares of all of (n, F) rows, and of their labels."""
    values = rows if isinstance(rows, np.ndarray) else rows.data
    squares = np.square(values, dtype=np.float64).sum()
    return float(squares), float(np.square(indicators(labels, classes)).sum())


def _centred_product(rows: Features, mean: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """Return ``(rows - mean)' factors`` without making centred rows, which are not sparse."""
    product = np.asarray(rows.astype(np.float64, copy=False).T @ factors)
    return product - np.outer(mean.astype(np.float64), factors.sum(axis=0))


# ---- what the server makes of it -----------------------------------------------------------------


class BasisBuilder:
    """Makes the blocks of a basis, one after the other.

    Args:
        mean: (F,) of the train nodes' rows.
        width: d.
        form: How blocks travel; they are continued as clients get them.
    """

    def __init__(self, mean: np.ndarray, *, width: int, form: BasisForm) -> None:
        nothing = np.zeros((len(mean), 0))
        self._form = form
        self._mean = form.decode(form.encode(Basis(mean=mean, directions=nothing))).mean
        self._width = width
        self._blocks: list[np.ndarray] = []
        self._squares = 0.0

    @property
    def is_complete(self) -> bool:
        """Whether there are d directions."""
        return self._made == self._width

    @property
    def last(self) -> Basis:
        """The last block, or the mean alone before the first: what clients need for the next."""
        nothing = np.zeros((len(self._mean), 0), self._mean.dtype)
        return Basis(mean=self._mean, directions=self._blocks[-1] if self._blocks else nothing)

    def reach(self, squares: tuple[float, ...], sums: np.ndarray, examples: int) -> float:
        """Return what no sum that the next block is made of exceeds, by Cauchy and Schwarz.

        A sum of ``z y`` is at most ``|Z| |Y|``, one of ``z (z v)`` at most ``|Z|**2 |v|``.

        Args:
            squares: Sums of :func:`square_sums` of all clients.
            sums: Of :func:`feature_sums`.
            examples: How many nodes these are over.
        """
        of_rows, of_labels = squares
        mean = self._mean.astype(np.float64)
        centred = of_rows - 2 * float(mean @ sums) + examples * float(mean @ mean)
        # What the sums lost when they were rounded.
        lost = examples + of_rows + 2 * float(np.abs(mean).sum())
        centred = max(centred, 0.0) + _SLACK * lost
        if not self._blocks:
            return math.sqrt(centred * (of_labels + _SLACK * (examples + of_labels)))
        longest: float = np.linalg.norm(self._blocks[-1].astype(np.float64), axis=0).max()
        return centred * longest

    def add(self, sums: np.ndarray) -> None:
        """Make the next block of (F, c) :func:`label_products` or :func:`direction_sums`."""
        if self._blocks:
            # Of the train nodes' coordinates in the last block.
            self._squares += float(np.sum(self._blocks[-1] * sums))
        left = sums.astype(np.float64)
        for _ in range(2):  # once more, for what rounding left of the first time
            for block in self._blocks:
                left = left - block @ (block.T.astype(np.float64) @ left)
        room = self._width - self._made
        found = _orthonormal(left, shortest=_SHORTEST * float(np.linalg.norm(sums)))
        made = Basis(mean=self._mean, directions=found[:, :room])
        self._blocks.append(self._form.decode(self._form.encode(made)).directions)

    def basis(self, examples: int) -> np.ndarray:
        """Return all blocks so far as they travel, scaled to so many train nodes' coordinates."""
        mean_square = self._squares / (examples * self._made)
        scale = 1.0 / math.sqrt(mean_square) if mean_square > 0 else 1.0
        directions = np.concatenate(self._blocks, axis=1).astype(np.float64) * scale
        return self._form.encode(Basis(mean=self._mean, directions=directions))

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
