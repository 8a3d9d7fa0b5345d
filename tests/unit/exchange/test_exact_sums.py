from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import example, given
from hypothesis import strategies as st

from retexo_fl.exchange import exact_total, sum_shared, to_csr, to_dense

DTYPES = st.sampled_from(["float32", "float64"])
#: Values as the codec makes them: 25 bits with a sign, on grids that may be far apart.
MANTISSAS = st.integers(-(2**24), 2**24)
EXPONENTS = st.integers(-100, 126)
ON_GRID = st.builds(lambda steps, e: math.ldexp(steps, -e), MANTISSAS, EXPONENTS)
#: Many that cancel, and many that lie in the middle of two floats but for a little.
AWKWARD = st.sampled_from([2.0**i for i in (100, 77, 53, 30, 24, 23, 1, 0, -1, -24, -53, -100)])
VALUES = st.one_of(ON_GRID, AWKWARD, AWKWARD.map(lambda value: -value))


@given(st.lists(VALUES, min_size=1, max_size=12), DTYPES)
@example([2.0**100, 1.0, 2.0**-100, -(2.0**100), -1.0], "float32")
@example([2.0**53, 1.0, 2.0**-100], "float64")
@example([2.0**53, 1.0, -(2.0**-100)], "float64")
@example([2.0**53, -0.5, -(2.0**-100)], "float64")
@example([2.0**24, 1.0, 2.0**-100], "float32")
@example([-(2.0**24), -1.0, 2.0**-100], "float32")
@example([1.0, -1.0], "float32")
def test_total_is_the_exact_sum_rounded_once(values: list[float], dtype: str) -> None:
    total = exact_total([np.array([value]) for value in values], dtype)
    assert total.dtype == dtype
    assert is_nearest(total[0], sum(map(Fraction, values)))
    assert total[0] != 0 or not np.signbit(total[0])


@given(st.lists(VALUES, min_size=1, max_size=10), st.randoms(use_true_random=False), DTYPES)
def test_order_and_grouping_do_not_change_a_bit(
    values: list[float], random: Any, dtype: str
) -> None:
    expected = exact_total([np.array([value]) for value in values], dtype)
    shuffled = random.sample(values, len(values))
    # Some of one grid are added elsewhere, as integers.
    one_grid = [value for value in shuffled if abs(value) <= 2**24 and value % 1 == 0]
    others = [value for value in shuffled if not (abs(value) <= 2**24 and value % 1 == 0)]
    parts = [*others, float(sum(map(int, one_grid)))]
    found = exact_total([np.array([value]) for value in parts], dtype)
    assert found.tobytes() == expected.tobytes()


def test_parts_are_left_as_they_are() -> None:
    parts = [np.array([1.0, 2.0]), np.array([3.0, 1e-30])]
    exact_total(parts)
    assert [part.tolist() for part in parts] == [[1.0, 2.0], [3.0, 1e-30]]


@st.composite
def shares(draw: st.DrawFn) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Draw the vectors of some senders, each with its grid, and what they are added to."""
    dtype, width = draw(DTYPES), draw(st.integers(1, 3))
    parts, targets = [], []
    for _ in range(draw(st.integers(1, 6))):
        places = draw(st.lists(st.integers(-1, 4), max_size=6))
        steps = draw(
            st.lists(
                MANTISSAS | st.just(0), min_size=len(places) * width, max_size=len(places) * width
            )
        )
        scale = math.ldexp(1.0, -draw(EXPONENTS))
        parts.append(
            (np.array(steps, dtype=dtype) * np.dtype(dtype).type(scale)).reshape(-1, width)
        )
        targets.append(np.array(places, dtype=np.int64))
    return parts, targets


@given(shares(), st.booleans())
def test_shared_vectors_become_their_sum_in_the_first_place(
    drawn: tuple[list[np.ndarray], list[np.ndarray]], sparse: bool
) -> None:
    parts, targets = drawn
    given_parts = [to_csr(part) if sparse else part for part in parts]
    found = sum_shared(given_parts, targets)
    assert [part.shape for part in found] == [part.shape for part in parts]
    assert all(isinstance(part, sp.csr_array) is sparse for part in found)
    vectors, places = np.concatenate(parts), np.concatenate(targets)
    result = np.concatenate([to_dense(part) for part in found])
    assert result.dtype == vectors.dtype
    for number, target in enumerate(places):
        members = np.flatnonzero(places == target)
        if target < 0 or len(members) == 1:
            assert result[number].tobytes() == vectors[number].tobytes()
        elif number != members[0]:
            assert not result[number].any()
        else:
            for value, column in zip(result[number], vectors[members].T, strict=True):
                assert is_nearest(value, sum(map(Fraction, column.tolist())))


@given(shares())
def test_what_a_target_gets_does_not_depend_on_who_comes_first(
    drawn: tuple[list[np.ndarray], list[np.ndarray]],
) -> None:
    parts, targets = drawn
    one = received(sum_shared(parts, targets), targets)
    other = received(sum_shared(parts[::-1], targets[::-1]), targets[::-1])
    for target in range(5):
        assert one[target].tobytes() == other[target].tobytes()


def test_sums_are_equal_sparse_and_dense_without_explicit_zeros() -> None:
    rng = np.random.default_rng(0)
    parts = [rng.integers(-2, 3, (400, 30)).astype(np.float32) for _ in range(9)]
    targets = [np.maximum(rng.permutation(500)[:400] - 50, -1) for _ in parts]
    dense = sum_shared(parts, targets)
    sparse = sum_shared([to_csr(part) for part in parts], targets)
    for one, other in zip(dense, sparse, strict=True):
        assert isinstance(other, sp.csr_array)
        assert one.tobytes() == to_dense(other).tobytes()
        assert (other.data != 0).all()
        assert other.has_sorted_indices


def test_vectors_that_nobody_shares_are_handed_back() -> None:
    parts = [to_csr(np.eye(3, dtype=np.float32)), np.ones((2, 3), dtype=np.float32)]
    found = sum_shared(parts, [np.array([-1, 0, 1]), np.array([2, -1])])
    assert [one is other for one, other in zip(found, parts, strict=True)] == [True, True]
    assert sum_shared([], []) == []


@pytest.mark.parametrize("sparse", [False, True])
def test_senders_keep_their_vectors(sparse: bool) -> None:
    ones = np.ones((1, 2), dtype=np.float32)
    parts = [to_csr(ones) if sparse else ones.copy() for _ in range(3)]
    found = sum_shared(parts, [np.zeros(1, dtype=np.int64)] * 3)
    assert [to_dense(part).tolist() for part in found] == [[[3, 3]], [[0, 0]], [[0, 0]]]
    assert all(to_dense(part).tolist() == [[1, 1]] for part in parts)


def received(parts: list[Any], targets: list[np.ndarray]) -> np.ndarray:
    """Add the vectors of each target, all but one of which are zero."""
    sums = np.zeros((5, parts[0].shape[1]), dtype=parts[0].dtype)
    for part, places in zip(parts, targets, strict=True):
        for vector, target in zip(part, places, strict=True):
            if target >= 0:
                sums[target] += vector
    return sums


def is_nearest(value: Any, exact: Fraction | int) -> bool:
    """Say whether a float is the nearest to a number, of two equally near ones the even one."""
    exact = Fraction(exact)
    if not np.isfinite(value):
        return bool(abs(exact) >= Fraction(float(np.finfo(value.dtype).max)))
    error = abs(Fraction(float(value)) - exact)
    for side in (-np.inf, np.inf):
        other = np.nextafter(value, value.dtype.type(side))
        if not np.isfinite(other):
            continue
        distance = abs(Fraction(float(other)) - exact)
        is_even = not int(value.view(f"u{value.itemsize}")) & 1
        if distance < error or (distance == error and not is_even):
            return False
    return True
