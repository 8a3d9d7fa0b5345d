"""Lean training against the paper's schedule: accuracy, bytes and seconds.

The schedule: 100 rounds of Adam for each layer, nothing coded. Lean: ``--profile lean`` as it fits
itself to each graph, over random clients and over Louvain's; the schedule trains the same weights
over both. One-shot: ``--profile one-shot``. On Cora also lean training by two clients, and what
others do: end-to-end training with sampled boundary nodes, or with edges between clients dropped,
and federated averaging of five local steps without those edges.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from retexo_fl.client.preparation import graph_facts, make_parts
from retexo_fl.config import Scalar, make_config
from retexo_fl.config.profiles import PROFILES, fitted_values
from sims.catalogue import Setting
from sims.charts import draw_measured
from sims.outcome import Axes, Check, Draw, Figures, Outcome
from sims.sweep import ACCURACY, MOVED, Column, Sweep

PURPOSE: Final = "lean training against the paper's schedule: accuracy, bytes, seconds"

SETTINGS: Final[Mapping[str, Scalar]] = {
    "clients": 10,
    "partitioner": "random",
    "split": "random-unstratified:0.2/0.1/0.7",
    "hidden": 256,
}
#: Of each case.
SEEDS: Final = (0, 1, 2, 3, 4)
GRAPHS: Final = (
    "cora",
    "citeseer",
    "pubmed",
    "facebook_page_page",
    "github",
    "tolokers",
    "amazon_computers",
    "fb100_berkeley13",
    "coauthor_physics",
    "fb100_union8",
    "digits",
    "synthetic",
    "words",
)

#: By graph that is made, its data set.
MADE: Final = {
    "digits": "digits",
    "synthetic": "synthetic",
    "words": "synthetic:nodes=5000,edges=170000,classes=6,features=8000,homophily=0.4,words=70,"
    "signal=0.1",
}
MODELS: Final = ("gcn", "sage")
ALLOWED: Final = -0.005
#: By graph, model and way, the most MB of all clients together.
MOST_MB: Final = {
    ("cora", "gcn", "lean"): 2.5,
    ("cora", "sage", "lean, two clients"): 2 * 0.6,
    ("cora", "gcn", "one-shot"): 0.8,
    ("pubmed", "gcn", "lean"): 12.0,
    ("github", "gcn", "lean"): 35.0,
}
#: How many times fewer bytes on Cora, at least.
LEAST_SAVED: Final = 1000.0
WAYS: Final[Mapping[str, Mapping[str, Scalar]]] = {
    "retexo": {"rounds": 100},
    "lean": PROFILES["lean"],
    "lean, louvain": {**PROFILES["lean"], "partitioner": "louvain"},
    "one-shot": PROFILES["one-shot"],
    "lean, two clients": {**PROFILES["lean"], "clients": 2},
    "bns": {"rounds": 100, "algorithm": "bns"},
    "drop": {"rounds": 100, "algorithm": "drop"},
    "fedavg": {"rounds": 20, "algorithm": "drop", "local-steps": 5},
}
#: Those that are tried on every graph; one-shot is on some.
EVERYWHERE: Final = ("retexo", "lean", "lean, louvain")
SOLVED: Final = ("cora", "citeseer", "pubmed", "facebook_page_page", "github", "tolokers")
#: Those that must be as accurate as the schedule.
AS_ACCURATE: Final = ("lean", "lean, louvain")
#: All ways are tried here.
COMPARED: Final = "cora"
COLORS: Final = {
    "retexo": "#4c78a8",
    "lean": "#54a24b",
    "lean, louvain": "#b279a2",
    "one-shot": "#9d755d",
    "bns": "#f58518",
    "drop": "#e45756",
    "fedavg": "#72b7b2",
}
MARKERS: Final = {"gcn": "o", "sage": "s"}


COLUMNS: Final = (
    ACCURACY,
    MOVED,
    Column("time in one process", "s", lambda trained: trained.wall_s),
)


def run(setting: Setting) -> Outcome:
    """Train every case with every seed."""
    graphs = (COMPARED,) if setting.quick else GRAPHS
    fitted = {graph: _fitted(setting, graph) for graph in graphs}
    sweep = Sweep(setting, SEEDS)
    sweep.train(
        {
            (graph, model, way): {
                **SETTINGS,
                **keys,
                **_place(setting, graph),
                "model": model,
                **(fitted[graph] if way.startswith("lean") else {}),
                **({"rounds": 2, "hidden": 16} if setting.quick else {}),
            }
            for graph in graphs
            for model in MODELS
            for way, keys in WAYS.items()
            if way in EVERYWHERE or graph == COMPARED or (way == "one-shot" and graph in SOLVED)
        }
    )
    return Outcome(
        title="Lean training against 100 rounds of Adam for each layer",
        setting={
            **SETTINGS,
            **{way: dict(keys) for way, keys in WAYS.items()},
            **{f"lean, {graph}": dict(keys) for graph, keys in fitted.items()},
            "seeds": len(sweep.seeds),
            "reference": "retexo, the same seeds",
        },
        rows=sweep.rows(COLUMNS, last="retexo"),
    )


def _place(setting: Setting, graph: str) -> dict[str, Scalar]:
    if graph in MADE:
        return {"dataset": MADE[graph]}
    return {"dataset": graph, "data-dir": setting.folder_with(graph)}


def _fitted(setting: Setting, graph: str) -> Mapping[str, Scalar]:
    """Return what the profile takes of a graph."""
    parts = make_parts(make_config({**SETTINGS, **_place(setting, graph)}))
    return fitted_values("lean", graph_facts(parts), takes_sums=True, is_linear=True)


def checks_from(figures: Figures, *, quick: bool) -> list[Check]:
    """Return the lines that must hold."""
    if quick:
        saved = _saved(figures, COMPARED, "gcn")
        return [Check(line=f"lean moves fewer bytes ({saved:.0f} times)", holds=saved > 1)]
    lost = {
        (graph, model, way): _difference(figures, graph, model, way)
        for graph in GRAPHS
        for model in MODELS
        for way in AS_ACCURATE
    }
    moved = {case: figures[f"moved, {', '.join(case)}"].ours for case in MOST_MB}
    saved = _saved(figures, COMPARED, "gcn")
    slower = {
        (graph, model): _ratio(figures, "time in one process", graph, model)
        for graph in GRAPHS
        for model in MODELS
    }
    return [
        *(
            Check(
                line=f"{graph}, {model}: {way} is at most {-ALLOWED:g} less accurate "
                f"({value:+.4f})",
                holds=value >= ALLOWED,
            )
            for (graph, model, way), value in lost.items()
        ),
        *(
            Check(
                line=f"{', '.join(case)}: at most {MOST_MB[case]:g} MB ({value:.2f})",
                holds=value <= MOST_MB[case],
            )
            for case, value in moved.items()
        ),
        Check(
            line=f"{COMPARED}, gcn: at least {LEAST_SAVED:g} times fewer bytes ({saved:.0f})",
            holds=saved >= LEAST_SAVED,
        ),
        Check(
            line=f"lean takes no longer anywhere (at most {max(slower.values()):.2f} of the time)",
            holds=max(slower.values()) <= 1,
        ),
    ]


def _difference(figures: Figures, graph: str, model: str, way: str) -> float:
    row = figures[f"test accuracy, {graph}, {model}, {way}"]
    assert row.reference is not None
    return row.ours - row.reference


def _ratio(figures: Figures, what: str, graph: str, model: str) -> float:
    row = figures[f"{what}, {graph}, {model}, lean"]
    assert row.reference is not None
    return row.ours / row.reference


def _saved(figures: Figures, graph: str, model: str) -> float:
    return 1 / _ratio(figures, "moved", graph, model)


def pictures(figures: Figures) -> list[Draw]:
    """Return what draws accuracy over bytes on the graph where all ways are tried."""
    return [partial(_draw, figures)]


def _draw(figures: Figures, axes: Axes) -> None:
    for way, color in COLORS.items():
        for model, marker in MARKERS.items():
            case = f"{COMPARED}, {model}, {way}"
            label = f"{way}, {model}"
            draw_measured(axes, figures, case, marker=marker, color=color, label=label)
    axes.set_xscale("log")
    axes.set_xlabel("MB moved, all kinds")
    axes.set_ylabel("test accuracy on Cora, mean of seeds")
    axes.legend(fontsize=7, ncols=2, loc="lower left")
