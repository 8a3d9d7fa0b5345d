"""Flower's strategies as aggregators, against ours and against their own formulas."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import Bulyan, FedAvg, FedTrimmedAvg, Krum, MultiKrum
from flwr.supercore.task_identity import TaskIdentity

from retexo_fl.errors import PluginError
from retexo_fl.federation.aggregators import make_aggregator
from tests.support.aggregator_contract import AggregatorContract, combined, honest_updates


@pytest.fixture(autouse=True)
def server_process(monkeypatch: pytest.MonkeyPatch) -> None:
    # Flower's engines, and ours, say so where a ServerApp runs.
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def krum() -> Krum:
    """Make Flower's Krum with parameters: a factory named by module:attribute."""
    return Krum(num_malicious_nodes=1)


def multi_krum() -> MultiKrum:
    """Make Flower's MultiKrum as ours is for ten clients and one liar."""
    return MultiKrum(num_malicious_nodes=1, num_nodes_to_select=7)


def trimmed() -> FedTrimmedAvg:
    """Make Flower's trimmed mean with another share than the default."""
    return FedTrimmedAvg(beta=0.3)


def bulyan() -> Bulyan:
    """Make Flower's Bulyan, which needs seven clients for one liar."""
    return Bulyan(num_malicious_nodes=1)


class Silent(FedAvg):
    """Break the contract: nothing comes back."""

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        return None, None


class Shortening(FedAvg):
    """Break the contract: an array of another length."""

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        return ArrayRecord([np.zeros(3)]), None


class TestFedAvg(AggregatorContract):
    name = "flwr.serverapp.strategy:FedAvg"


class TestFedMedian(AggregatorContract):
    name = "flwr.serverapp.strategy:FedMedian"


class TestFedTrimmedAvg(AggregatorContract):
    name = f"{__name__}:trimmed"


def equally_counted(clients: int) -> list[tuple[np.ndarray, int]]:
    """Return updates of equal counts, by which Flower's Krum weighs and ours does not."""
    return [(update * 4 / count, 4) for update, count in honest_updates(clients)]


@pytest.mark.parametrize(
    ("theirs", "ours", "clients"),
    [
        ("flwr.serverapp.strategy:FedAvg", "mean", 10),
        ("flwr.serverapp.strategy:FedMedian", "median", 10),
        ("flwr.serverapp.strategy:FedMedian", "median", 7),
        ("flwr.serverapp.strategy:FedTrimmedAvg", "trimmed-mean", 10),
        (f"{__name__}:trimmed", "trimmed-mean:0.3", 10),
    ],
)
def test_flowers_strategy_equals_ours(theirs: str, ours: str, clients: int) -> None:
    updates = honest_updates(clients)
    results = [combined(make_aggregator(name), updates) for name in (theirs, ours)]
    np.testing.assert_allclose(results[0], results[1], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("theirs", "ours", "clients"),
    [(f"{__name__}:multi_krum", "multi-krum:1", 10), (f"{__name__}:krum", "krum:1", 8)],
)
def test_flowers_krum_equals_ours(dtype: str, theirs: str, ours: str, clients: int) -> None:
    updates = [(update.astype(dtype), count) for update, count in equally_counted(clients)]
    results = [combined(make_aggregator(name), updates) for name in (theirs, ours)]
    tolerance = 1e-12 if dtype == "float64" else 1e-6
    np.testing.assert_allclose(results[0], results[1], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("attribute", ["krum", "bulyan", "trimmed"])
def test_flowers_robust_strategies_outvote_a_liar(attribute: str) -> None:
    updates = equally_counted(8)
    updates[5] = (updates[5][0] * -10, 4)
    result = combined(make_aggregator(f"{__name__}:{attribute}"), updates)
    assert result @ updates[0][0] > 0


@pytest.mark.parametrize("name", ["FedAdam", "FedYogi", "FedAdagrad"])
def test_strategy_that_compares_with_weights_refuses(name: str) -> None:
    aggregator = make_aggregator(f"flwr.serverapp.strategy:{name}")
    with pytest.raises(PluginError, match=f"aggregator {name}: Flower refused .*configure_train"):
        combined(aggregator, honest_updates(4))


@pytest.mark.parametrize(
    ("attribute", "sentence"),
    [
        ("Silent", "aggregator Silent: got 0 arrays .*4 clients; expected one"),
        ("Shortening", r"Shortening': finish returned float64 of shape \(3,\); expected float64"),
        ("bulyan", "aggregator Bulyan: got 0 arrays .*4 clients; expected one"),
    ],
)
def test_strategy_that_returns_something_else_is_refused(attribute: str, sentence: str) -> None:
    with pytest.raises(PluginError, match=sentence):
        combined(make_aggregator(f"{__name__}:{attribute}"), honest_updates(4))


def test_flowers_lines_of_each_round_are_kept_from_the_terminal() -> None:
    heard: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(record.getMessage())

    listener, logger = Listener(), logging.getLogger("flwr")
    logger.addHandler(listener)
    try:
        combined(make_aggregator("flwr.serverapp.strategy:FedAvg"), honest_updates(4))
        assert heard == []
        with pytest.raises(PluginError):
            combined(make_aggregator(f"{__name__}:bulyan"), honest_updates(4))
    finally:
        logger.removeHandler(listener)
    assert [line for line in heard if line.startswith("Insufficient replies")] == heard
    assert len(heard) == 1
