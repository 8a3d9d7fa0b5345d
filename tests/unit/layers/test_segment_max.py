from __future__ import annotations

import resource
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from retexo_fl.layers import segment_max as module
from retexo_fl.layers.segment_max import DeviceSegmentMax, Segments, segment_max
from retexo_fl.layers.sparse import SparsePattern

#: Segments {0, 1}, {}, {2}, {0, 2}, {} of a table of three rows.
INDPTR, MEMBERS = np.array([0, 2, 2, 3, 5, 5]), np.array([0, 1, 2, 0, 2])
THREE = Segments.of(INDPTR, MEMBERS, num_rows=3, dtype=torch.float64)


def table(rows: list[list[float]]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64, requires_grad=True)


def test_maximum_of_each_column_over_each_segment_by_hand() -> None:
    values = table([[1.0, -2.0], [0.5, -1.0], [3.0, -9.0]])
    result = segment_max(THREE, values)
    expected = [[1.0, -1.0], [0.0, 0.0], [3.0, -9.0], [3.0, -2.0], [0.0, 0.0]]
    torch.testing.assert_close(result, torch.tensor(expected, dtype=torch.float64))


def test_gradient_goes_to_the_first_of_equal_members_alone() -> None:
    values = table([[1.0], [1.0], [1.0]])
    upstream = torch.tensor([[2.0], [30.0], [400.0], [5000.0], [60000.0]], dtype=torch.float64)
    (gradient,) = torch.autograd.grad(segment_max(THREE, values), values, upstream)
    assert gradient[:, 0].tolist() == [5002.0, 0.0, 400.0]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sets(st.integers(0, 6)).map(sorted), min_size=1, max_size=8),
    st.integers(1, 5),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_values_and_gradients_equal_those_of_each_segment_alone(
    members: list[list[int]], width: int, dtype: torch.dtype
) -> None:
    rng = np.random.default_rng(len(members))
    # Halves tie often; all others are exact, so sums in any order have the same bits.
    drawn = rng.integers(-4, 5, (7, width)) / 2
    mine, other = (torch.tensor(drawn, dtype=dtype, requires_grad=True) for _ in range(2))
    upstream = torch.tensor(rng.integers(-9, 9, (len(members), width)), dtype=dtype)
    indptr = np.cumsum([0, *map(len, members)])
    flat = np.array([m for part in members for m in part], dtype=np.int64)
    segments = Segments.of(indptr, flat, num_rows=7, dtype=dtype)
    result = segment_max(segments, mine)
    for same in (mine.detach(), mine.detach().t().contiguous().t()):
        torch.testing.assert_close(segment_max(segments, same), result, rtol=0, atol=0)
    assert result.dtype == dtype
    expected = torch.stack([other[m].max(dim=0).values if m else 0 * other[0] for m in members])
    torch.testing.assert_close(result, expected, rtol=0, atol=0)
    (gradient,) = torch.autograd.grad(result, mine, upstream)
    (expected_gradient,) = torch.autograd.grad(expected, other, upstream)
    torch.testing.assert_close(gradient, expected_gradient, rtol=0, atol=0)


def test_gradient_equals_finite_differences() -> None:
    values = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: segment_max(THREE, v), (values,))


@pytest.mark.parametrize("rows", [0, 3])
def test_segments_without_any_member_are_zero(rows: int) -> None:
    values = torch.ones(rows, 4, requires_grad=True)
    none = np.zeros(0, np.int64)
    segments = Segments.of(np.zeros(3, np.int64), none, num_rows=rows, dtype=torch.float32)
    result = segment_max(segments, values)
    assert result.tolist() == [[0.0] * 4] * 2
    assert not torch.autograd.grad(result.sum(), values)[0].any()


@pytest.mark.parametrize("asks", [False, True])
def test_values_that_are_not_finite_are_not_hidden(asks: bool) -> None:
    rows = [[np.nan, 1.0, -np.inf], [1.0, np.nan, -np.inf], [0.0, 0.0, np.inf]]
    values = torch.tensor(rows, dtype=torch.float64, requires_grad=asks)
    result = segment_max(THREE, values)
    expected = [[np.nan, np.nan, -np.inf], [0.0] * 3, rows[2], [np.nan, 1.0, np.inf], [0.0] * 3]
    torch.testing.assert_close(
        result.detach(), torch.tensor(expected, dtype=torch.float64), equal_nan=True
    )
    if asks:
        gradient = torch.autograd.grad(result.sum(), values)[0]
        assert gradient[:, 2].tolist() == [0.0, 0.0, 2.0]


def test_bits_do_not_depend_on_the_number_of_threads() -> None:
    rng = np.random.default_rng(0)
    indptr = np.concatenate(([0], np.sort(rng.integers(0, 40_000, 1999)), [40_000]))
    members = rng.integers(0, 500, 40_000)
    segments = Segments.of(indptr, members, num_rows=500, dtype=torch.float32)
    values = torch.randn(500, 64, requires_grad=True)
    upstream = torch.randn(2000, 64)
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 4):
            torch.set_num_threads(count)
            result = segment_max(segments, values)
            found.append((result, *torch.autograd.grad(result, values, upstream)))
    finally:
        torch.set_num_threads(threads)
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_no_row_is_gathered_for_each_entry() -> None:
    entries, width = 4_000_000, 64
    members = np.random.default_rng(0).integers(0, 1000, entries)
    indptr = np.arange(0, entries + 1, 4000)
    segments = Segments.of(indptr, members, num_rows=1000, dtype=torch.float32)
    values = torch.randn(1000, width, requires_grad=True)
    before = peak_bytes()
    torch.autograd.grad(segment_max(segments, values).sum(), values)
    assert peak_bytes() - before < entries * width * 4 / 10


def peak_bytes() -> int:
    """Return the most memory that this process has held."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


@pytest.mark.parametrize("gathered", [1, 7, 2**26])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_other_devices_find_the_maxima_and_winners_of_the_cpu(
    monkeypatch: pytest.MonkeyPatch, gathered: int, dtype: torch.dtype
) -> None:
    """Values are few, so that many are equal; some segments are empty."""
    monkeypatch.setattr(module, "_GATHERED", gathered)
    draws = np.random.default_rng(0)
    lengths = draws.integers(0, 6, 40)
    indptr = np.concatenate(([0], np.cumsum(lengths)))
    members = np.concatenate([np.sort(draws.permutation(30)[:n]) for n in lengths])
    values = draws.integers(-2, 3, (30, 5)).astype(np.float64)
    upstream = torch.from_numpy(draws.integers(-9, 9, (40, 5))).to(dtype)
    segments = Segments.of(indptr, members, num_rows=30, dtype=dtype)
    pattern = SparsePattern.from_csr(indptr, members, 30)
    results = []
    for find in (
        lambda table: segment_max(segments, table),
        lambda table: DeviceSegmentMax.apply(pattern, table),  # type: ignore[no-untyped-call]
    ):
        table = torch.from_numpy(values).to(dtype).requires_grad_()
        maxima = find(table)
        (gradient,) = torch.autograd.grad(maxima, table, upstream)
        results.append((maxima.detach(), gradient))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_other_devices_hide_no_value_that_is_not_finite() -> None:
    members, indptr = THREE.matrix.col_indices().numpy(), THREE.matrix.crow_indices().numpy()
    pattern = SparsePattern.from_csr(indptr, members, 3)
    rows = [[np.nan, 1.0, -np.inf], [1.0, np.nan, -np.inf], [0.0, 0.0, np.inf]]
    values = torch.tensor(rows, dtype=torch.float64, requires_grad=True)
    found = DeviceSegmentMax.apply(pattern, values)  # type: ignore[no-untyped-call]
    torch.testing.assert_close(found, segment_max(THREE, values), equal_nan=True)
    gradient = torch.autograd.grad(found.sum(), values)[0]
    assert gradient[:, 2].tolist() == [0.0, 0.0, 2.0]
