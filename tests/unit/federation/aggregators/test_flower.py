"""Flower's strategies as aggregators, against ours and against their own formulas."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid, strategy
from flwr.serverapp.strategy import (
    Bulyan,
    FedAvg,
    FedMedian,
    FedProx,
    FedTrimmedAvg,
    Krum,
    MultiKrum,
)
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


#: Of all classes that Flower has; one that a later version adds is to be put into either.
AGGREGATE_ALONE = {"Bulyan", "FedAvg", "FedMedian", "FedTrimmedAvg", "Krum", "MultiKrum"}
_PRIVATE = "update-dp for differential privacy, or norm-clipping, which limits .* without noise"
_NOTHING = "a strategy that differs from FedAvg in aggregate_train alone"
DO_MORE = {
    "DifferentialPrivacyClientSideAdaptiveClipping": _PRIVATE,
    "DifferentialPrivacyClientSideFixedClipping": _PRIVATE,
    "DifferentialPrivacyServerSideAdaptiveClipping": _PRIVATE,
    "DifferentialPrivacyServerSideFixedClipping": _PRIVATE,
    "FedAdagrad": "optimizer adagrad, or server-optimizer adagrad with local-steps above 1",
    "FedAdam": "optimizer adam, or server-optimizer adam with local-steps above 1",
    "FedAvgM": "optimizer momentum, or server-optimizer momentum with local-steps above 1",
    "FedProx": "proximal-mu with local-steps above 1",
    "FedXgbBagging": _NOTHING,
    "FedXgbCyclic": _NOTHING,
    "FedYogi": "optimizer yogi, or server-optimizer yogi with local-steps above 1",
    "QFedAvg": _NOTHING,
}


def test_every_strategy_of_flowers_is_known() -> None:
    classes = {name for name in strategy.__all__ if name not in {"Result", "Strategy"}}
    assert classes == AGGREGATE_ALONE | DO_MORE.keys()


@pytest.mark.parametrize("name", DO_MORE)
def test_strategy_that_does_more_than_aggregate_is_refused(name: str) -> None:
    with pytest.raises(PluginError) as refused:
        make_aggregator(f"flwr.serverapp.strategy:{name}")
    assert re.fullmatch(
        f"aggregator {name}: only its aggregate_train is used, .*; expected {DO_MORE[name]}",
        str(refused.value),
    )


def prox() -> FedProx:
    """Make FedProx with parameters."""
    return FedProx(proximal_mu=0.1)


def private() -> strategy.Strategy:
    """Wrap an average that would do."""
    return strategy.DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1.0, 1.0, 4)


def half() -> FedAvg:
    """Ask half of the clients."""
    return FedAvg(fraction_train=0.5)


def weighted() -> FedAvg:
    """Weigh by what no client reports."""
    return FedAvg(weighted_by_key="num-edges")


class Sampling(FedMedian):
    """Choose clients by a rule of its own."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return list(super().configure_train(server_round, arrays, config, grid))[:3]


@pytest.mark.parametrize(
    ("attribute", "sentence"),
    [
        ("prox", "aggregator FedProx: .* expected proximal-mu with local-steps above 1"),
        ("private", "aggregator DifferentialPrivacyServerSide.* expected update-dp for .*"),
        ("Sampling", "aggregator Sampling: .* configure_train .* aggregate_train alone"),
        ("half", "aggregator FedAvg: fraction_train is 0.5, .*; expected 1.0"),
        ("weighted", "aggregator FedAvg: weighted_by_key is 'num-edges', .*'num-examples'"),
    ],
)
def test_what_nobody_would_follow_is_refused(attribute: str, sentence: str) -> None:
    with pytest.raises(PluginError, match=f"^{sentence}$"):
        make_aggregator(f"{__name__}:{attribute}")


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
