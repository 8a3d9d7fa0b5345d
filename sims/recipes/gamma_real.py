"""Gamma on three real graphs with 2 to 24 clients, beside the paper's for Reddit.

Nothing is trained: B, the boundary nodes of a client, is counted from the edges, and gamma follows
from it by the paper's equation 2. The model is the paper's for Reddit, four layers of GraphSAGE and
200 rounds, so that what differs from its table 6 is the graph: features, classes, and B.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from retexo_fl.graph import Graph, assign_nodes, load_dataset
from retexo_fl.training.volume import gamma as gamma_of
from sims.boundary_counts import BOUNDARY, count_pairs
from sims.catalogue import Setting
from sims.charts import COLORS, draw_line, put_legend_below
from sims.large_graphs import HIDDEN, LARGE, ROUNDS, LargeGraph, predict, shape_of
from sims.outcome import Axes, Cell, Check, Draw, Figures, Outcome, Row
from sims.paper import at_hand
from sims.published import GAMMA

PURPOSE: Final = "gamma on real graphs with 2 to 24 clients, by their boundary counts"

DATASETS: Final = ("amazon_computers", "fb100_berkeley13", "fb100_union8")
CLIENTS: Final = (2, 4, 6, 8, 16, 24)
SEEDS: Final = (0, 1, 2)
MODEL: Final = "sage"
COMPARED: Final = "reddit"
GAMMA_NAME: Final = "gamma by equation 2"


class Counted(NamedTuple):
    """Of one graph, number of clients and seed."""

    boundary: float
    gamma: float


def run(setting: Setting) -> Outcome:
    """Count boundary nodes on each graph, with each number of clients and seed."""
    graphs = at_hand(setting, setting.few(DATASETS))
    seeds = setting.few(SEEDS)
    rows = []
    for name in graphs:
        graph = load_dataset(name, data_dir=Path(setting.folder_with(name)))
        for clients in CLIENTS:
            found = [_counted(graph, clients, seed) for seed in seeds]
            place = f"{name}, {clients} clients"
            rows += [
                Row.of(f"{BOUNDARY}, {place}", [one.boundary for one in found], unit="nodes"),
                Row.of(
                    f"{GAMMA_NAME}, {place}",
                    [one.gamma for one in found],
                    unit="times",
                    reference=GAMMA[COMPARED, clients].theoretical,
                ),
            ]
    return Outcome(
        title="Gamma on real graphs with 2 to 24 clients",
        setting={
            "partitioner": "random",
            "model": MODEL,
            "layers": LARGE[COMPARED].layers,
            "hidden": HIDDEN,
            "rounds": ROUNDS,
            "seeds": list(seeds),
            "reference": "RETEXO, table 6: Reddit, theoretical gamma",
            "trained": "nothing; B is counted from the edges",
        },
        rows=rows,
    )


def _counted(graph: Graph, clients: int, seed: int) -> Counted:
    owners = assign_nodes(graph, partitioner="random", clients=clients, seed=seed)
    pairs = count_pairs(graph, owners, clients)
    size = LargeGraph(
        nodes=graph.num_nodes,
        features=graph.num_features,
        classes=graph.num_classes,
        layers=LARGE[COMPARED].layers,
        measured="",
    )
    volumes = predict(shape_of(size, MODEL), pairs, ROUNDS)
    return Counted(
        boundary=float(pairs.sum()) / clients,
        gamma=gamma_of(volumes["standard"], volumes["lazy"]),
    )


def checks_from(figures: Figures, *, quick: bool) -> list[Check]:
    """Return the lines that must hold, the same for one graph as for all."""
    del quick
    return [line for name in _there(figures) for line in _lines(figures, name)]


def _there(figures: Figures) -> list[str]:
    return [name for name in DATASETS if f"{GAMMA_NAME}, {name}, 2 clients" in figures]


def _lines(figures: Figures, name: str) -> Iterator[Check]:
    gammas = _along(figures, GAMMA_NAME, name)
    boundaries = _along(figures, BOUNDARY, name)
    told = ", ".join(f"{gamma:.1f}" for gamma in gammas.values())
    yield Check(
        line=f"{name}: gamma is higher with 8 clients than with 2, and falls from 16 to 24 as the "
        f"paper's ({told})",
        holds=gammas[8] > gammas[2] and gammas[24] < gammas[16],
    )
    yield Check(
        line=f"{name}: gamma rises and falls with B, the boundary nodes of a client",
        holds=sorted(CLIENTS, key=gammas.__getitem__)
        == sorted(CLIENTS, key=boundaries.__getitem__),
    )


def _along(figures: Figures, metric: str, name: str) -> dict[int, float]:
    return {n: figures[f"{metric}, {name}, {n} clients"].ours for n in CLIENTS}


def published_beside(figures: Figures) -> list[Cell]:
    """Return the paper's row for Reddit, beside the largest graph."""
    name = _there(figures)[-1]
    return [
        Cell(
            name=f"gamma, {kind}, {COMPARED}, {clients} clients",
            unit="times",
            published=value,
            ours=figures[f"{GAMMA_NAME}, {name}, {clients} clients"].ours,
            how=f"{name}, by equation 2",
        )
        for clients in CLIENTS
        for kind, value in GAMMA[COMPARED, clients]._asdict().items()
    ]


def pictures(figures: Figures) -> list[Draw]:
    """Return what draws gamma over the number of clients."""
    return [partial(_draw, figures)]


def _draw(figures: Figures, axes: Axes) -> None:
    for number, name in enumerate(_there(figures)):
        metrics = {float(n): f"{GAMMA_NAME}, {name}, {n} clients" for n in CLIENTS}
        draw_line(axes, figures, metrics, marker="o", color=COLORS[number], label=name)
    paper = [GAMMA[COMPARED, clients].theoretical for clients in CLIENTS]
    axes.plot(CLIENTS, paper, "x--", color="black", label="Reddit, published")
    axes.set_yscale("log")
    axes.set_xlabel("clients")
    axes.set_ylabel("gamma by equation 2")
    put_legend_below(axes)
