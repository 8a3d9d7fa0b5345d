"""Sums of several batches are those of all their rows."""

from __future__ import annotations

import numpy as np

from retexo_fl.training.tally import PassSums


def sums_at(place: int, *, size: int = 6) -> PassSums:
    gradient = np.zeros(size)
    gradient[place] = 1.0
    return PassSums(gradient_sum=gradient, spans=np.array([[place, place + 1]]))


def test_where_a_sum_of_batches_is_zero_is_not_known() -> None:
    total = PassSums()
    total.add(sums_at(1))
    np.testing.assert_array_equal(total.spans, [[1, 2]])
    total.add(sums_at(4))
    np.testing.assert_array_equal(total.gradient_sum, [0, 1, 0, 0, 1, 0])
    assert total.spans is None


def test_batches_without_train_rows_leave_a_sum_as_it_is() -> None:
    total = sums_at(2)
    total.add(PassSums(is_finite=False))
    np.testing.assert_array_equal(total.spans, [[2, 3]])
    assert not total.is_finite
