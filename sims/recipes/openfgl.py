"""The protocol of OpenFGL: ten clients by communities, and what edges between them are worth.

Its federated averaging ignores edges between clients and takes three local epochs a round; its
score is that of each client's own model on its own nodes. Beside it stand the global model's score,
one local step instead of three (which tells the clients' drift from the lost edges), and lazy
training, which keeps the edges. Random parts, where nine of ten edges are cut, stand beside the
communities.

Two things differ from OpenFGL: clients are weighted by their train nodes, where it takes all of
their nodes, and local optimizers start afresh in each round.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any, Final

from sims.catalogue import Setting
from sims.charts import draw_bars, focus
from sims.local_scores import LOCAL_ACCURACY, train_with_local_scores
from sims.outcome import Axes, Check, Draw, Figures, Outcome, Row
from sims.paper import at_hand, described
from sims.published import OPENFGL_CENTRAL, OPENFGL_LOCAL
from sims.splits import OPENFGL, OPENFGL_CLIENTS
from sims.sweep import ACCURACY, Column, Place, Sweep
from sims.training import train_whole
from sims.trainings import Keys
from sims.variants import DROP, LAZY, Variant

PURPOSE: Final = "drop, lazy and central training under OpenFGL's protocol"

DATASETS: Final = ("cora", "citeseer", "pubmed")
PARTITIONERS: Final = ("louvain", "metis", "random")
LOCAL_EPOCHS: Final = 3
SETTINGS: Final[Mapping[str, Any]] = {
    "clients": OPENFGL_CLIENTS,
    "split": OPENFGL,
    "model": "gcn",
    "layers": 2,
    "hidden": 64,
    "rounds": 100,
    "learning-rate": 0.01,
    "local-optimizer": "adam",
    "local-learning-rate": 0.01,
    "dropout": 0.5,
    "weight-decay": 5e-4,
}
AVERAGED: Final = f"drop, {LOCAL_EPOCHS} steps"
VARIANTS: Final[Mapping[str, Variant]] = {
    AVERAGED: {**DROP, "local-steps": LOCAL_EPOCHS},
    "drop, 1 step": DROP,
    f"lazy, {LOCAL_EPOCHS} steps": {**LAZY, "local-steps": LOCAL_EPOCHS},
    "lazy, 1 step": LAZY,
    "central": {"algorithm": "central", "clients": 1},
}
SEEDS: Final = (0, 1)
QUICK: Final[Mapping[str, Any]] = {"rounds": 20, "hidden": 16, "learning-rate": 0.05}
#: What lazy training with one step may lose against central training; with few rounds.
ALLOWED: Final = 0.01
ALLOWED_QUICK: Final = 0.03
#: How far the local score may be from OpenFGL's.
LOCAL_ALLOWED: Final = 0.02


SCORE: Final = ACCURACY._replace(metric="global score")
MOVED: Final = Column("moved", "MB", lambda trained: trained.bytes() / 1e6)
LOCAL: Final = Column("local score", "share", lambda trained: float(trained.result[LOCAL_ACCURACY]))


def run(setting: Setting) -> Outcome:
    """Train every variant on every graph and partitioner."""
    datasets = at_hand(setting, setting.few(DATASETS))
    places = list(product(datasets, PARTITIONERS, VARIANTS))
    sweep = Sweep(setting, SEEDS)
    for wanted, how in ((True, train_with_local_scores), (False, train_whole)):
        sweep.train(
            {at: _keys(setting, *at) for at in places if (at[-1] == AVERAGED) is wanted}, how
        )
    return Outcome(
        title="OpenFGL's protocol: ten clients, GCN, edges between clients dropped and kept",
        setting=described(
            setting,
            SETTINGS,
            sweep,
            reference="local score: OpenFGL 1.1.0 (Cora, Citeseer by Louvain, Cora by METIS) and "
            "TopFGL, table III; central: PyTorch Geometric; the others: central, ours",
            split_of_central="the masks of the ten clients",
        ),
        rows=[row for place in places for row in _rows(sweep, place)],
    )


def _keys(setting: Setting, dataset: str, partitioner: str, variant: str) -> Keys:
    keys: dict[str, Any] = {
        **SETTINGS,
        "dataset": dataset,
        "data-dir": setting.folder_with(dataset),
        "partitioner": partitioner,
        **VARIANTS[variant],
    }
    if variant == "central":
        keys |= {"partitioner": "random", "split": f"sims.splits:openfgl_{partitioner}"}
    return {**keys, **QUICK} if setting.quick else keys


def _rows(sweep: Sweep, place: Place) -> list[Row]:
    dataset, partitioner, variant = place
    score = sweep.row(place, SCORE, (dataset, partitioner, "central"))
    if variant == "central":
        score = replace(score, reference=OPENFGL_CENTRAL.get((dataset, partitioner)))
    rows = [score, sweep.row(place, MOVED)]
    if variant != AVERAGED:
        return rows
    local = sweep.row(place, LOCAL)
    return [*rows, replace(local, reference=OPENFGL_LOCAL.get((dataset, partitioner)))]


def checks_from(figures: Figures, *, quick: bool) -> list[Check]:
    """Return the lines that must hold."""
    allowed = ALLOWED_QUICK if quick else ALLOWED
    lines = [line for name in _there(figures) for line in _dataset_checks(figures, name, allowed)]
    return lines if quick else [*lines, *_local_checks(figures)]


def _there(figures: Figures) -> list[str]:
    return [name for name in DATASETS if f"global score, {name}, random, central" in figures]


def _dataset_checks(figures: Figures, dataset: str, allowed: float) -> list[Check]:
    def score(partitioner: str, variant: str) -> float:
        return figures[f"global score, {dataset}, {partitioner}, {variant}"].ours

    def moved(partitioner: str, variant: str) -> float:
        return figures[f"moved, {dataset}, {partitioner}, {variant}"].ours

    least = min(score(one, "lazy, 1 step") - score(one, "central") for one in PARTITIONERS)
    lazy, drop = score("random", "lazy, 1 step"), score("random", "drop, 1 step")
    return [
        Check(
            line=f"{dataset}: with one step lazy training is at most {allowed:g} less accurate "
            f"than central training, by any partitioner (least: {least:+.4f})",
            holds=least >= -allowed,
        ),
        Check(
            line=f"{dataset}: on random parts, dropping the edges between clients costs accuracy "
            f"({drop:.4f}, lazy {lazy:.4f})",
            holds=drop < lazy,
        ),
        Check(
            line=f"{dataset}: lazy training moves more than dropping edges, by any partitioner",
            holds=all(
                moved(one, "lazy, 1 step") > moved(one, "drop, 1 step") for one in PARTITIONERS
            ),
        ),
    ]


def _local_checks(figures: Figures) -> list[Check]:
    checks = []
    for (dataset, partitioner), published in OPENFGL_LOCAL.items():
        row = figures.get(f"local score, {dataset}, {partitioner}, {AVERAGED}")
        if row is not None:
            checks.append(
                Check(
                    line=f"{dataset}, {partitioner}: the local score {row.ours:.4f} is at most "
                    f"{LOCAL_ALLOWED:g} off the published {published:g}",
                    holds=abs(row.ours - published) <= LOCAL_ALLOWED,
                )
            )
    return checks


def pictures(figures: Figures) -> list[Draw]:
    """Return what draws the global scores of each graph."""
    return [partial(_draw, figures, dataset) for dataset in _there(figures)]


def _draw(figures: Figures, dataset: str, axes: Axes) -> None:
    series = {
        variant: [
            figures[f"global score, {dataset}, {partitioner}, {variant}"].values
            for partitioner in PARTITIONERS
        ]
        for variant in VARIANTS
    }
    draw_bars(axes, PARTITIONERS, series)
    focus(axes, [value for groups in series.values() for values in groups for value in values])
    axes.set_title(dataset, fontsize=9)
    axes.set_ylabel("global test accuracy (dots: seeds)")
