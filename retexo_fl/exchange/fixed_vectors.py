"""The vectors of an exchange on one power-of-two grid: what the codec ``fixed`` sends.

One exponent serves all that a client sends in an exchange, so that a row has the same integers at
every peer. Values on the grid are floats like others: they are written as ``lossless`` writes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from retexo_fl.errors import LocalProtocolError
from retexo_fl.exchange.fixed_point import error_bound, exponent_for, snap, unsnap
from retexo_fl.exchange.vectors import (
    VALUES_PER_NONZERO,
    Vectors,
    count_nonzeros,
    make_csr,
    to_csr,
    to_dense,
)

#: The codec whose vectors are on a grid and whose shared sums are exact.
FIXED: Final = "fixed"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FixedVectors:
    """What a client sends in one exchange, rounded to integers times ``2**-exponent``.

    Attributes:
        exponent: Of all its vectors.
        vectors: By peer, the (vectors, width) rounded rows, dense or CSR as they were; zeros stay
            zero, and CSR has none.
    """

    exponent: int
    vectors: Mapping[int, Vectors]

    def integers(self, peer: int) -> npt.NDArray[np.int32]:
        """Return the (vectors, width) integers for a peer; made anew at each call."""
        return snap(to_dense(self.vectors[peer]), self.exponent)

    @property
    def error_bound(self) -> float:
        """How far a value may be from what it was before it was rounded."""
        return error_bound(self.exponent)


def fixed_vectors(vectors: Mapping[int, Vectors]) -> FixedVectors:
    """Round all vectors of an exchange to the grid that the largest magnitude allows.

    Args:
        vectors: By peer, (vectors, width) float32 or float64, dense or CSR; left as they are.

    Raises:
        LocalProtocolError: A value is not finite.
        TrainingDiverged: One is too large for float32.
    """
    exponent = exponent_for(max((_largest(v, peer) for peer, v in vectors.items()), default=0.0))
    return FixedVectors(
        exponent=exponent, vectors={peer: _on_grid(v, exponent) for peer, v in vectors.items()}
    )


def wire_codec(codec: str) -> str:
    """Return how the frames of a run's vectors are written."""
    return "lossless" if codec == FIXED else codec


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
