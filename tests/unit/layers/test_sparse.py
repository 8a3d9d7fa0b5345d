from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array, random_array

from retexo_fl.layers import sparse
from retexo_fl.layers.sparse import (
    SparseRows,
    segment_sum,
    sparse_product,
    spread_columns,
    spread_rows,
)


def matrix(rows: int = 7, columns: int = 5, density: float = 0.4) -> csr_array:
    return csr_array(random_array((rows, columns), density=density, rng=np.random.default_rng(2)))


@pytest.mark.parametrize("density", [0.0, 0.4, 1.0])
def test_product_equals_dense(density: float) -> None:
    of = matrix(density=density)
    rows = SparseRows.from_scipy(of, torch.float64)
    right = torch.rand(5, 3, dtype=torch.float64)
    result = sparse_product(rows.pattern, rows.values, right)
    torch.testing.assert_close(result, torch.from_numpy(of.toarray()) @ right)


def test_product_gradients_equal_finite_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse, "_ENTRIES_PER_CHUNK", 4)  # several chunks, the last one partial
    rows = SparseRows.from_scipy(matrix(), torch.float64)
    values = rows.values.clone().requires_grad_()
    right = torch.rand(5, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda v, d: sparse_product(rows.pattern, v, d), (values, right)
    )


def test_segment_sum_and_spreads_have_right_gradients() -> None:
    rows = SparseRows.from_scipy(matrix(), torch.float64)
    entries = torch.rand(rows.values.numel(), 2, dtype=torch.float64, requires_grad=True)
    per_row = torch.rand(7, 2, dtype=torch.float64, requires_grad=True)
    per_column = torch.rand(5, 2, dtype=torch.float64, requires_grad=True)
    pattern = rows.pattern
    assert torch.autograd.gradcheck(lambda e: segment_sum(pattern, e), (entries,))
    assert torch.autograd.gradcheck(lambda r: spread_rows(pattern, r), (per_row,))
    assert torch.autograd.gradcheck(lambda c: spread_columns(pattern, c), (per_column,))


def test_spreads_pick_row_and_column_of_each_entry() -> None:
    of = csr_array(np.array([[0.0, 2.0], [3.0, 4.0]]))
    pattern = SparseRows.from_scipy(of, torch.float64).pattern
    of_rows = spread_rows(pattern, torch.tensor([[10.0], [20.0]]))
    of_columns = spread_columns(pattern, torch.tensor([[1.0], [2.0]]))
    assert of_rows.flatten().tolist() == [10.0, 20.0, 20.0]
    assert of_columns.flatten().tolist() == [2.0, 1.0, 2.0]


def test_product_bits_do_not_depend_on_threads() -> None:
    rows = SparseRows.from_scipy(matrix(400, 300, 0.1), torch.float32)
    right = torch.rand(300, 64)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = sparse_product(rows.pattern, rows.values, right)
        torch.set_num_threads(2)
        two = sparse_product(rows.pattern, rows.values, right)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(one, two)


def test_a_sparse_matrix_is_dense_where_that_is_asked_for() -> None:
    matrix = csr_array(np.array([[0.0, 2.0, 0.0], [0.0, 0.0, 0.0], [3.0, 0.0, 4.0]]))
    found = SparseRows.from_scipy(matrix, torch.float64).dense()
    np.testing.assert_array_equal(found, matrix.toarray())
