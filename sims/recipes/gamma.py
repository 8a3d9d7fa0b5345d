"""RETEXO, tables 5 and 6: how many times more standard training moves, at large counts.

Graphs with the counts of Reddit and Products, made or at hand. Three things stand apart:

* B, the boundary nodes of a client, is counted in the whole graph, exactly.
* gamma at full size follows from that B by the paper's equation 2.
* gamma is measured where trainings fit: in graphs of the same mean degree with fewer nodes and
  narrower layers, over two rounds a layer, extrapolated to the paper's rounds, since every round
  moves the same. It stands beside equation 2 for the same sizes.

At Reddit's counts one end-to-end round of two clients takes 9.6 GB and minutes, even with features
cut to 14 values and layers to 8; hence the smaller graphs.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from retexo_fl.graph import Graph, assign_nodes, load_dataset
from retexo_fl.training.volume import gamma as gamma_of
from sims.boundary_counts import BOUNDARY, count_pairs
from sims.catalogue import Setting
from sims.charts import COLORS, draw_line
from sims.extrapolation import at_rounds, measured_prediction
from sims.large_graphs import (
    LARGE,
    ROUNDS,
    boundary_of_gamma,
    pairs_of_two,
    predict,
    published_boundary,
    shape_of,
)
from sims.outcome import Axes, Cell, Check, Draw, Figures, Outcome, Row
from sims.paper import described
from sims.published import GAMMA, GB_PER_WORKER, MODELS, PASSING_SHARE
from sims.sweep import Place, Sweep
from sims.trainings import Keys

PURPOSE: Final = "how many times more standard training moves: RETEXO, tables 5 and 6"

CLIENTS: Final = (2, 4, 6, 8, 16, 24)
QUICK_CLIENTS: Final = (2, 4)
QUICK_SIZE: Final = "nodes=3000,degree=20"
#: The layer whose bytes the published GB fit.
MODEL: Final = "sage"
ALGORITHMS: Final = ("lazy", "standard")
MEASURED: Final[Keys] = {
    "split": "random-unstratified:0.5/0.1/0.4",
    "model": MODEL,
    "hidden": 32,
    "rounds": 2,
    "codec": "dense",
    "partitioner": "random",
}
SEED: Final = 0
#: By how much measured gamma may differ from equation 2.
ALLOWED: Final = 0.005
#: By how much gamma at full size may differ from the published one: degrees follow another law.
FULL_ALLOWED: Final = 0.04
FULL: Final = "full size, by formula: gamma"
MEASURED_GAMMA: Final = "smaller graph, measured: gamma"


class Column(NamedTuple):
    """One column of a table."""

    graph: str
    clients: int

    def __str__(self) -> str:
        return f"{self.graph}, {self.clients} clients"


def run(setting: Setting) -> Outcome:
    """Count, predict and measure."""
    counts = {
        Column(name, clients): pairs
        for name in LARGE
        for clients, pairs in _counted(setting, name).items()
    }
    keys: dict[Place, Keys] = {
        (str(column), one): _keys(setting, column, one)
        for column, one in product(counts, ALGORITHMS)
    }
    sweep = Sweep(setting, SEED)
    sweep.train(keys)
    return Outcome(
        title="RETEXO, tables 5 and 6: gamma at the counts of Reddit and Products",
        setting=_setting(setting, sweep),
        rows=[
            row
            for column, pairs in counts.items()
            for row in (*_full_rows(column, pairs), _measured_row(column, sweep, keys))
        ],
    )


def _setting(setting: Setting, sweep: Sweep) -> dict[str, object]:
    sources = {name: "at hand" if setting.has(name) else "not at hand, made" for name in LARGE}
    return described(
        setting,
        MEASURED,
        sweep,
        **sources,
        reference="of B: what explains the published GB, by their formula; of gamma, full size: "
        "ratios of the published GB; of gamma, measured: equation 2 for the same sizes",
        full_size=f"{QUICK_SIZE if setting.quick else 'all nodes'}; not trained: B is counted, "
        f"bytes follow by equation 2, {ROUNDS} rounds a layer",
        measured="graphs of the same mean degree with fewer nodes and features, hidden width "
        f"{MEASURED['hidden']}, {MEASURED['rounds']} rounds a layer, extrapolated to {ROUNDS}",
        measured_graphs="; ".join(_small(setting, name) for name in LARGE),
    )


def _counted(setting: Setting, name: str) -> dict[int, np.ndarray]:
    graph = _whole(setting, name)
    return {
        clients: count_pairs(
            graph,
            assign_nodes(graph, partitioner="random", clients=clients, seed=SEED),
            clients,
        )
        for clients in (QUICK_CLIENTS if setting.quick else CLIENTS)
    }


def _whole(setting: Setting, name: str) -> Graph:
    if setting.quick:
        return load_dataset(f"synthetic:{name},{QUICK_SIZE},features=1", data_dir=None)
    if setting.has(name):
        return load_dataset(name, data_dir=Path(setting.folder_with(name)))
    return load_dataset(f"synthetic:{name},features=1", data_dir=None)


def _small(setting: Setting, name: str) -> str:
    return f"synthetic:{name},{QUICK_SIZE},features=16" if setting.quick else LARGE[name].measured


def _keys(setting: Setting, column: Column, algorithm: str) -> dict[str, Any]:
    return {
        **MEASURED,
        "dataset": _small(setting, column.graph),
        "layers": LARGE[column.graph].layers,
        "clients": column.clients,
        "algorithm": algorithm,
    }


def _measured_row(column: Column, sweep: Sweep, keys: Mapping[Place, Keys]) -> Row:
    """Return gamma of the smaller graph at the paper's rounds, beside equation 2."""
    moved, predicted = {}, {}
    for algorithm in ALGORITHMS:
        place = (str(column), algorithm)
        (trained,) = sweep.found[place]
        moved[algorithm] = at_rounds(trained, ROUNDS)
        predicted[algorithm] = measured_prediction(keys[place], trained, ROUNDS)
    return Row(
        metric=f"{MEASURED_GAMMA}, {column}, {MODEL}",
        unit="times",
        ours=moved["standard"] / moved["lazy"],
        reference=gamma_of(predicted["standard"], predicted["lazy"]),
    )


def _full_rows(column: Column, pairs: np.ndarray) -> list[Row]:
    shape = shape_of(LARGE[column.graph], MODEL)
    two = column.clients == 2
    volumes = predict(shape, pairs, ROUNDS)
    published = GB_PER_WORKER[column.graph, "standard"] / GB_PER_WORKER[column.graph, "lazy"]
    return [
        Row(
            metric=f"{BOUNDARY}, {column}",
            unit="nodes",
            ours=float(pairs.sum()) / column.clients,
            reference=published_boundary(column.graph, shape) if two else None,
        ),
        *(
            Row(
                metric=f"full size, by formula: bytes at a client, {column}, {MODEL}, {algorithm}",
                unit="GB",
                ours=volume.paper / column.clients / 1e9,
                reference=GB_PER_WORKER[column.graph, algorithm] if two else None,
            )
            for algorithm, volume in volumes.items()
        ),
        *(
            Row(
                metric=f"{FULL}, {column}, {model}",
                unit="times",
                ours=_full_gamma(column.graph, pairs, model),
                reference=published if two and model == MODEL else None,
            )
            for model in MODELS
        ),
        *(_with_published_boundary(column.graph, published) if two else ()),
    ]


def _with_published_boundary(name: str, published: float) -> tuple[Row]:
    """Return gamma with the paper's B in place of ours: what is left to differ by is not B."""
    boundary = round(published_boundary(name, shape_of(LARGE[name], MODEL)))
    row = Row(
        metric=f"by formula, with the published B: gamma, {name}, 2 clients, {MODEL}",
        unit="times",
        ours=_full_gamma(name, pairs_of_two(boundary), MODEL),
        reference=published,
    )
    return (row,)


def _full_gamma(name: str, pairs: np.ndarray, model: str) -> float:
    volumes = predict(shape_of(LARGE[name], model), pairs, ROUNDS)
    return gamma_of(volumes["standard"], volumes["lazy"])


def checks_from(figures: Figures, *, quick: bool) -> list[Check]:
    """Return the lines that must hold; small graphs have another gamma than the published ones."""
    columns = _columns(figures)
    checks = [_measured_check(figures, column) for column in columns]
    if quick:
        return checks
    return [*checks, *(_full_check(figures, column) for column in columns if column in GAMMA)]


def _columns(figures: Figures) -> list[Column]:
    columns = (Column(name, clients) for name, clients in product(LARGE, CLIENTS))
    return [column for column in columns if f"{BOUNDARY}, {column}" in figures]


def _measured_check(figures: Figures, column: Column) -> Check:
    row = figures[f"{MEASURED_GAMMA}, {column}, {MODEL}"]
    off = row.ours / (row.reference or np.nan) - 1
    return Check(
        line=f"{column}: measured gamma {row.ours:.3f} is {off:+.4%} off equation 2 "
        f"(allowed: {ALLOWED:.1%})",
        holds=bool(abs(off) <= ALLOWED),
    )


def _full_check(figures: Figures, column: Column) -> Check:
    ours, published = figures[f"{FULL}, {column}, {MODEL}"].ours, GAMMA[column].theoretical
    off = ours / published - 1
    return Check(
        line=f"{column}: gamma at full size {ours:.1f} is {off:+.1%} off the published "
        f"{published:g} (allowed: {FULL_ALLOWED:.0%})",
        holds=abs(off) <= FULL_ALLOWED,
    )


def published_beside(figures: Figures) -> list[Cell]:
    """Return both tables, the B behind them, and how much of the bytes is message passing."""
    cells = []
    for (graph, clients), gamma in GAMMA.items():
        column = Column(graph, clients)
        if f"{BOUNDARY}, {column}" not in figures:
            continue
        ours = figures[f"{FULL}, {column}, {MODEL}"].ours
        cells += [
            _cell(f"gamma, theoretical, {column}", gamma.theoretical, ours, "times"),
            _cell(f"gamma, empirical, {column}", gamma.empirical, ours, "times"),
            Cell(
                name=f"B that explains the theoretical gamma, {column}",
                unit="nodes",
                published=round(boundary_of_gamma(graph, gamma.theoretical)),
                ours=figures[f"{BOUNDARY}, {column}"].ours,
                how="counted in our graph",
            ),
        ]
    for graph, (algorithm, share) in product(LARGE, PASSING_SHARE.items()):
        pairs = pairs_of_two(round(figures[f"{BOUNDARY}, {graph}, 2 clients"].ours))
        volume = predict(shape_of(LARGE[graph], MODEL), pairs, ROUNDS)[algorithm]
        name = f"message passing of all bytes, more than, {graph}, 2 clients, {algorithm}"
        cells.append(_cell(name, share, 2 * volume.boundary_training / volume.paper, "share"))
    return cells


def _cell(name: str, published: float, ours: float, unit: str) -> Cell:
    how = f"full size, by equation 2 with our B, {MODEL}"
    return Cell(name=name, unit=unit, published=published, ours=ours, how=how)


def pictures(figures: Figures) -> list[Draw]:
    """Return what draws gamma and B."""
    return [partial(_draw_gamma, figures), partial(_draw_boundary, figures)]


def _draw_gamma(figures: Figures, axes: Axes) -> None:
    for (number, graph), (style, model) in product(
        enumerate(LARGE), zip("-:", ("sage", "gcn"), strict=True)
    ):
        metrics = {float(n): f"{FULL}, {Column(graph, n)}, {model}" for n in CLIENTS}
        color, label = COLORS[number], f"{graph}, {model}"
        draw_line(axes, figures, metrics, ls=style, marker="o", color=color, label=label)
        published = GB_PER_WORKER[graph, "standard"] / GB_PER_WORKER[graph, "lazy"]
        axes.plot(2, published, "x", color=color, markersize=9)
    axes.set_xlabel("clients")
    axes.set_ylabel("gamma at full size, by formula (crosses: RETEXO)")
    axes.legend(fontsize=8)


def _draw_boundary(figures: Figures, axes: Axes) -> None:
    for number, name in enumerate(LARGE):
        metrics = {float(n): f"{BOUNDARY}, {Column(name, n)}" for n in CLIENTS}
        draw_line(axes, figures, metrics, marker="o", color=COLORS[number], label=name)
        derived = published_boundary(name, shape_of(LARGE[name], MODEL))
        axes.plot(2, derived, "x", color=COLORS[number], markersize=9)
    axes.set_yscale("log")
    axes.set_xlabel("clients")
    axes.set_ylabel("B, boundary nodes of a client, counted")
    axes.legend(fontsize=8)
