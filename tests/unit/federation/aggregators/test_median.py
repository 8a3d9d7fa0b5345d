from __future__ import annotations

import numpy as np
import pytest

from retexo_fl.federation.aggregators import make_aggregator
from retexo_fl.federation.aggregators.base import STRETCH_BYTES
from tests.support.aggregator_contract import RobustAggregatorContract, combined, means


class TestMedian(RobustAggregatorContract):
    name = "median"


def test_median_takes_the_middle_of_each_coordinate() -> None:
    odd = means([1, 9, -3], [2, 7, 5], [30, 8, 0])
    np.testing.assert_array_equal(combined(make_aggregator("median"), odd), [2, 8, 0])
    even = [*odd, *means([4, 10, 2])]
    np.testing.assert_array_equal(combined(make_aggregator("median"), even), [3, 8.5, 1])


@pytest.mark.parametrize("clients", [3, 4])
def test_median_of_many_stretches_equals_numpys(clients: int) -> None:
    size = 3 * STRETCH_BYTES // (8 * clients) + 5
    rows = np.random.default_rng(0).normal(size=(clients, size))
    result = combined(make_aggregator("median"), means(*rows))
    np.testing.assert_array_equal(result, np.median(rows, axis=0))


def test_median_puts_coordinates_without_a_number_above_all() -> None:
    updates = means([np.nan, np.nan], [1, np.nan], [2, 7])
    np.testing.assert_array_equal(combined(make_aggregator("median"), updates), [2, np.nan])
