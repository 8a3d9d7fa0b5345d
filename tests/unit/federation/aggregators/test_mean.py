from __future__ import annotations

import numpy as np

from retexo_fl.federation.aggregators import WeightedMean, make_aggregator
from tests.support.aggregator_contract import AggregatorContract, combined, honest_updates


class TestWeightedMean(AggregatorContract):
    name = "mean"


def test_weighted_mean_divides_the_sums_once() -> None:
    updates = [(np.array([3.0, 1.0]), 3), (np.array([1.0, 0.0]), 1)]
    np.testing.assert_array_equal(combined(WeightedMean(), updates), [1.0, 0.25])


def test_weighted_mean_of_one_client_is_its_mean() -> None:
    np.testing.assert_array_equal(combined(WeightedMean(), [(np.array([3.0, 6.0]), 3)]), [1.0, 2.0])


def test_weighted_mean_has_the_bits_of_the_plain_formula() -> None:
    updates = honest_updates(7, "float32")
    total = np.zeros(len(updates[0][0]), np.float32)
    for update_sum, _ in updates:
        total += update_sum
    total /= sum(count for _, count in updates)
    assert combined(make_aggregator("mean"), updates).tobytes() == total.tobytes()


def test_weighted_mean_needs_the_sum_only() -> None:
    assert make_aggregator("mean").needs == "sum"
