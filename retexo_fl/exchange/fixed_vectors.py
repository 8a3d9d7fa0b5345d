"""The vectors of an exchange on one power-of-two grid: what the codec ``fixed`` sends.

One exponent serves all that a client sends in an exchange, so that a row has the same integers at
every peer. Values on the grid are floats like others: they are written as ``lossless`` writes them,
or under ``fixed8`` in a byte each where that is shorter.

A frame in bytes is the exponent e of a grid, an int16, little-endian, and for each row a byte with
its form and one for each value. The lower bits of a form are the shift s, its highest bit says that
values are signed. The value of a byte b is ``b * 2 ** (s - e)``.

Under ``fixed8`` each row keeps 8 of the 24 bits, if vectors are not sparse. Sparse ones keep 24
under both: without their zeros they take less than a byte a value, and lose nothing that counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from retexo_fl.errors import LocalProtocolError, RemoteProtocolError
from retexo_fl.exchange.fixed_point import (
    MAX_BITS,
    MAX_EXPONENT,
    MAX_SHIFT,
    MIN_EXPONENT,
    SIGNED,
    byte_rows,
    error_bound,
    exponent_for,
    rows_of_bytes,
    snap,
    snap_rows,
    unsnap,
)
from retexo_fl.exchange.vectors import (
    VALUES_PER_NONZERO,
    Vectors,
    count_nonzeros,
    make_csr,
    to_csr,
    to_dense,
)
from retexo_fl.units import counted

#: The codec whose vectors are on a grid and whose shared sums are exact.
FIXED: Final = "fixed"
#: The same with 8 bits a value.
FIXED8: Final = "fixed8"
#: Bits of a value under the latter.
BYTE_BITS: Final = 8
_EXPONENT: Final = np.dtype("<i2")
#: By such a codec, how the frames of its vectors are written.
_WIRE: Final = MappingProxyType({FIXED: "lossless", FIXED8: "grid8"})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FixedVectors:
    """What a client sends in one exchange, rounded to integers times ``2**-exponent``.

    Attributes:
        exponent: Of all its vectors.
        vectors: By peer, the (vectors, width) rounded rows, dense or CSR as they were; zeros stay
            zero, and CSR has none.
        bits: Of a value in its row: 24, or 8.
        error_bound: How far a value may be from what it was before it was rounded.
    """

    exponent: int
    vectors: Mapping[int, Vectors]
    bits: int
    error_bound: float

    @property
    def wire_codec(self) -> str:
        """How the frames of a block of them are written."""
        return wire_codec(FIXED8 if self.bits == BYTE_BITS else FIXED)

    def integers(self, peer: int) -> npt.NDArray[np.int32]:
        """Return the (vectors, width) integers for a peer; made anew at each call."""
        return snap(to_dense(self.vectors[peer]), self.exponent)


def fixed_vectors(vectors: Mapping[int, Vectors], bits: int = MAX_BITS) -> FixedVectors:
    """Round all vectors of an exchange to the grid that the largest magnitude allows.

    Args:
        vectors: By peer, (vectors, width) float32 or float64, dense or CSR; left as they are.
        bits: 24; or 8, which rows have that are not sparse all together.

    Raises:
        LocalProtocolError: A value is not finite.
        TrainingDiverged: One is too large for float32.
    """
    largest = max((_largest(v, peer) for peer, v in vectors.items()), default=0.0)
    exponent = exponent_for(largest)
    if bits == BYTE_BITS and not _are_sparse(vectors):
        return _in_bytes(vectors, exponent)
    return FixedVectors(
        exponent=exponent,
        bits=MAX_BITS,
        error_bound=error_bound(exponent),
        vectors={peer: _on_grid(v, exponent) for peer, v in vectors.items()},
    )


def wire_codec(codec: str) -> str:
    """Return how the frames of a run's vectors are written."""
    return _WIRE.get(codec, codec)


def grid_bits(codec: str) -> int:
    """Return the bits of a value on the grid of a codec; 0 where it has none."""
    return {FIXED: MAX_BITS, FIXED8: BYTE_BITS}.get(codec, 0)


def in_compact_form(vectors: Vectors) -> Vectors:
    """Return a block as CSR if it has no rows or few values that are not zero, else dense.

    What a client receives comes in this form however it came: as blocks of its peers, or summed up
    on its way.
    """
    rows, width = vectors.shape
    nonzeros = int(count_nonzeros(vectors).sum())
    if not rows or nonzeros * VALUES_PER_NONZERO < rows * width:
        return to_csr(vectors)
    return to_dense(vectors)


def _in_bytes(vectors: Mapping[int, Vectors], exponent: int) -> FixedVectors:
    rounded: dict[int, Vectors] = {}
    largest_shift = 0
    for peer, rows in vectors.items():
        steps, shifts = snap_rows(to_dense(rows), exponent)
        rounded[peer] = unsnap(steps, exponent, rows.dtype.type)
        largest_shift = max(largest_shift, int(shifts.max(initial=0)))
    # Up or down at random: off by less than one number of the row.
    return FixedVectors(
        exponent=exponent,
        vectors=rounded,
        bits=BYTE_BITS,
        error_bound=2.0 ** (largest_shift - exponent),
    )


def _are_sparse(vectors: Mapping[int, Vectors]) -> bool:
    """Return whether, without zeros, values and their places take less than a byte a value."""
    num_values = sum(v.shape[0] * v.shape[1] for v in vectors.values())
    written = sum(
        int(count_nonzeros(v).sum()) * (1 + v.dtype.itemsize) + v.shape[0] for v in vectors.values()
    )
    return bool(written < num_values)


def _largest(vectors: Vectors, peer: int) -> float:
    values: npt.NDArray[Any] = vectors.data if isinstance(vectors, sp.csr_array) else vectors
    if not values.size:
        return 0.0
    # Not of abs(values), which would be a copy of them all.
    largest = max(float(values.max()), -float(values.min()))
    if not np.isfinite(largest):
        raise LocalProtocolError(
            f"a vector for client {peer} holds NaN or infinity, expected finite values"
        )
    return largest


def _on_grid(vectors: Vectors, exponent: int) -> Vectors:
    if not isinstance(vectors, sp.csr_array):
        return unsnap(snap(vectors, exponent), exponent, vectors.dtype.type)
    integers = snap(vectors.data, exponent)
    nonzero = integers != 0
    before = np.concatenate(([0], np.cumsum(nonzero)))
    return make_csr(
        unsnap(integers[nonzero], exponent, vectors.dtype.type),
        vectors.indices[nonzero],
        np.diff(before[vectors.indptr]),
        width=vectors.shape[1],
    )


# ---- rows of 8 bits on the wire ------------------------------------------------------------------


def grid_bytes(num_rows: int, width: int) -> int:
    """Return what the rows of one frame take."""
    return _EXPONENT.itemsize + num_rows * (1 + width)


def encode_grid(rows: npt.NDArray[Any]) -> bytes | None:
    """Write (n, w) float32 or float64 rows; None where one has more than 8 bits on their grid."""
    largest = float(np.abs(rows).max(initial=0.0))
    if largest > float(np.finfo(np.float32).max):
        return None
    # That of the exchange, or a finer one where the frame has smaller values only.
    exponent = exponent_for(largest)
    steps = rows.astype(np.float64) * 2.0**exponent
    if (steps != np.rint(steps)).any():
        return None
    written = byte_rows(steps.astype(np.int32))
    if written is None:
        return None
    numbers, forms = written
    body = np.concatenate((forms[:, None], numbers), axis=1)
    return np.array(exponent, _EXPONENT).tobytes() + body.tobytes()


def decode_grid(
    data: npt.NDArray[np.uint8], *, num_rows: int, width: int, dtype: str
) -> npt.NDArray[Any]:
    """Read the (n, w) rows that :func:`encode_grid` wrote.

    Raises:
        RemoteProtocolError: The bytes are not as many, or exponent or a shift is out of range.
    """
    expected = grid_bytes(num_rows, width)
    if data.size != expected:
        raise RemoteProtocolError(
            f"rows on a grid take {counted(data.size, 'byte')}, expected {expected}"
        )
    exponent = int(data[: _EXPONENT.itemsize].view(_EXPONENT)[0])
    if not MIN_EXPONENT <= exponent <= MAX_EXPONENT:
        raise RemoteProtocolError(
            f"exponent {exponent} of a grid, expected {MIN_EXPONENT} to {MAX_EXPONENT}"
        )
    table = data[_EXPONENT.itemsize :].reshape(num_rows, 1 + width)
    check_forms(table[:, 0])
    steps = rows_of_bytes(table[:, 1:], table[:, 0])
    rows: npt.NDArray[Any] = unsnap(steps, exponent, np.dtype(dtype).type)
    return rows


def check_forms(forms: npt.NDArray[np.uint8]) -> None:
    """Check (n,) forms of rows from another machine.

    Raises:
        RemoteProtocolError: A shift is out of range.
    """
    shifts = forms & (SIGNED - 1)
    if (shifts > MAX_SHIFT).any():
        raise RemoteProtocolError(
            f"a row of shift {int(shifts.max())} on its grid, expected at most {MAX_SHIFT}"
        )
