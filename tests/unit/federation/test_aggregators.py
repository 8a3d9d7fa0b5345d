from __future__ import annotations

import numpy as np
import pytest

from retexo_fl.errors import PluginError, RemoteProtocolError
from retexo_fl.federation.aggregators import WeightedMean, make_aggregator


def mean_of(*updates: tuple[list[float], int]) -> np.ndarray:
    aggregator = WeightedMean()
    aggregator.start(2, "float64")
    for client, (total, count) in enumerate(updates):
        aggregator.add(client, np.array(total), count)
    return aggregator.finish()


def test_weighted_mean_divides_the_sums_once() -> None:
    np.testing.assert_array_equal(mean_of(([3.0, 1.0], 3), ([1.0, 0.0], 1)), [1.0, 0.25])


def test_weighted_mean_of_one_client_is_its_mean() -> None:
    np.testing.assert_array_equal(mean_of(([3.0, 6.0], 3)), [1.0, 2.0])


def test_weighted_mean_ignores_a_client_without_train_nodes() -> None:
    with_empty = mean_of(([3.0, 6.0], 3), ([0.0, 0.0], 0))
    np.testing.assert_array_equal(with_empty, mean_of(([3.0, 6.0], 3)))


def test_weighted_mean_starts_anew() -> None:
    aggregator = WeightedMean()
    for _ in range(2):
        aggregator.start(1, "float32")
        aggregator.add(0, np.array([4.0], np.float32), 2)
        assert aggregator.finish().tolist() == [2.0]


def test_weighted_mean_without_any_train_node_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="nothing to average"):
        mean_of(([0.0, 0.0], 0))


@pytest.mark.parametrize("update", [np.zeros(3), np.zeros(2, np.float32), np.zeros((2, 1))])
def test_weighted_mean_refuses_other_shapes_and_types(update: np.ndarray) -> None:
    aggregator = WeightedMean()
    aggregator.start(2, "float64")
    with pytest.raises(RemoteProtocolError, match="client 7: got a"):
        aggregator.add(7, update, 1)


class DoubleMean(WeightedMean):
    def finish(self) -> np.ndarray:
        return 2 * super().finish()


def test_make_aggregator_takes_a_plugin() -> None:
    made = make_aggregator(f"{__name__}:DoubleMean")
    made.start(1, "float64")
    made.add(0, np.array([4.0]), 2)
    assert made.finish().tolist() == [4.0]


@pytest.mark.parametrize("name", ["median", f"{__name__}:pytest", "no_such_module:x"])
def test_make_aggregator_refuses_what_is_none(name: str) -> None:
    with pytest.raises(PluginError, match="aggregator"):
        make_aggregator(name)
