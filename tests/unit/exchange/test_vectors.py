from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given

from retexo_fl.errors import LocalProtocolError
from retexo_fl.exchange.vectors import (
    Vectors,
    check_vectors,
    count_nonzeros,
    is_ascending,
    slice_rows,
    to_csr,
    to_dense,
)
from tests.unit.exchange.blocks import any_vectors, assert_same_bits, csr, header_of


@given(any_vectors())
def test_to_csr_and_to_dense_keep_every_bit(vectors: Vectors) -> None:
    sparse = to_csr(vectors)
    assert isinstance(sparse, sp.csr_array)
    assert (sparse.data.view(f"u{sparse.dtype.itemsize}") != 0).all()
    assert_same_bits(sparse, vectors)
    assert to_csr(sparse) is sparse


def test_count_nonzeros_counts_negative_zero() -> None:
    dense = np.array([[0.0, -0.0, 1.0], [0.0, 0.0, 0.0]], dtype=np.float32)
    assert count_nonzeros(dense).tolist() == [2, 0]
    assert count_nonzeros(to_csr(dense)).tolist() == [2, 0]


def test_count_nonzeros_goes_over_several_chunks() -> None:
    dense = np.ones((5, 200_000), dtype=np.float32)
    dense[3] = 0
    assert count_nonzeros(dense).tolist() == [200_000, 200_000, 200_000, 0, 200_000]


def test_slice_rows_is_the_same_for_both_forms() -> None:
    dense = np.arange(12, dtype=np.float64).reshape(4, 3)
    assert_same_bits(slice_rows(dense, 1, 3), dense[1:3])
    assert_same_bits(slice_rows(to_csr(dense), 1, 3), dense[1:3])


@pytest.mark.parametrize(
    ("columns", "counts", "expected"),
    [
        ([], [], True),
        ([], [0, 0], True),
        ([3], [0, 1, 0], True),
        ([1, 2, 0, 1], [2, 0, 2, 0], True),
        ([1, 2, 2, 1], [2, 2], False),
        ([1, 1], [2], False),
        ([1, 0], [2], False),
        ([1, 0], [1, 1], True),
    ],
)
def test_is_ascending_looks_within_rows(
    columns: list[int], counts: list[int], expected: bool
) -> None:
    assert is_ascending(np.array(columns, dtype=int), np.array(counts, dtype=int)) is expected


def test_check_vectors_drops_only_positive_zeros_of_csr() -> None:
    stored = sp.csr_array(
        (np.array([0.0, -0.0, 2.0, 0.0], dtype=np.float32), [0, 1, 2, 1], [0, 3, 3, 4]),
        shape=(3, 3),
    )
    checked = check_vectors(stored, header_of(stored))
    assert isinstance(checked, sp.csr_array)
    assert checked.indices.tolist() == [1, 2]
    assert checked.indptr.tolist() == [0, 2, 2, 2]
    assert np.signbit(checked.data).tolist() == [True, False]
    assert stored.nnz == 4


def test_check_vectors_returns_what_needs_no_change() -> None:
    for vectors in (np.ones((2, 3), dtype=np.float32), csr([[0, 1, 0]])):
        assert check_vectors(vectors, header_of(vectors)) is vectors


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("sparse", [False, True])
def test_check_vectors_names_the_row_that_is_not_finite(bad: float, sparse: bool) -> None:
    dense = np.zeros((4, 3), dtype=np.float64)
    dense[0, 0] = 1.0
    dense[2, 1] = bad
    vectors = to_csr(dense) if sparse else dense
    with pytest.raises(LocalProtocolError, match="vector 2 holds NaN or infinity"):
        check_vectors(vectors, header_of(vectors))


def test_check_vectors_refuses_shape_and_dtype() -> None:
    vectors = np.ones((2, 3), dtype=np.float32)
    header = header_of(vectors)
    for other in (vectors[:1], vectors[:, :2], vectors.astype(np.float64), vectors.astype(">f4")):
        with pytest.raises(LocalProtocolError, match=r"expected float32 \(2, 3\)"):
            check_vectors(other, header)


@pytest.mark.parametrize(
    ("indices", "message"),
    [([0, 3], "not a CSR array"), ([1, 0], "sorted and unique"), ([1, 1], "sorted and unique")],
)
def test_check_vectors_refuses_broken_csr(indices: list[int], message: str) -> None:
    vectors = sp.csr_array((1, 3), dtype=np.float32)
    vectors.data = np.ones(2, dtype=np.float32)
    vectors.indices = np.array(indices, dtype=np.int32)
    vectors.indptr = np.array([0, 2], dtype=np.int32)
    with pytest.raises(LocalProtocolError, match=message):
        check_vectors(vectors, header_of(vectors))


def test_to_dense_returns_an_array_as_it_is() -> None:
    dense = np.ones((1, 1), dtype=np.float32)
    assert to_dense(dense) is dense
