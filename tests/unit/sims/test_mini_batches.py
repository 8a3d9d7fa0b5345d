from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from retexo_fl.additions.devices.sampling import GnsSampler, NeighbourSampler
from retexo_fl.additions.devices.sampling.feature_cache import FeatureCache, FixedOrder, by_degree
from retexo_fl.additions.devices.sampling.features import FeatureStore
from retexo_fl.additions.devices.sampling.lru import LruOrder
from retexo_fl.config import RunConfig
from sims.equal_accuracy import (
    CACHE_SHARE,
    GNS_SHARES,
    METHODS,
    _cost,
    _feed,
    kept_trace,
)
from sims.feeds import PlainFeed, RootOrder
from sims.kept import Kept
from sims.mini_batch_graphs import WIDTH, read_graph
from sims.mini_batches import Observer, Point, Trace, Training, train
from sims.outcome import Row, figures_of
from sims.recipes import gns
from tests.support.data import cora_dir
from tests.support.mini_batches import small_graph

pytestmark = pytest.mark.slow

GRAPH = small_graph()
SAMPLER = NeighbourSampler(GRAPH.adjacency, (3, 2), seed=0)


def training(**changed: Any) -> Training:
    values: dict[str, Any] = {
        **{"epochs": 3, "most_epochs": 3, "hidden": 8, "layers": 2, "dropout": 0.1},
        **{"learning_rate": 0.05, "seed": 0},
    }
    return Training(**{**values, **changed})


def plain_feed() -> PlainFeed:
    order = RootOrder(train=GRAPH.train, batch_nodes=6, seed=0)
    return PlainFeed(SAMPLER, order, FeatureStore(GRAPH.features))


def point(validation: float, copied_bytes: int = 0) -> Point:
    return Point(1.0, copied_bytes, validation, 0.5, {"lru": 7})


def test_training_learns_and_counts_what_it_copies() -> None:
    trace = train(GRAPH, plain_feed(), training(epochs=20, most_epochs=20))
    assert trace.points[-1].validation > 0.8
    copied = [each.copied_bytes for each in trace.points]
    assert copied == sorted(set(copied))
    nodes = 0
    for batch, roots in enumerate(plain_feed().order.of_epoch(0)):
        nodes += len(SAMPLER.sample(roots, epoch=0, batch=batch).nodes)
    assert copied[0] == nodes * GRAPH.features.shape[1] * 4
    assert trace.most_rows <= GRAPH.num_nodes
    seconds = [each.seconds for each in trace.points]
    assert seconds == sorted(seconds)


def test_training_goes_on_until_it_is_as_accurate_as_wanted() -> None:
    lengths = [
        len(train(GRAPH, plain_feed(), training(most_epochs=9), wanted=wanted).points)
        for wanted in (0.0, 2.0)
    ]
    assert lengths == [3, 9]
    long = train(GRAPH, plain_feed(), training(epochs=1, most_epochs=30), wanted=0.8)
    assert long.reached(0.8) == len(long.points) > 1


def test_same_training_is_the_same_but_for_its_seconds() -> None:
    one, other = (train(GRAPH, plain_feed(), training()) for _ in range(2))
    assert [p._replace(seconds=0) for p in one.points] == [
        p._replace(seconds=0) for p in other.points
    ]


def test_observers_count_what_caches_would_let_through() -> None:
    def policies() -> dict[str, LruOrder | FixedOrder]:
        static = FixedOrder(GRAPH.num_nodes, 10)
        static.fill(by_degree(GRAPH.adjacency.degrees, 10))
        return {"lru": LruOrder(GRAPH.num_nodes, 10), "degree": static}

    observers = {name: Observer(order=order) for name, order in policies().items()}
    trace = train(GRAPH, plain_feed(), training(epochs=2, most_epochs=2), observers=observers)
    caches = {
        name: FeatureCache(FeatureStore(GRAPH.features), torch.device("cpu"), order)
        for name, order in policies().items()
    }
    for epoch in range(2):
        for batch, roots in enumerate(plain_feed().order.of_epoch(epoch)):
            nodes = SAMPLER.sample(roots, epoch=epoch, batch=batch).nodes
            for cache in caches.values():
                cache.rows(nodes)
        # What fills the static one stands for no rows here.
        assert trace.points[epoch].would_copy == {
            name: cache.counts.misses * cache.counts.row_bytes for name, cache in caches.items()
        }


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains(method: str) -> None:
    trace = train(GRAPH, _feed(GRAPH, method, 6, 0), training(layers=3, epochs=2, most_epochs=2))
    assert len(trace.points) == 2
    assert 0 < trace.points[0].copied_bytes <= trace.points[1].copied_bytes


def test_cost_is_that_of_the_first_epoch_that_is_accurate_enough() -> None:
    trace = Trace(points=[point(0.5, 10), point(0.7, 20), point(0.6, 30)])
    assert trace.best == 0.7
    found = _cost(trace, 0.65)
    assert (found.reached, found.epochs, found.copied_bytes) == (True, 2, 20)
    missed = _cost(trace, 0.8)
    assert (missed.reached, missed.epochs, missed.copied_bytes) == (False, 3, 30)


@pytest.mark.parametrize(
    ("ours", "short", "holds"),
    [
        ([40.0, 50.0], "", True),
        ([40.0, 51.0], "", False),
        ([40.0, 50.0], " (whole training of 1 of 2 that missed it)", False),
    ],
)
def test_claim_holds_only_with_every_seed(ours: list[float], short: str, holds: bool) -> None:
    figures = figures_of(
        [
            Row.of("github, neighbour, copied", [100.0, 100.0], unit="MB"),
            Row.of(f"github, gns, copied{short}", ours, unit="MB"),
        ]
    )
    (check,) = gns.checks_from(figures, quick=False)
    assert check.holds == holds
    assert f"0.40, {ours[1] / 100:.2f}" in check.line


def test_the_default_cache_is_the_one_that_was_measured() -> None:
    sampler = GnsSampler(GRAPH.adjacency, (3, 2), seed=0)
    assert f"cache-share={CACHE_SHARE} " in sampler.spec
    assert RunConfig().cache_share == GNS_SHARES["gns"] == CACHE_SHARE


def test_training_that_is_kept_is_not_done_again(tmp_path: Path) -> None:
    traces = iter([Trace(points=[point(0.5)], most_rows=3), Trace(points=[point(0.9)])])
    facts = {"graph": "small", "method": "gns", "seed": 0}
    first, again, other = (
        kept_trace(Kept(tmp_path), {**facts, "seed": seed}, lambda: next(traces))
        for seed in (0, 0, 1)
    )
    assert first == again == Trace(points=[point(0.5)], most_rows=3)
    assert other.points == [point(0.9)]


def test_graph_is_split_and_its_rows_are_narrow_and_centred() -> None:
    graph = read_graph(cora_dir(), "cora", seed=0)
    parts = [graph.train, graph.validation, graph.test]
    nodes = np.concatenate(parts)
    assert sorted(nodes) == np.flatnonzero(graph.labels >= 0).tolist()
    assert [round(len(part) / len(nodes), 2) for part in parts] == [0.2, 0.2, 0.6]
    assert graph.features.shape == (2708, WIDTH)
    np.testing.assert_allclose(graph.features.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(graph.features.std(axis=0), 1, rtol=1e-3)
    other = read_graph(cora_dir(), "cora", seed=1)
    assert set(other.train) != set(graph.train)
    np.testing.assert_array_equal(other.features, graph.features)
