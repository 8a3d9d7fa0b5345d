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

from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from retexo_fl.graph import Graph, assign_nodes, load_dataset
from retexo_fl.training.volume import PredictedVolume
from retexo_fl.training.volume import gamma as gamma_of
from sims.boundary_counts import count_pairs
from sims.catalogue import Setting
from sims.charts import COLORS
from sims.extrapolation import at_rounds, measured_prediction
from sims.large_graphs import (
    LARGE,
    ROUNDS,
    boundary_of_gamma,
    predict,
    published_boundary,
    shape_of,
)
from sims.outcome import Cell, Check, Figures, Outcome, Row, figures_of
from sims.paper import described
from sims.published import GAMMA, GB_PER_WORKER, MODELS, PASSING_SHARE
from sims.trained import Trained
from sims.trainings import Keys, Trainings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
BOUNDARY: Final = "B, boundary nodes of a client"


class Place(NamedTuple):
    """One column of a table."""

    graph: str
    clients: int


class Gamma(NamedTuple):
    """Of the smaller graph, at the paper's rounds."""

    measured: float
    predicted: float


#: Vectors of each ordered pair of clients of the whole graph.
Counts = dict[Place, np.ndarray]


def run(setting: Setting) -> Outcome:
    """Count, predict and measure."""
    numbers = QUICK_CLIENTS if setting.quick else CLIENTS
    counts = {
        Place(name, clients): pairs
        for name in LARGE
        for clients, pairs in _counted(setting, name, numbers).items()
    }
    trainings = Trainings(setting.kept)
    found = trainings.all(
        {(place, one): _keys(setting, place, one) for place in counts for one in ALGORITHMS}
    )
    gammas = {place: _gamma(setting, place, found) for place in counts}
    rows = [row for place in counts for row in _rows(place, counts, gammas)]
    return Outcome(
        title="RETEXO, tables 5 and 6: gamma at the counts of Reddit and Products",
        setting=_setting(setting, trainings),
        rows=rows,
        checks=tuple(checks_from(figures_of(rows), quick=setting.quick)),
        published=tuple(published_beside(figures_of(rows))),
        draw=lambda axes: _draw(axes, counts),
        beside=(lambda axes: _draw_boundary(axes, counts),),
    )


def _setting(setting: Setting, trainings: Trainings) -> dict[str, object]:
    sources = {name: "at hand" if setting.has(name) else "not at hand, made" for name in LARGE}
    return described(
        setting,
        MEASURED,
        [SEED],
        trainings,
        **sources,
        reference="of B: what explains the published GB, by their formula; of gamma, full size: "
        "ratios of the published GB; of gamma, measured: equation 2 for the same sizes",
        full_size=f"{QUICK_SIZE if setting.quick else 'all nodes'}; not trained: B is counted, "
        f"bytes follow by equation 2, {ROUNDS} rounds a layer",
        measured="graphs of the same mean degree with fewer nodes and features, hidden width "
        f"{MEASURED['hidden']}, {MEASURED['rounds']} rounds a layer, extrapolated to {ROUNDS}",
        measured_graphs="; ".join(_small(setting, name) for name in LARGE),
    )


def _counted(setting: Setting, name: str, numbers: tuple[int, ...]) -> dict[int, np.ndarray]:
    graph = _whole(setting, name)
    return {
        clients: count_pairs(
            graph,
            assign_nodes(graph, partitioner="random", clients=clients, seed=SEED),
            clients,
        )
        for clients in numbers
    }


def _whole(setting: Setting, name: str) -> Graph:
    if setting.quick:
        return load_dataset(f"synthetic:{name},{QUICK_SIZE},features=1", data_dir=None)
    if setting.has(name):
        return load_dataset(name, data_dir=Path(setting.folder_with(name)))
    return load_dataset(f"synthetic:{name},features=1", data_dir=None)


def _small(setting: Setting, name: str) -> str:
    return f"synthetic:{name},{QUICK_SIZE},features=16" if setting.quick else LARGE[name].measured


def _keys(setting: Setting, place: Place, algorithm: str) -> dict[str, Any]:
    return {
        **MEASURED,
        "dataset": _small(setting, place.graph),
        "layers": LARGE[place.graph].layers,
        "clients": place.clients,
        "algorithm": algorithm,
        "seed": SEED,
    }


def _gamma(setting: Setting, place: Place, found: dict[tuple[Place, str], Trained]) -> Gamma:
    lazy, standard = (at_rounds(found[place, one], ROUNDS) for one in ALGORITHMS)
    volumes = {
        one: measured_prediction(_keys(setting, place, one), found[place, one], ROUNDS)
        for one in ALGORITHMS
    }
    predicted = gamma_of(volumes["standard"], volumes["lazy"])
    return Gamma(measured=standard / lazy, predicted=predicted)


def _rows(place: Place, counts: Counts, gammas: dict[Place, Gamma]) -> list[Row]:
    pairs, name = counts[place], f"{place.graph}, {place.clients} clients"
    graph = LARGE[place.graph]
    shape = shape_of(graph, MODEL)
    two = place.clients == 2
    volumes = predict(shape, pairs, ROUNDS)
    published = GB_PER_WORKER[place.graph, "standard"] / GB_PER_WORKER[place.graph, "lazy"]
    return [
        Row(
            metric=f"{BOUNDARY}, {name}",
            unit="nodes",
            ours=float(pairs.sum()) / place.clients,
            reference=published_boundary(place.graph, shape) if two else None,
        ),
        *(
            Row(
                metric=f"full size, by formula: bytes at a client, {name}, {MODEL}, {algorithm}",
                unit="GB",
                ours=volume.paper / place.clients / 1e9,
                reference=GB_PER_WORKER[place.graph, algorithm] if two else None,
            )
            for algorithm, volume in volumes.items()
        ),
        *(
            Row(
                metric=f"{FULL}, {name}, {model}",
                unit="times",
                ours=_full_gamma(place, pairs, model),
                reference=published if two and model == MODEL else None,
            )
            for model in MODELS
        ),
        *(_with_published_boundary(place.graph) if two else ()),
        Row(
            metric=f"{MEASURED_GAMMA}, {name}, {MODEL}",
            unit="times",
            ours=gammas[place].measured,
            reference=gammas[place].predicted,
        ),
    ]


def _with_published_boundary(name: str) -> tuple[Row]:
    """Return gamma with the paper's B in place of ours: what is left to differ by is not B."""
    boundary = round(published_boundary(name, shape_of(LARGE[name], MODEL)))
    pairs = np.array([[0, boundary], [boundary, 0]])
    row = Row(
        metric=f"by formula, with the published B: gamma, {name}, 2 clients, {MODEL}",
        unit="times",
        ours=_full_gamma(Place(name, 2), pairs, MODEL),
        reference=GB_PER_WORKER[name, "standard"] / GB_PER_WORKER[name, "lazy"],
    )
    return (row,)


def _full_gamma(place: Place, pairs: np.ndarray, model: str) -> float:
    volumes: dict[str, PredictedVolume] = predict(
        shape_of(LARGE[place.graph], model), pairs, ROUNDS
    )
    return gamma_of(volumes["standard"], volumes["lazy"])


def checks_from(figures: Figures, *, quick: bool) -> list[Check]:
    """Return the lines that must hold; small graphs have another gamma than the published ones."""
    places = [
        Place(name, clients)
        for name, clients in product(LARGE, CLIENTS)
        if f"{BOUNDARY}, {name}, {clients} clients" in figures
    ]
    checks = [_measured_check(figures, place) for place in places]
    if quick:
        return checks
    return [*checks, *(_full_check(figures, place) for place in places if place in GAMMA)]


def _measured_check(figures: Figures, place: Place) -> Check:
    row = figures[f"{MEASURED_GAMMA}, {_named(place)}, {MODEL}"]
    off = row.ours / (row.reference or np.nan) - 1
    return Check(
        line=f"{_named(place)}: measured gamma {row.ours:.3f} is {off:+.4%} off equation 2 "
        f"(allowed: {ALLOWED:.1%})",
        holds=bool(abs(off) <= ALLOWED),
    )


def _full_check(figures: Figures, place: Place) -> Check:
    ours, published = figures[f"{FULL}, {_named(place)}, {MODEL}"].ours, GAMMA[place].theoretical
    off = ours / published - 1
    return Check(
        line=f"{_named(place)}: gamma at full size {ours:.1f} is {off:+.1%} off the published "
        f"{published:g} (allowed: {FULL_ALLOWED:.0%})",
        holds=abs(off) <= FULL_ALLOWED,
    )


def _named(place: Place) -> str:
    return f"{place.graph}, {place.clients} clients"


def published_beside(figures: Figures) -> list[Cell]:
    """Return both tables, the B behind them, and how much of the bytes is message passing."""
    cells = []
    for (graph, clients), gamma in GAMMA.items():
        place = Place(graph, clients)
        if f"{BOUNDARY}, {_named(place)}" not in figures:
            continue
        ours = figures[f"{FULL}, {_named(place)}, {MODEL}"].ours
        boundary = figures[f"{BOUNDARY}, {_named(place)}"].ours
        cells += [
            _cell(f"gamma, theoretical, {_named(place)}", gamma.theoretical, ours, "times"),
            _cell(f"gamma, empirical, {_named(place)}", gamma.empirical, ours, "times"),
            Cell(
                name=f"B that explains the theoretical gamma, {_named(place)}",
                unit="nodes",
                published=round(boundary_of_gamma(graph, gamma.theoretical)),
                ours=boundary,
                how="counted in our graph",
            ),
        ]
    for graph, (algorithm, share) in product(LARGE, PASSING_SHARE.items()):
        clients = 2
        boundary = figures[f"{BOUNDARY}, {graph}, {clients} clients"].ours
        pairs = np.array([[0, round(boundary)], [round(boundary), 0]])
        volume = predict(shape_of(LARGE[graph], MODEL), pairs, ROUNDS)[algorithm]
        name = f"message passing of all bytes, more than, {graph}, 2 clients, {algorithm}"
        cells.append(_cell(name, share, 2 * volume.boundary_training / volume.paper, "share"))
    return cells


def _cell(name: str, published: float, ours: float, unit: str) -> Cell:
    how = f"full size, by equation 2 with our B, {MODEL}"
    return Cell(name=name, unit=unit, published=published, ours=ours, how=how)


def _draw(axes: Axes, counts: Counts) -> None:
    for (number, graph), (style, model) in product(
        enumerate(LARGE), zip("-:", ("sage", "gcn"), strict=True)
    ):
        points = [
            (place.clients, _full_gamma(place, pairs, model))
            for place, pairs in counts.items()
            if place.graph == graph
        ]
        axes.plot(
            *zip(*points, strict=True),
            style,
            marker="o",
            color=COLORS[number],
            label=f"{graph}, {model}",
        )
        published = GB_PER_WORKER[graph, "standard"] / GB_PER_WORKER[graph, "lazy"]
        axes.plot(2, published, "x", color=COLORS[number], markersize=9)
    axes.set_xlabel("clients")
    axes.set_ylabel("gamma at full size, by formula (crosses: RETEXO)")
    axes.legend(fontsize=8)


def _draw_boundary(axes: Axes, counts: Counts) -> None:
    for number, name in enumerate(LARGE):
        points = [
            (place.clients, float(pairs.sum()) / place.clients)
            for place, pairs in counts.items()
            if place.graph == name
        ]
        axes.plot(*zip(*points, strict=True), marker="o", color=COLORS[number], label=name)
        derived = published_boundary(name, shape_of(LARGE[name], MODEL))
        axes.plot(2, derived, "x", color=COLORS[number], markersize=9)
    axes.set_yscale("log")
    axes.set_xlabel("clients")
    axes.set_ylabel("B, boundary nodes of a client, counted")
    axes.legend(fontsize=8)
