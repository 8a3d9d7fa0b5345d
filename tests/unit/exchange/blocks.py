"""Blocks for the tests of this room: small headers, awkward vectors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from retexo_fl.exchange import BlockHeader, Vectors, to_csr, to_dense

HEADER = BlockHeader(
    job="job-1",
    layer=2,
    sender=3,
    receiver=4,
    weights_digest=bytes(range(32)),
    num_edges=12,
    plan_digest=bytes(range(100, 132)),
    num_vectors=0,
    width=1,
    dtype="float32",
)

#: Values whose bits a careless codec changes.
AWKWARD = (-0.0, 1.0, -1.0, 2.0**-149, -(2.0**-130), 1.0000001192092896, 3.4028234663852886e38)


def header_of(vectors: Vectors) -> BlockHeader:
    num_vectors, width = vectors.shape
    return replace(HEADER, num_vectors=num_vectors, width=width, dtype=str(vectors.dtype))


def assert_same_bits(got: Vectors, expected: Vectors) -> None:
    """Compare two blocks bit by bit, whatever their form."""
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype
    unsigned = f"u{expected.dtype.itemsize}"
    np.testing.assert_array_equal(to_dense(got).view(unsigned), to_dense(expected).view(unsigned))


@st.composite
def dense_vectors(draw: st.DrawFn, *, max_rows: int = 12) -> npt.NDArray[Any]:
    """Dense blocks of every kind that a coding is made for."""
    dtype = np.dtype(draw(st.sampled_from(("float32", "float64"))))
    shape = (
        draw(st.integers(0, max_rows)),
        draw(st.one_of(st.integers(1, 20), st.sampled_from((255, 256, 600, 2100)))),
    )
    wide = st.floats(width=32 if dtype.itemsize == 4 else 64, allow_nan=False, allow_infinity=False)
    elements = draw(
        st.sampled_from(
            (
                st.sampled_from((0.0, 1.0)),
                st.sampled_from((0.0, *AWKWARD)),
                wide,
            )
        )
    )
    fill = draw(st.sampled_from((0.0, 1.0)))
    block: npt.NDArray[Any] = draw(hnp.arrays(dtype, shape, elements=elements, fill=st.just(fill)))
    if draw(st.booleans()):
        scales = draw(hnp.arrays(dtype, shape[0], elements=st.sampled_from(AWKWARD)))
        block = np.where(block != 0, scales[:, None], dtype.type(0))
    return block


def any_vectors() -> st.SearchStrategy[Vectors]:
    """Dense and CSR blocks."""
    return st.tuples(dense_vectors(), st.booleans()).map(
        lambda drawn: to_csr(drawn[0]) if drawn[1] else drawn[0]
    )


def csr(dense: npt.ArrayLike, dtype: str = "float32") -> sp.csr_array:
    return to_csr(np.asarray(dense, dtype=dtype))
