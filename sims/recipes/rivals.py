"""Ten clients by the protocols of FedGCN, OpenFGL and TopFGL, beside their published figures.

FedGCN, as FedGraph measures it: the public split, classes shared out by a Dirichlet distribution,
from nearly even (BETA 10000) to uneven (10). OpenFGL: Louvain's communities and 20, 40 and 40 % of
each class of each client. TopFGL: METIS, and 20, 40 and 40 % of all nodes.

Ours are lean training, one-shot and the paper's schedule, with the defaults of each profile. Beside
them federated averaging, which drops the edges between clients, and each client alone. The score is
the share of all clients' test nodes that is right: of one model for all, and of clients alone that
of each one's own. OpenFGL and TopFGL score clients' own models after their local steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from retexo_fl.client.preparation import graph_facts, make_parts
from retexo_fl.config import Scalar, make_config
from retexo_fl.config.profiles import PROFILES, fitted_values
from sims.alone import train_alone
from sims.catalogue import Setting
from sims.charts import draw_measured
from sims.outcome import Axes, Cell, Check, Draw, Figures, Outcome, Row
from sims.paper import at_hand
from sims.published import FEDC4, FEDGRAPH, OPENFGL_LOCAL, OPENFGL_MB, TOPFGL
from sims.splits import OPENFGL, OPENFGL_CLIENTS
from sims.sweep import ACCURACY, MOVED, Place, Sweep
from sims.training import train_whole

PURPOSE: Final = "the protocols of FedGCN, OpenFGL and TopFGL: accuracy and bytes beside theirs"

DATASETS: Final = ("cora", "citeseer", "pubmed")
SETTINGS: Final[Mapping[str, Scalar]] = {
    "clients": OPENFGL_CLIENTS,
    "model": "gcn",
    "layers": 2,
    "hidden": 64,
}
#: By name, how nodes are given to clients and uses. OpenFGL's on Louvain's communities; TopFGL's.
PROTOCOLS: Final[Mapping[str, Mapping[str, Scalar]]] = {
    "dirichlet 10000": {"partitioner": "dirichlet:10000", "split": "published"},
    "dirichlet 10": {"partitioner": "dirichlet:10", "split": "published"},
    "louvain": {"partitioner": "louvain", "split": OPENFGL},
    "metis": {"partitioner": "metis", "split": "random-unstratified:0.2/0.4/0.4"},
}
#: Those that FedGraph publishes; its model is smaller and trains for longer.
DIRICHLET: Final = ("dirichlet 10000", "dirichlet 10")
_FEDGRAPH_KEYS: Final[Mapping[str, Scalar]] = {"hidden": 16, "rounds": 200}
#: OpenFGL's: three epochs of Adam between averages.
FEDAVG_KEYS: Final[Mapping[str, Scalar]] = {
    "algorithm": "drop",
    "rounds": 100,
    "local-steps": 3,
    "local-optimizer": "adam",
    "local-learning-rate": 0.01,
    "dropout": 0.5,
    "weight-decay": 5e-4,
}
LEAN, ONE_SHOT, RETEXO, FEDAVG, ALONE = "lean", "one-shot", "retexo", "fedavg", "alone"
OURS: Final = (LEAN, ONE_SHOT, RETEXO)
WAYS: Final[Mapping[str, Mapping[str, Scalar]]] = {
    LEAN: PROFILES["lean"],
    ONE_SHOT: PROFILES["one-shot"],
    RETEXO: {"rounds": 100, **PROFILES["retexo"]},
    FEDAVG: FEDAVG_KEYS,
    ALONE: FEDAVG_KEYS,
}
#: Where a setting is also chosen on validation nodes, and among which: a way and more keys.
CHOSEN: Final = "chosen"
CHOSEN_AT: Final = "metis"
CANDIDATES: Final[Mapping[str, tuple[str, Mapping[str, Scalar]]]] = {
    LEAN: (LEAN, {}),
    "lean, hidden 256": (LEAN, {"hidden": 256}),
    "lean, 16 blocks": (LEAN, {"basis-blocks": 16}),
    "lean, 32 blocks": (LEAN, {"basis-blocks": 32}),
    ONE_SHOT: (ONE_SHOT, {}),
    "one-shot, 8 blocks": (ONE_SHOT, {"basis-blocks": 8}),
}
SEEDS: Final = (0, 1, 2, 3, 4)
TAKES_SEEDS: Final = True
QUICK: Final[Mapping[str, Scalar]] = {"rounds": 5, "hidden": 16}
#: Of lean training and one-shot, the most MB on each graph.
MOST_MB: Final[Mapping[str, float]] = {"cora": 2.0, "citeseer": 3.0, "pubmed": 20.0}
#: How many times the bytes of lean training FedGCN publishes, at least, by graph.
LEAST_SAVED: Final[Mapping[str, float]] = {"cora": 300.0, "citeseer": 500.0, "pubmed": 30.0}
#: What the setting that validation chooses may lose against the best published figure.
ALLOWED: Final = 0.01
_MIB: Final = 2**20 / 1e6

COLORS: Final = {
    LEAN: "#54a24b",
    ONE_SHOT: "#9d755d",
    RETEXO: "#4c78a8",
    FEDAVG: "#72b7b2",
}
MARKERS: Final = ("o", "v", "s", "D")


def run(setting: Setting) -> Outcome:
    """Train every way on every graph and protocol."""
    graphs = at_hand(setting, setting.few(DATASETS))
    places: list[Place] = [
        (graph, protocol, way) for graph in graphs for protocol in PROTOCOLS for way in WAYS
    ]
    sweep = Sweep(setting, SEEDS)
    keys = {at: _keys(setting, *at) for at in places}
    sweep.train({at: keys[at] for at in places if at[-1] in OURS})
    chosen = [row for graph in graphs for row in _chosen(setting, graph)]
    for way, how in ((FEDAVG, train_whole), (ALONE, train_alone)):
        sweep.train({at: keys[at] for at in places if at[-1] == way}, how)
    rows = [
        sweep.row(at, column, (*at[:-1], LEAN)) for at in places for column in (ACCURACY, MOVED)
    ]
    return Outcome(
        title="Ten clients by the protocols of FedGCN, OpenFGL and TopFGL",
        setting={
            **SETTINGS,
            **{f"protocol {name}": dict(keys) for name, keys in PROTOCOLS.items()},
            **{name: dict(PROFILES[name]) for name in OURS},
            **{f"lean, {at[0]}, {at[1]}": fitted for at, fitted in _told(setting, places)},
            "fedavg, alone": dict(FEDAVG_KEYS),
            "fedavg, alone, dirichlet": dict(_FEDGRAPH_KEYS),
            "chosen": f"on {CHOSEN_AT}, by each seed's validation nodes, of "
            f"{'; '.join(CANDIDATES)}; its bytes are those of all",
            "seeds": list(sweep.seeds),
            "trained at commit": sweep.commits,
            "reference": "lean, the mean of its seeds",
            "score": "test nodes of all clients, by one model; alone: each client's by its own",
        },
        rows=[*rows, *chosen],
    )


def _chosen(setting: Setting, graph: str) -> list[Row]:
    """Return what comes of the setting that each seed's validation nodes prefer."""
    sweep = Sweep(replace(setting, written=None), SEEDS)
    if written := _written(setting, sweep, graph):
        return written
    places = {name: (graph, CHOSEN_AT, name) for name in CANDIDATES}
    sweep.train(
        {
            places[name]: {**_keys(setting, graph, CHOSEN_AT, way), **more}
            for name, (way, more) in CANDIDATES.items()
        }
    )
    validation = {
        name: sweep.values(at, lambda trained: float(trained.result["val_accuracy"]))
        for name, at in places.items()
    }
    accuracy, moved = (
        {name: sweep.values(at, column.value) for name, at in places.items()}
        for column in (ACCURACY, MOVED)
    )
    seeds = range(len(sweep.seeds))
    best = [max(CANDIDATES, key=lambda name: validation[name][seed]) for seed in seeds]
    values = {
        ACCURACY: [accuracy[name][seed] for seed, name in zip(seeds, best, strict=True)],
        MOVED: [sum(moved[name][seed] for name in CANDIDATES) for seed in seeds],
    }
    return [
        Row.of(
            f"{column.metric}, {graph}, {CHOSEN_AT}, {CHOSEN}",
            found,
            unit=column.unit,
            reference=sweep.mean(places[LEAN], column.value),
        )
        for column, found in values.items()
    ]


def _written(setting: Setting, sweep: Sweep, graph: str) -> list[Row]:
    """Return the rows that a written result has of all seeds: a choice cannot be added to."""
    figures = {} if setting.written is None else setting.written.figures
    names = [f"{column.metric}, {graph}, {CHOSEN_AT}, {CHOSEN}" for column in (ACCURACY, MOVED)]
    rows = [figures[name] for name in names if name in figures]
    return rows if all(len(row.values) == len(sweep.seeds) for row in rows) else []


def _keys(setting: Setting, graph: str, protocol: str, way: str) -> dict[str, Scalar]:
    keys = {
        **SETTINGS,
        "dataset": graph,
        "data-dir": setting.folder_with(graph),
        **PROTOCOLS[protocol],
        **WAYS[way],
    }
    if way == LEAN:
        keys |= _fitted(keys)
    if way not in OURS and protocol in DIRICHLET:
        keys |= _FEDGRAPH_KEYS
    if setting.quick:
        keys |= QUICK
    return keys


def _fitted(keys: Mapping[str, Scalar]) -> Mapping[str, Scalar]:
    """Return what the profile takes of a graph, as ``retexo run`` does."""
    parts = make_parts(make_config(keys), quiet=True)
    return fitted_values("lean", graph_facts(parts), takes_sums=True, is_linear=True)


def _told(setting: Setting, places: list[Place]) -> Iterator[tuple[Place, dict[str, Scalar]]]:
    for graph, protocol, way in places:
        if way == LEAN:
            keys = _keys(setting, graph, protocol, way)
            own = {key: value for key, value in keys.items() if key in PROFILES["lean"]}
            more = {"basis-rows", "weight-decay"} & keys.keys()
            yield (
                (graph, protocol, way),
                {
                    **{key: value for key, value in own.items() if value != PROFILES["lean"][key]},
                    **{key: keys[key] for key in sorted(more)},
                },
            )


def checks_from(figures: Figures, *, quick: bool) -> list[Check]:
    """Return the lines that must hold."""
    if quick:
        lean, fedavg = (figures[f"moved, cora, louvain, {way}"].ours for way in (LEAN, FEDAVG))
        return [
            Check(
                line=f"cora, louvain: lean moves fewer MB than FedAvg ({lean:.2f}, {fedavg:.2f})",
                holds=lean < fedavg,
            )
        ]
    return [line for graph in DATASETS for line in _lines(figures, graph)]


def _lines(figures: Figures, graph: str) -> list[Check]:
    def score(protocol: str, way: str) -> float:
        return figures[f"test accuracy, {graph}, {protocol}, {way}"].ours

    def moved(protocol: str, way: str) -> float:
        return figures[f"moved, {graph}, {protocol}, {way}"].ours

    lines = []
    for protocol in DIRICHLET:
        fedgcn = FEDGRAPH[graph, protocol.split()[-1], "FedGCN"]
        assert fedgcn.mib is not None
        times = fedgcn.mib * _MIB / moved(protocol, LEAN)
        lines += [
            Check(
                line=f"{graph}, {protocol}: lean is at least as accurate as FedGCN publishes "
                f"({score(protocol, LEAN):.4f}, {fedgcn.accuracy:g})",
                holds=score(protocol, LEAN) >= fedgcn.accuracy,
            ),
            Check(
                line=f"{graph}, {protocol}: lean moves at least {LEAST_SAVED[graph]:g} times fewer "
                f"bytes than FedGCN publishes ({times:.0f})",
                holds=times >= LEAST_SAVED[graph],
            ),
        ]
    for protocol in PROTOCOLS:
        most = max(moved(protocol, way) for way in (LEAN, ONE_SHOT))
        lines.append(
            Check(
                line=f"{graph}, {protocol}: lean and one-shot move at most {MOST_MB[graph]:g} MB "
                f"({most:.2f})",
                holds=most <= MOST_MB[graph],
            )
        )
        for way in (FEDAVG, ALONE):
            lines.append(
                Check(
                    line=f"{graph}, {protocol}: lean is more accurate than {way} "
                    f"({score(protocol, LEAN):.4f}, {score(protocol, way):.4f})",
                    holds=score(protocol, LEAN) > score(protocol, way),
                )
            )
    chosen, theirs = score(CHOSEN_AT, CHOSEN), TOPFGL[graph, "TopFGL"]
    lines.append(
        Check(
            line=f"{graph}, metis: what validation chooses is at most {ALLOWED:g} less accurate "
            f"than TopFGL publishes ({chosen:.4f}, {theirs:g})",
            holds=chosen >= theirs - ALLOWED,
        )
    )
    return lines


def published_beside(figures: Figures) -> list[Cell]:
    """Return every published figure, beside lean training and one-shot."""

    def cell(name: str, unit: str, published: float, place: str, scale: float = 1.0) -> Cell:
        lean, one_shot = (figures.get(f"{name}, {place}, {way}") for way in (LEAN, ONE_SHOT))
        return Cell(
            name=f"{name}, {place}",
            unit=unit,
            published=published,
            ours=None if lean is None else lean.ours / scale,
            how="" if one_shot is None else f"lean; one-shot {one_shot.ours / scale:.4f}",
        )

    def named(found: Cell, method: str) -> Cell:
        return Cell(
            name=f"{found.name}, {method}",
            unit=found.unit,
            published=found.published,
            ours=found.ours,
            how=found.how,
        )

    cells = []
    for (graph, beta, method), theirs in FEDGRAPH.items():
        place = f"{graph}, dirichlet {beta}"
        cells.append(named(cell("test accuracy", "share", theirs.accuracy, place), method))
        if theirs.mib is not None:
            cells.append(named(cell("moved", "MiB", theirs.mib, place, _MIB), method))
    for (graph, partitioner), accuracy in OPENFGL_LOCAL.items():
        if partitioner == "louvain":
            place = f"{graph}, louvain"
            cells.append(
                named(cell("test accuracy", "share", accuracy, place), "OpenFGL 1.1.0, run, FedAvg")
            )
            cells.append(
                named(cell("moved", "MB", OPENFGL_MB[graph], place), "OpenFGL 1.1.0, run, FedAvg")
            )
    for (graph, method), accuracy in TOPFGL.items():
        found = cell("test accuracy", "share", accuracy, f"{graph}, metis")
        cells.append(named(found, method))
    for graph, accuracy in FEDC4.items():
        cells.append(cell("test accuracy", "share", accuracy, f"{graph}, protocol not read, FedC4"))
    return cells


def pictures(figures: Figures) -> list[Draw]:
    """Return what draws accuracy over bytes on each graph."""
    there = [graph for graph in DATASETS if f"moved, {graph}, louvain, {LEAN}" in figures]
    return [partial(_draw, figures, graph) for graph in there]


def _draw(figures: Figures, graph: str, axes: Axes) -> None:
    for protocol, marker in zip(PROTOCOLS, MARKERS, strict=True):
        for way, color in COLORS.items():
            place = f"{graph}, {protocol}, {way}"
            if f"moved, {place}" in figures:
                label = f"{way}, {protocol}"
                draw_measured(axes, figures, place, marker=marker, color=color, label=label)
        if protocol in DIRICHLET:
            theirs = FEDGRAPH[graph, protocol.split()[-1], "FedGCN"]
            assert theirs.mib is not None
            axes.plot(
                theirs.mib * _MIB,
                theirs.accuracy,
                marker=marker,
                color="black",
                fillstyle="none",
                linestyle="none",
                label=f"FedGCN, {protocol}, published",
            )
    axes.axhline(
        TOPFGL[graph, "TopFGL"], color="black", linestyle=":", label="TopFGL, metis, published"
    )
    axes.set_xscale("log")
    axes.set_title(graph, fontsize=9)
    axes.set_xlabel("MB moved, all kinds")
    axes.set_ylabel("test accuracy, mean of seeds")
    axes.legend(fontsize=6, ncols=2, loc="lower left")
