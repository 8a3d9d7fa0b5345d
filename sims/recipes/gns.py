"""Global Neighbor Sampling against neighbour sampling, LADIES and LazyGCN, to equal accuracy.

All train the same model from the same weights on the same mini-batches of roots. What is copied is
counted at the feature store, on the trace of the training itself.

Source: Dong, Zheng, Yang and Karypis, "Global Neighbor Sampling for Mixed CPU-GPU Training on Giant
Graphs" (KDD'21), section 4, table 3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain, product
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import Final

import numpy as np

from retexo_fl.additions.devices.sampling.neighbour import NeighbourSampler
from sims.catalogue import Setting
from sims.charts import draw_bars
from sims.equal_accuracy import (
    CACHE_SHARE,
    DROPOUT,
    EQUAL_WITHIN,
    FANOUTS,
    HIDDEN,
    LADIES_NODES,
    LEARNING_RATE,
    LONGEST,
    METHODS,
    NEIGHBOUR,
    OBSERVERS,
    Case,
    Cost,
    Size,
    all_methods,
    gns_sampler,
)
from sims.feeds import BatchSampler, Recycling, RootOrder
from sims.kept import Kept
from sims.mini_batch_graphs import TRAIN_SHARE, WIDTH, MiniBatchGraph, read_graph
from sims.mini_batches import Trace
from sims.outcome import Axes, Cell, Check, Draw, Figures, Outcome, Row
from sims.published import GNS_EPOCHS_S

PURPOSE: Final = "feature bytes to equal accuracy: Global Neighbor Sampling and three others"


#: The five graphs of most edges that are judged by accuracy and are no part of another. With the
#: paper's mini-batches of 1,000 roots each would read most of its graph, so they are smaller.
GRAPHS: Final[Mapping[str, Size]] = MappingProxyType(
    {
        "fb100_union8": Size(256, 4, 2),
        "github": Size(64, 8, 3),
        "coauthor_physics": Size(64, 8, 3),
        "amazon_computers": Size(64, 8, 3),
        "facebook_page_page": Size(64, 8, 3),
    }
)
QUICK_GRAPHS: Final[Mapping[str, Size]] = MappingProxyType({"cora": Size(64, 2, 1)})
#: Of which an epoch's bytes are told as well; the first is the published one.
OTHER_SHARES: Final = (0.01, 0.03, 0.1)
MOST_BYTES: Final = 0.5
#: Of one training of two epochs on a small graph, each of which fills the cache.
MOST_BYTES_QUICK: Final = 0.8

Costs = Mapping[Case, Cost]
Traces = Mapping[Case, Trace]


def run(setting: Setting) -> Outcome:
    """Train by all methods on all graphs."""
    sizes = QUICK_GRAPHS if setting.quick else GRAPHS
    kept = Kept(setting.kept)
    traces: dict[Case, Trace] = {}
    costs: dict[Case, Cost] = {}
    epoch_rows: list[Row] = []
    for name, size in sizes.items():
        folder = Path(setting.folder_with(name))
        for seed in range(size.seeds):
            for method, found in all_methods(folder, name, size, seed, kept).items():
                traces[Case(name, method, seed)], costs[Case(name, method, seed)] = found
        epoch_rows += _epoch_rows(read_graph(folder, name, seed=0), size)
    rows = [row for name in sizes for row in _rows(name, traces, costs)] + epoch_rows
    return Outcome(
        title="Feature bytes to equal accuracy, by sampler",
        setting=_described(sizes, kept),
        rows=rows,
    )


def published_beside(figures: Figures) -> list[Cell]:
    """Return the article's speed-ups, least and most of its graphs, beside ours in bytes."""
    cells = []
    for place, (rival, named) in enumerate(
        ((NEIGHBOUR, "neighbour sampling"), ("ladies", "LADIES of 512 nodes"))
    ):
        theirs = [epoch[place] / epoch[-1] for epoch in GNS_EPOCHS_S.values()]
        # Of trainings that missed the accuracy, the name says so: they are compared with nothing.
        pairs = [
            (figures.get(f"{name}, {rival}, copied"), figures.get(f"{name}, gns, copied"))
            for name in (*GRAPHS, *QUICK_GRAPHS)
        ]
        ours = [over.ours / under.ours for over, under in pairs if over and under]
        for how, choose in (("least", min), ("most", max)):
            cells.append(
                Cell(
                    name=f"{named} over gns, seconds of an epoch, {how} of five graphs",
                    unit="times",
                    published=round(choose(theirs), 1),
                    ours=choose(ours) if ours else None,
                    how="feature bytes to equal accuracy, a fifth cached, other graphs",
                )
            )
    return cells


def _of(name: str, method: str, costs: Costs) -> list[Cost]:
    """Return what a method took on a graph, for each seed."""
    return [cost for case, cost in costs.items() if case[:2] == (name, method)]


def _rows(name: str, traces: Traces, costs: Costs) -> list[Row]:
    rows = []
    measures: Mapping[str, tuple[str, Callable[[Cost], float]]] = {
        "copied": ("MB", lambda cost: cost.copied_bytes / 1e6),
        "epochs": ("epochs", lambda cost: cost.epochs),
        "computing": ("CPU s", lambda cost: cost.seconds),
        "test accuracy then": ("share", lambda cost: cost.test),
    }
    for measure, (unit, value) in measures.items():
        reference = fmean(value(cost) for cost in _of(name, NEIGHBOUR, costs))
        for method in METHODS:
            found = _of(name, method, costs)
            missed = sum(not cost.reached for cost in found)
            short = (
                f" (whole training of {missed} of {len(found)} that missed it)" if missed else ""
            )
            rows.append(
                Row.of(
                    f"{name}, {method}, {measure}{short}",
                    [value(cost) for cost in found],
                    unit=unit,
                    reference=reference,
                )
            )
        if measure == "copied":
            rows += _cached_rows(name, costs, reference)
    return [*rows, *_whole_rows(name, traces)]


def _cached_rows(name: str, costs: Costs, reference: float) -> list[Row]:
    """Return what neighbour sampling would copy through caches of the same size."""
    return [
        Row.of(
            f"{name}, {NEIGHBOUR} through a cache by {observer}, copied",
            [cost.would_copy[observer] / 1e6 for cost in _of(name, NEIGHBOUR, costs)],
            unit="MB",
            reference=reference,
        )
        for observer in OBSERVERS
    ]


def _whole_rows(name: str, traces: Traces) -> list[Row]:
    """Return what is known of whole trainings."""
    rows = []
    for method in METHODS:
        found = [trace for case, trace in traces.items() if case[:2] == (name, method)]
        best, most = [trace.best for trace in found], [float(trace.most_rows) for trace in found]
        rows.append(Row.of(f"{name}, {method}, best validation accuracy", best, unit="share"))
        rows.append(Row.of(f"{name}, {method}, most feature rows on the device", most, unit="rows"))
    return rows


def _epoch_rows(graph: MiniBatchGraph, size: Size) -> list[Row]:
    """Return what one epoch copies with other sizes of the cache, by what it copies without."""
    order = RootOrder(train=graph.train, batch_nodes=size.batch_nodes, seed=0)
    neighbour = NeighbourSampler(graph.adjacency, FANOUTS, seed=0)
    whole = _rows_of_epoch(neighbour, order, graph, np.zeros(0, np.int64))
    rows = []
    for share in (*OTHER_SHARES, CACHE_SHARE):
        sampler = gns_sampler(graph, 0, share)
        copied = _rows_of_epoch(sampler, order, graph, sampler.cached_nodes(0))
        rows.append(
            Row(
                metric=f"{graph.name}, gns, an epoch's bytes with a cache of {share:.0%}",
                unit=f"of {NEIGHBOUR}'s",
                ours=copied / whole,
            )
        )
    return rows


def _rows_of_epoch(
    sampler: BatchSampler, order: RootOrder, graph: MiniBatchGraph, kept_ids: np.ndarray
) -> int:
    """Return how many rows the first epoch copies, those that fill the cache among them."""
    kept = np.zeros(graph.num_nodes, np.bool_)
    kept[kept_ids] = True
    copied = len(kept_ids)
    for batch, roots in enumerate(order.of_epoch(0)):
        nodes = sampler.sample(roots, epoch=0, batch=batch).nodes
        copied += int(np.count_nonzero(~kept[nodes]))
    return copied


def checks_from(figures: Figures, *, quick: bool) -> list[Check]:
    """Return the lines that must hold."""
    most = MOST_BYTES_QUICK if quick else MOST_BYTES
    return [_check(figures, name, most) for name in _there(figures)]


def _there(figures: Figures) -> list[str]:
    return [name for name in (*GRAPHS, *QUICK_GRAPHS) if f"{name}, {NEIGHBOUR}, copied" in figures]


def _check(figures: Figures, name: str, most: float) -> Check:
    shares, all_reached = _shares(figures, name, "gns")
    listed = ", ".join(f"{share:.2f}" for share in shares)
    return Check(
        line=f"{name}: to equal accuracy, gns copies at most {most:.0%} of what neighbour "
        f"sampling does, with every seed (share: {listed})",
        holds=all_reached and max(shares) <= most,
    )


def _shares(figures: Figures, name: str, method: str) -> tuple[list[float], bool]:
    """Return what a method copies by what neighbour sampling does, and if all seeds reached it."""
    metric = f"{name}, {method}, copied"
    row = figures.get(metric)
    all_reached = row is not None
    if row is None:
        # Of trainings that missed the accuracy, the name says so.
        (row,) = (found for known, found in figures.items() if known.startswith(f"{metric} ("))
    pairs = zip(row.values, figures[f"{name}, {NEIGHBOUR}, copied"].values, strict=True)
    return [own / plain for own, plain in pairs], all_reached


def _described(sizes: Mapping[str, Size], kept: Kept) -> dict[str, object]:
    return {
        "model": "GraphSAGE, mean",
        "layers": len(FANOUTS),
        "hidden": HIDDEN,
        "fanouts": "/".join(map(str, FANOUTS)),
        "dropout": DROPOUT,
        "Adam": LEARNING_RATE,
        "features": f"at most {WIDTH} columns",
        "train nodes": f"{TRAIN_SHARE:.0%} of the labelled",
        "sizes": "; ".join(
            f"{name}: {size.batch_nodes} roots, {size.epochs} epochs, {size.seeds} seeds"
            for name, size in sizes.items()
        ),
        "equal accuracy": "the first epoch after which the validation accuracy, with all "
        f"neighbours, is at most {EQUAL_WITHIN} below the best of neighbour sampling with the same "
        f"seed; others may take {LONGEST} times its epochs",
        "copied": "features to the device: misses at the feature store on the real trace, and what "
        "fills a cache",
        "gns": f"cache of {CACHE_SHARE:.0%} of the nodes, and of a tenth (the paper: 1 % of far "
        "larger graphs), drawn anew every epoch",
        "ladies": f"{LADIES_NODES} nodes a layer",
        "lazygcn": _lazy_text(Recycling()),
        "computing": "CPU seconds of one thread: sampling, gathering, training; nothing is copied "
        "to a device in this measurement, and the machine may have other work",
        "reference": "neighbour sampling of ours",
        "trained at commit": kept.commits,
    }


def _lazy_text(recycling: Recycling) -> str:
    return (
        f"mega-batches of {recycling.batches} mini-batches, {recycling.times} passes over the "
        f"first, {recycling.growth} times as many over each next; rows that a mega-batch shares "
        "with the one before stay on the device"
    )


def pictures(figures: Figures) -> list[Draw]:
    """Return what draws the bytes of all methods."""
    return [partial(_draw, figures)]


def _draw(figures: Figures, axes: Axes) -> None:
    names = _there(figures)
    caches = [f"{NEIGHBOUR} through a cache by {observer}" for observer in OBSERVERS]
    methods = [*METHODS[1:], *caches]
    shares = {
        method: {name: _shares(figures, name, method) for name in names} for method in methods
    }
    series = {
        method: [values for values, _ in of_method.values()] for method, of_method in shares.items()
    }
    draw_bars(axes, names, series)
    for (method, name), bar in zip(
        product(methods, names), chain.from_iterable(axes.containers), strict=True
    ):
        if not shares[method][name][1]:
            bar.set(hatch="///", alpha=0.4)
    axes.axhline(MOST_BYTES, color="black", linewidth=0.8, linestyle="--")
    axes.set_yscale("log")
    axes.set_ylabel("bytes to equal accuracy\nas a share of neighbour sampling's")
    axes.set_title("hatched: some seed never reached it, all bytes", fontsize=9)
