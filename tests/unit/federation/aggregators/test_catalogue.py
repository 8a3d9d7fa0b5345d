from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from retexo_fl.errors import ConfigurationError, PluginError
from retexo_fl.federation.aggregators import WeightedMean, make_aggregator
from tests.support.aggregator_contract import AggregatorContract, combined, means


class DoubleMean(WeightedMean):
    def finish(self) -> np.ndarray:
        return 2 * super().finish()


class HalfDoubleMean(DoubleMean):
    def finish(self) -> np.ndarray:
        return super().finish() / 2


class TestPlugin(AggregatorContract):
    name = f"{__name__}:HalfDoubleMean"


class Unsure(WeightedMean):
    needs: Any = "some"


class Headless(WeightedMean):
    finish: Any = None


class Modest(WeightedMean):
    least_clients = 0.5


class Demanding(WeightedMean):
    least_clients = 12


def factory_of(kind: type[WeightedMean]) -> WeightedMean:
    return kind()


def test_make_aggregator_takes_a_plugin() -> None:
    result = combined(make_aggregator(f"{__name__}:DoubleMean"), means([4.0], [2.0]))
    assert result.tolist() == [6.0]


def test_plugin_may_demand_clients() -> None:
    with pytest.raises(ConfigurationError, match="needs updates of 12 clients"):
        make_aggregator(f"{__name__}:Demanding").check_clients(11)


@pytest.mark.parametrize(
    ("attribute", "sentence"),
    [
        ("pytest", "got module; expected a callable"),
        ("nothing", "has no 'nothing'"),
        ("factory_of", "missing a required argument: 'kind'"),
        ("Unsure", "needs is 'some'; expected 'sum' or 'each'"),
        ("Headless", "Headless has no finish; expected an aggregator or a strategy"),
        ("Modest", "least_clients is 0.5; expected a whole number from 1"),
    ],
)
def test_make_aggregator_refuses_what_is_none(attribute: str, sentence: str) -> None:
    with pytest.raises(PluginError, match="^aggregator") as caught:
        make_aggregator(f"{__name__}:{attribute}")
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        *("mean:1", "mean:x", "median:3", "meen", "Mean", ""),
        *("trimmed-mean:", "trimmed-mean:0", "trimmed-mean:0.5", "trimmed-mean:.0"),
        *("trimmed-mean:1", "trimmed-mean:-0.1", "trimmed-mean:0.1e-3", "trimmed-mean:0.\u0661"),
        *("krum", "krum:", "krum:0", "krum:-1", "krum:1.5", "krum:x", "krum:1000000", "multi-krum"),
        *("norm-clipping:", "norm-clipping:0", "norm-clipping:0.0", "norm-clipping:-1"),
        *("norm-clipping:1e3", "norm-clipping:nan", "norm-clipping:.5", "norm-clipping:1."),
    ],
)
def test_make_aggregator_refuses_a_text_by_name(name: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make_aggregator(name)
    assert str(caught.value).startswith(f"aggregator: got {name!r}; expected one of mean, median, ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "least"),
    [("mean", 1), ("median", 1), ("krum:1", 5), ("krum:4", 11), ("multi-krum:3", 9)],
)
def test_built_in_aggregators_demand_clients(name: str, least: int) -> None:
    assert make_aggregator(name).least_clients == least
