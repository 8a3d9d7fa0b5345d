from __future__ import annotations

import numpy as np
import pytest

from retexo_fl.federation.aggregators import make_aggregator
from tests.support.aggregator_contract import RobustAggregatorContract, combined, means


class TestTrimmedMean(RobustAggregatorContract):
    name = "trimmed-mean"


class TestTrimmedMeanOfAShare(RobustAggregatorContract):
    name = "trimmed-mean:0.1"


def test_trimmed_mean_leaves_out_the_extremes_of_each_coordinate() -> None:
    updates = means([1, 900], [2, 8], [3, 7], [6, 3], [-100, 0])
    result = combined(make_aggregator("trimmed-mean:0.2"), updates)
    np.testing.assert_array_equal(result, [2, 6])


@pytest.mark.parametrize(("clients", "cut"), [(9, 1), (10, 2), (14, 2), (15, 3)])
def test_each_end_leaves_out_the_whole_clients_of_the_share(clients: int, cut: int) -> None:
    rows = np.arange(float(clients))[:, None] ** 2
    result = combined(make_aggregator("trimmed-mean:0.2"), means(*rows))
    np.testing.assert_allclose(result, rows[cut : clients - cut].mean(), rtol=1e-12)


def test_trimmed_mean_leaves_out_a_fifth_unless_told() -> None:
    updates = means(*np.random.default_rng(0).normal(size=(10, 4)))
    default, fifth, tenth = (
        combined(make_aggregator(f"trimmed-mean{share}"), updates) for share in ("", ":0.2", ":.1")
    )
    np.testing.assert_array_equal(default, fifth)
    assert (default != tenth).all()


def test_share_is_exact() -> None:
    # As a binary float, 0.29 * 100 is below 29.
    rows = np.arange(100.0)[:, None] ** 2
    result = combined(make_aggregator("trimmed-mean:0.29"), means(*rows))
    np.testing.assert_allclose(result, rows[29:71].mean(), rtol=1e-12)


@pytest.mark.parametrize(("share", "least"), [("0.2", 5), ("0.3", 4), ("0.4999", 3), ("0.01", 100)])
def test_trimmed_mean_demands_clients_enough_to_leave_one_out(share: str, least: int) -> None:
    assert make_aggregator(f"trimmed-mean:{share}").least_clients == least
