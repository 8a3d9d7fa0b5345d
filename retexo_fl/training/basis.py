"""Coordinates of the input features in a subspace that labels choose: fewer weights, fewer bytes.

Symbols: F features, C classes, B blocks, d = min(B C, F) coordinates. With rows x of the
train nodes, their mean m and Z = x - m, the blocks are those of a block Krylov space, as partial
least squares has them::

    V_1 = orth(Z' Y),   V_(b+1) = orth(Z' Z V_b), each orthogonal to those before

Y are the labels as (train nodes, C) indicators, or standardised numbers. A
client adds up its own nodes' part of each product; the server adds the clients' parts, makes V
orthonormal and sends it back. What a node is then known by is ``(x - m) V s`` with one scale s,
which gives coordinates a mean square near 1.

Where types of nodes have few train nodes (``basis-rows = far``), columns are evened: Z is
(x - m) D, where the scale of a column follows from its mean square q over train nodes::

    D = diag(q)**-1/8, and coordinates (x - m) D V s

Otherwise their directions are mostly those of large columns, and a word of many texts tells classes
apart least (docs/measured/data.md).

Source: Wold, Ruhe, Wold and Dunn, SIAM J. Sci. Stat. Comput. 5 (1984), in block form; Golub and Van
Loan, Matrix Computations, section 10.3.6.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from retexo_fl.errors import RemoteProtocolError
from retexo_fl.graph.features import Features
from retexo_fl.training.judging import indicators
from retexo_fl.units import counted
from retexo_fl.updates import array_digest
from retexo_fl.updates.grid import Grid

#: Directions that add less than this share of all sums hold rounding alone.
_SHORTEST: Final = 1e-6
_TRACE_BYTES: Final = 8
#: Sums of features and of squares are off by less than this for each node, and than this share.
_SLACK: Final = 2.0**-20
#: The power of a column's mean square in its scale: found on validation nodes, as 1/4 was not.
_EVENING: Final = 0.125
#: Coded scales are 2**(-k / 16), k a byte: within 2.2 %.
_SCALE_STEPS: Final = 16
#: The last two that were decoded of bytes, and what they follow from: thousands of clients of one
#: process decode the same.
_DECODED: Final[list[tuple[tuple[int, str, int, bool, bytes], Basis]]] = []


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
        scales: (F,) D of a block of evened columns; of a whole basis they are in its directions.
    """

    mean: np.ndarray
    directions: np.ndarray
    scales: np.ndarray | None = None

    def coordinates(self, rows: Features) -> np.ndarray:
        """Return the (N, d) coordinates of (N, F) rows, in their dtype."""
        directions = self.evened(self.directions).astype(rows.dtype)
        moved: np.ndarray = rows @ directions - self.mean.astype(rows.dtype) @ directions
        return moved

    def evened(self, columns: np.ndarray) -> np.ndarray:
        """Return (F, c) values times the scales, if there are any."""
        return columns if self.scales is None else columns * self.scales[:, None]


class BasisForm:
    """How a basis, and sums for one, travel: flat, in ``bits`` bits a value; 32 rounds nothing.

    Plain, a basis is (F + F d,) floats: the mean, then the rows of the directions. Coded, it is
    bytes: the mean as upper halves of float32, then the coded directions, if there are any. Scales
    of evened columns stand between both: F floats, or F bytes.

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
        scales = [] if basis.scales is None else [basis.scales]
        if self._grid is None:
            flat = np.concatenate([basis.mean, *scales, basis.directions.reshape(-1)])
            return flat.astype(self._dtype)
        parts = [_upper_halves(basis.mean), *map(_coded_scales, scales)]
        if basis.directions.size:
            parts.append(self._grid.encode_nearest(basis.directions.reshape(-1)))
        return np.concatenate(parts)

    def decode(self, array: np.ndarray, is_evened: bool = False) -> Basis:
        """Read what :meth:`encode` returned; what was coded is shared, and nobody can write to it.

        Args:
            array: That.
            is_evened: It has scales.

        Raises:
            RemoteProtocolError: It is no such basis of so many features.
        """
        if self._grid is None:
            return self._decoded(array, is_evened)
        made_of = self._features, self._dtype, self.bits, is_evened, array_digest(array)
        for key, decoded in _DECODED:
            if key == made_of:
                return decoded
        basis = self._decoded(array, is_evened)
        for part in (basis.mean, basis.directions, basis.scales):
            if part is not None:
                part.flags.writeable = False
        _DECODED[:] = [*_DECODED[-1:], (made_of, basis)]
        return basis

    def _decoded(self, array: np.ndarray, is_evened: bool) -> Basis:
        is_coded = self._grid is not None
        if array.dtype != ("uint8" if is_coded else self._dtype):
            raise RemoteProtocolError(
                f"a basis is of dtype {array.dtype}; expected that of basis-bits"
            )
        mean, scales, flat = (self._coded_parts if is_coded else self._plain_parts)(
            array, self._features * is_evened
        )
        if not len(mean) or len(mean) != self._features or len(flat) % self._features:
            raise RemoteProtocolError(
                f"a basis has {len(mean)} and {len(flat)} values; expected multiples of "
                f"{self._features}, the features"
            )
        if len(scales) != self._features * is_evened:
            raise RemoteProtocolError(
                f"a basis has {counted(len(scales), 'scale')}; expected {self._features}"
            )
        if not all(np.isfinite(part).all() for part in (mean, scales, flat)):
            raise RemoteProtocolError("a basis has values that are not finite; expected finite")
        columns = len(flat) // self._features
        directions = flat.reshape(self._features, columns).astype(self._dtype)
        return Basis(
            mean=mean.astype(self._dtype),
            directions=directions,
            scales=scales.astype(self._dtype) if is_evened else None,
        )

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

    def encode_squares(self, sums: np.ndarray) -> np.ndarray:
        """Return (F,) :func:`column_squares` as they travel: of all sizes, each as exactly."""
        return sums.astype(self._dtype) if self._grid is None else _upper_halves(sums)

    def decode_squares(self, array: np.ndarray) -> np.ndarray:
        """Read what :meth:`encode_squares` returned.

        Raises:
            RemoteProtocolError: It did not make this, or they are not those of real numbers.
        """
        is_coded = self._grid is not None
        if array.dtype != ("uint8" if is_coded else self._dtype):
            raise RemoteProtocolError(
                f"sums of squares are of dtype {array.dtype}; expected that of basis-bits"
            )
        found = _of_upper_halves(array) if is_coded else array
        if not (np.isfinite(found).all() and (found >= 0).all()):
            raise RemoteProtocolError("sums of squares are below 0 or not finite; expected neither")
        return found

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

    def _plain_parts(
        self, array: np.ndarray, scales: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return mean, so many scales, and directions."""
        ends = (self._features, self._features + scales)
        return array[: ends[0]], array[ends[0] : ends[1]], array[ends[1] :]

    def _coded_parts(
        self, array: np.ndarray, scales: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        assert self._grid is not None
        ends = (2 * self._features, 2 * self._features + scales)
        mean = _of_upper_halves(array[: ends[0]])
        rest = array[ends[1] :]
        flat = self._grid.decode(rest) if len(rest) else np.zeros(0, np.float32)
        exponents = array[ends[0] : ends[1]] / -_SCALE_STEPS
        return mean, np.exp2(exponents), flat


def _upper_halves(values: np.ndarray) -> np.ndarray:
    """Return (F,) values as the (2 F,) bytes of the upper halves of float32."""
    upper = (values.astype(np.float32).view(np.uint32) >> 16).astype("<u2")
    return upper.view(np.uint8)


def _of_upper_halves(array: np.ndarray) -> np.ndarray:
    """Return the float32 values of so many bytes; of an odd number all but the last."""
    upper = np.ascontiguousarray(array[: len(array) // 2 * 2]).view("<u2").astype(np.uint32)
    return (upper << 16).view(np.float32)


def _coded_scales(scales: np.ndarray) -> np.ndarray:
    """Return the bytes of (F,) positive scales, none above 1."""
    steps = np.clip(np.rint(-_SCALE_STEPS * np.log2(scales)), 0, 255)
    found: np.ndarray = steps.astype(np.uint8)
    return found


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


def label_products(rows: Features, block: Basis, labels: np.ndarray, classes: int) -> np.ndarray:
    """Return ``Z' Y``: (F, C) float64 of (n, F) train rows with n labels."""
    return _centred_product(rows, block, indicators(labels, classes))


def column_squares(rows: Features) -> np.ndarray:
    """Return the (F,) float64 sums of squares of the columns of (N, F) rows."""
    return feature_sums(rows.astype(np.float64) ** 2)


def direction_sums(rows: Features, block: Basis) -> np.ndarray:
    """Return ``Z' Z V``: (F, c) float64 of (n, F) train rows and a block's (F, c) directions."""
    wide = rows.astype(np.float64)
    return _centred_product(rows, block, block.coordinates(wide))


def square_sums(rows: Features, labels: np.ndarray, classes: int) -> tuple[float, float]:
    """Return the sums of squares of all of (n, F) rows, and of their labels."""
    values = rows if isinstance(rows, np.ndarray) else rows.data
    squares = np.square(values, dtype=np.float64).sum()
    return float(squares), float(np.square(indicators(labels, classes)).sum())


def _centred_product(rows: Features, block: Basis, factors: np.ndarray) -> np.ndarray:
    """Return ``Z' factors`` without making centred rows, which are not sparse."""
    product = np.asarray(rows.astype(np.float64, copy=False).T @ factors)
    product -= np.outer(block.mean.astype(np.float64), factors.sum(axis=0))
    return block.evened(product)


# ---- what the server makes of it -----------------------------------------------------------------


def evening_scales(squares: np.ndarray) -> np.ndarray:
    """Return the (F,) float64 scales that follow from :func:`column_squares` of all clients.

    The largest is 1: of the smallest squares, and of columns without any.
    """
    there = squares[squares > 0]
    least = there.min() if len(there) else 1.0
    scales: np.ndarray = (np.maximum(squares, least) / least) ** -_EVENING
    return scales


class BasisBuilder:
    """Makes the blocks of a basis, one after the other.

    Args:
        mean: (F,) of the train nodes' rows.
        width: d.
        form: How blocks travel; they are continued as clients get them.
        squares: (F,) :func:`column_squares` of them where columns are evened.
    """

    def __init__(
        self, mean: np.ndarray, *, width: int, form: BasisForm, squares: np.ndarray | None = None
    ) -> None:
        self._form = form
        self._column_squares = squares
        scales = None if squares is None else evening_scales(squares)
        self._start = self._as_sent(
            Basis(mean=mean, directions=np.zeros((len(mean), 0)), scales=scales)
        )
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
        return replace(self._start, directions=self._blocks[-1]) if self._blocks else self._start

    def reach(self, squares: tuple[float, ...], sums: np.ndarray, examples: int) -> float:
        """Return what no sum that the next block is made of exceeds, by Cauchy and Schwarz.

        A sum of ``z y`` is at most ``|Z| |Y|``, one of ``z (z v)`` at most ``|Z|**2 |v|``.

        Args:
            squares: Sums of :func:`square_sums` of all clients.
            sums: Of :func:`feature_sums`.
            examples: How many nodes these are over.
        """
        of_rows, of_labels = squares
        if self._start.scales is not None:
            of_rows = self._evened_squares(examples)
        mean, sums = (
            self._start.evened(part.astype(np.float64)[:, None])[:, 0]
            for part in (self._start.mean, sums)
        )
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
        made = replace(self._start, directions=found[:, :room])
        self._blocks.append(self._as_sent(made).directions)

    def basis(self, examples: int) -> np.ndarray:
        """Return all blocks so far as they travel, scaled to so many train nodes' coordinates."""
        mean_square = self._squares / (examples * self._made)
        scale = 1.0 / math.sqrt(mean_square) if mean_square > 0 else 1.0
        directions = np.concatenate(self._blocks, axis=1).astype(np.float64) * scale
        whole = Basis(mean=self._start.mean, directions=self._start.evened(directions))
        return self._form.encode(whole)

    def _evened_squares(self, examples: int) -> float:
        """Return what the squares of all evened rows of so many nodes add up to at most."""
        squares, scales = self._column_squares, self._start.scales
        assert squares is not None
        assert scales is not None
        # Each column's were rounded.
        return float(np.square(scales, dtype=float) @ (squares + _SLACK * examples))

    def _as_sent(self, block: Basis) -> Basis:
        """Return a block as clients get it."""
        return self._form.decode(self._form.encode(block), is_evened=block.scales is not None)

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
