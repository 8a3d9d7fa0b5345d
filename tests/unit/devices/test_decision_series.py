from __future__ import annotations

import numpy as np

from retexo_fl.devices.balancer import Balancer
from retexo_fl.devices.decision_series import decision_series


def test_decisions_are_columns_with_one_row_for_each_epoch() -> None:
    balancer = Balancer(2)
    balancer.observe(4, seconds=[2.0, 1.0], work=[10.0, 10.0])
    balancer.observe(5, seconds=[1.0, 1.0], work=[5.0, 10.0])
    series = decision_series(balancer.decisions)
    assert series.epochs.tolist() == [4, 5]
    assert series.imbalance.tolist() == [0.5, 0.0]
    assert series.seconds.tolist() == [[2, 1], [1, 1]]
    np.testing.assert_allclose(series.shares, [[1 / 2, 1 / 2], [1 / 3, 2 / 3]])
    np.testing.assert_allclose(series.ratios, [[1 / 3, 2 / 3]] * 2)
    np.testing.assert_allclose(series.speeds, [[5, 10]] * 2)
    assert series.changed.tolist() == [True, False]


def test_epoch_without_work_has_no_shares() -> None:
    balancer = Balancer(3)
    balancer.observe(0, seconds=[0.0] * 3, work=[0.0] * 3)
    assert decision_series(balancer.decisions).shares.tolist() == [[0, 0, 0]]


def test_no_decisions_are_no_rows() -> None:
    series = decision_series([])
    assert series.epochs.shape == series.imbalance.shape == (0,)
    assert series.shares.shape == (0, 0)
