"""Mini-batch trainings of one model by four methods, until they are equally accurate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from retexo_fl.additions.devices.sampling.feature_cache import FixedOrder, by_degree
from retexo_fl.additions.devices.sampling.features import FeatureStore
from retexo_fl.additions.devices.sampling.gns import GnsSampler
from retexo_fl.additions.devices.sampling.lru import LruOrder
from retexo_fl.additions.devices.sampling.neighbour import NeighbourSampler
from sims.feeds import Feed, GnsFeed, LazyFeed, PlainFeed, Recycling, RootOrder
from sims.kept import Kept, Work
from sims.mini_batch_graphs import MiniBatchGraph, read_graph
from sims.mini_batches import Observer, Point, Trace, Training, train
from sims.origin import graph_digest
from sims.rivals.ladies import LadiesSampler

#: Roots' first. Source: KDD'21, section 4.1.
FANOUTS: Final = (15, 10, 5)
#: Chosen of a tenth and a fifth, which are both run. The published hundredth is of graphs that are
#: up to a thousand times as large.
CACHE_SHARE: Final = 0.2
#: Of LADIES, for each layer. Source: KDD'21, section 4.1, the smaller of its two.
LADIES_NODES: Final = 512
HIDDEN: Final = 64
DROPOUT: Final = 0.3
#: Source: KDD'21, section 4.1.
LEARNING_RATE: Final = 0.003
#: A training counts as equal from so much below the best of neighbour sampling on.
EQUAL_WITHIN: Final = 0.005
#: Others than neighbour sampling may take so many times its epochs.
LONGEST: Final = 2

NEIGHBOUR: Final = "neighbour"
#: Global Neighbor Sampling by method: the cache as a share of all nodes.
GNS_SHARES: Final[Mapping[str, float]] = {"gns": CACHE_SHARE, "gns a tenth": 0.1}
METHODS: Final = (NEIGHBOUR, *GNS_SHARES, "ladies", "lazygcn")
OBSERVERS: Final = ("lru", "degree")


class Size(NamedTuple):
    """Of the trainings on a graph: roots of a mini-batch, epochs, and how many seeds."""

    batch_nodes: int
    epochs: int
    seeds: int


class Case(NamedTuple):
    """One training."""

    graph: str
    method: str
    seed: int


class Cost(NamedTuple):
    """What a training took until it was as accurate as wanted, or in all if it never was."""

    reached: bool
    epochs: int
    seconds: float
    copied_bytes: int
    test: float
    would_copy: Mapping[str, int]


def all_methods(
    folder: Path, name: str, size: Size, seed: int, kept: Kept
) -> dict[str, tuple[Trace, Cost]]:
    """Train with neighbour sampling, then with the others until they are as accurate.

    Args:
        folder: With the graph.
        name: Of the graph.
        size: Of the trainings.
        seed: Of split, weights, order and samplers.
        kept: Trainings that are done.

    Returns:
        By method.
    """
    # Read when the first training is done that is not kept, and then for all.
    graph = cache(lambda: read_graph(folder, name, seed=seed))
    found: dict[str, Trace] = {}
    for method in METHODS:
        first = method == NEIGHBOUR
        training = Training(
            epochs=size.epochs,
            most_epochs=size.epochs if first else LONGEST * size.epochs,
            hidden=HIDDEN,
            layers=len(FANOUTS),
            dropout=DROPOUT,
            learning_rate=LEARNING_RATE,
            seed=seed,
        )
        wanted = 0.0 if first else found[NEIGHBOUR].best - EQUAL_WITHIN
        facts = {
            "graph": name,
            "method": method,
            "wanted": wanted,
            "file": graph_digest(name, folder),
            "batch": size.batch_nodes,
            "sampling": _sampling_facts(method),
            **asdict(training),
        }
        train_it = partial(_trained, graph, method, size.batch_nodes, training, wanted)
        found[method] = kept_trace(kept, facts, train_it)
    wanted = found[NEIGHBOUR].best - EQUAL_WITHIN
    return {method: (trace, _cost(trace, wanted)) for method, trace in found.items()}


def kept_trace(kept: Kept, facts: Mapping[str, Any], training: Callable[[], Trace]) -> Trace:
    """Return a training, doing it if nobody has.

    Args:
        kept: Those that are done.
        facts: All that decides it, but for the code.
        training: Does it.
    """
    name = f"mini-batches-{facts['graph']}-{facts['method']}"
    made = kept.all({name: Work(name, facts, lambda: asdict(training()))})[name]
    points = [Point(*values) for values in made["points"]]
    return Trace(points=points, most_rows=made["most_rows"])


def _sampling_facts(method: str) -> dict[str, object]:
    return {
        "fanouts": FANOUTS,
        "cache share": GNS_SHARES.get(method, CACHE_SHARE),
        "LADIES nodes": LADIES_NODES,
        "LazyGCN": asdict(Recycling()),
    }


def _trained(
    read: Callable[[], MiniBatchGraph],
    method: str,
    batch_nodes: int,
    training: Training,
    wanted: float,
) -> Trace:
    graph = read()
    feed = _feed(graph, method, batch_nodes, training.seed)
    observers = _observers(graph) if method == NEIGHBOUR else {}
    return train(graph, feed, training, observers=observers, wanted=wanted)


def _feed(graph: MiniBatchGraph, method: str, batch_nodes: int, seed: int) -> Feed:
    order = RootOrder(train=graph.train, batch_nodes=batch_nodes, seed=seed)
    store = FeatureStore(graph.features)
    if method in GNS_SHARES:
        return GnsFeed(gns_sampler(graph, seed, GNS_SHARES[method]), order, store)
    if method == "ladies":
        ladies = LadiesSampler(graph.adjacency, len(FANOUTS), LADIES_NODES, seed=seed)
        return PlainFeed(ladies, order, store)
    neighbour = NeighbourSampler(graph.adjacency, FANOUTS, seed=seed)
    if method == "lazygcn":
        return LazyFeed(neighbour, order, store, Recycling())
    return PlainFeed(neighbour, order, store)


def gns_sampler(graph: MiniBatchGraph, seed: int, share: float) -> GnsSampler:
    """Return Global Neighbor Sampling with a cache of a share of all nodes."""
    return GnsSampler(
        graph.adjacency, FANOUTS, seed=seed, cache_share=share, train_nodes=graph.train
    )


def _observers(graph: MiniBatchGraph) -> dict[str, Observer]:
    """Return caches of the size of that of Global Neighbor Sampling."""
    places = round(CACHE_SHARE * graph.num_nodes)
    static = FixedOrder(graph.num_nodes, places)
    static.fill(by_degree(graph.adjacency.degrees, places))
    return {
        "lru": Observer(order=LruOrder(graph.num_nodes, places)),
        "degree": Observer(order=static, misses=places),
    }


def _cost(trace: Trace, wanted: float) -> Cost:
    epochs = trace.reached(wanted)
    point = trace.points[-1 if epochs is None else epochs - 1]
    return Cost(
        reached=epochs is not None,
        epochs=len(trace.points) if epochs is None else epochs,
        seconds=point.seconds,
        copied_bytes=point.copied_bytes,
        test=point.test,
        would_copy=point.would_copy,
    )
