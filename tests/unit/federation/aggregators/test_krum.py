from __future__ import annotations

import numpy as np
import pytest

from retexo_fl.federation.aggregators import make_aggregator
from retexo_fl.federation.aggregators.base import STRETCH_BYTES
from retexo_fl.federation.aggregators.krum import krum_scores, pair_means, squared_distances
from tests.support.aggregator_contract import (
    RobustAggregatorContract,
    combined,
    honest_updates,
    means,
)


class TestKrum(RobustAggregatorContract):
    name = "krum:1"


class TestKrumOfSingleClients(RobustAggregatorContract):
    name = "krum:2"


class TestMultiKrum(RobustAggregatorContract):
    name = "multi-krum:1"


def test_krum_scores_sum_the_distances_to_the_closest_others() -> None:
    # On a line at 0, 1, 3, 10 and 11, with one liar: two others count for each.
    points = [np.array([place]) for place in (0.0, 1.0, 3.0, 10.0, 11.0)]
    expected = [1 + 9, 1 + 4, 4 + 9, 1 + 49, 1 + 64]
    np.testing.assert_array_equal(krum_scores(points, 1), expected)
    result = combined(make_aggregator("krum:1"), means(*points))
    np.testing.assert_array_equal(result, [1.0])


def test_multi_krum_averages_the_best() -> None:
    points = means([0.0], [1.0], [3.0], [10.0], [11.0], [2.0])
    # Three others count. Scores: 14, 6, 14, ..., ..., 6; three are averaged: 1, 2, and the lower
    # client of 0 and 3.
    assert combined(make_aggregator("multi-krum:1"), points).tolist() == [1.0]


def test_krum_prefers_the_lower_client_of_equal_scores() -> None:
    points = means([-2.0], [-1.0], [0.0], [0.0], [1.0], [2.0], [9.0])
    assert combined(make_aggregator("krum:2"), points).tolist() == [0.0]
    mirrored = means([1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0], [0.0, 9.0])
    assert combined(make_aggregator("krum:1"), mirrored).tolist() == [1.0, 0.0]


def test_krum_of_enough_clients_chooses_the_mean_of_a_pair() -> None:
    updates = honest_updates(9)
    single = [update / count for update, count in updates]
    result = combined(make_aggregator("krum:1"), updates)
    among = [
        (one, other)
        for one in range(9)
        for other in range(one)
        if np.allclose(result, (single[one] + single[other]) / 2, rtol=1e-12)
    ]
    assert len(among) == 1 or any(np.array_equal(result, alone) for alone in single)


def test_nine_clients_are_enough_for_pairs() -> None:
    updates = honest_updates(9)
    single = [(update / count).tobytes() for update, count in updates]
    results = [combined(make_aggregator("krum:1"), updates, number) for number in range(1, 9)]
    # The odd client of a round is a pair of its own, and may win; it is drawn anew.
    assert any(result.tobytes() not in single for result in results)


def test_krum_of_few_clients_chooses_one() -> None:
    updates = honest_updates(8)
    result = combined(make_aggregator("krum:1"), updates)
    assert sum(np.array_equal(result, update / count) for update, count in updates) == 1


def test_pairs_are_drawn_anew_in_every_round() -> None:
    updates = honest_updates(10)
    results = {combined(make_aggregator("krum:1"), updates, number).tobytes() for number in (1, 2)}
    assert len(results) == 2


def test_pair_means_leave_the_last_of_an_odd_number_alone() -> None:
    points = [np.array([place]) for place in (1.0, 2.0, 4.0, 8.0, 16.0)]
    assert [mean.item() for mean in pair_means(points, [4, 0, 2, 1, 3])] == [8.5, 3.0, 8.0]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_distances_of_many_stretches_equal_the_plain_formula(dtype: str) -> None:
    size = 2 * STRETCH_BYTES // (8 * 4) + 3
    rows = (np.random.default_rng(0).normal(size=(4, size)) + 5).astype(dtype)
    plain = [[float(np.square(a.astype(float) - b).sum()) for b in rows] for a in rows]
    np.testing.assert_allclose(squared_distances(list(rows)), plain, rtol=1e-9, atol=1e-6)


def test_a_huge_update_does_not_blur_the_distances_of_the_others() -> None:
    rows = [*np.random.default_rng(0).normal(size=(6, 50)), np.full(50, 1e30)]
    with_liar = squared_distances(rows)[:6, :6]
    np.testing.assert_allclose(with_liar, squared_distances(rows[:6]), rtol=1e-12)
