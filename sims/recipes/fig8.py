"""RETEXO, figure 8: what more clients do to accuracy and to the bytes of each of them."""

from __future__ import annotations

import math
from functools import partial
from itertools import product
from statistics import fmean
from typing import Final

from sims.catalogue import Setting
from sims.charts import ALGORITHM_COLORS, draw_line, focus, put_legend_below
from sims.outcome import Axes, Check, Draw, Figures, Outcome, Row
from sims.paper import SMALL, at_hand, described, keys_for
from sims.published import NOT_AT_HAND
from sims.sweep import ACCURACY, Column, Place, Sweep

PURPOSE: Final = "accuracy and bytes with 2 to 24 clients: RETEXO, figure 8"

DATASETS: Final = ("cora",)
MODEL: Final = "sage"
CLIENTS: Final = (2, 4, 6, 8, 16, 24)
QUICK_CLIENTS: Final = (2, 4)
ALGORITHMS: Final = ("lazy", "standard")
SEEDS: Final = (0, 1)
#: What lazy training may lose against standard training; with few rounds and narrow layers.
ALLOWED: Final = 0.01
ALLOWED_QUICK: Final = 0.03
#: By how much any number of clients may differ in accuracy: sums are taken in other orders.
SAME: Final = 0.005
#: By how much measured gamma may differ from equation 2.
GAMMA_ALLOWED: Final = 0.005


MOVED: Final = "bytes at a client"
COLUMNS: Final = (
    ACCURACY,
    Column(MOVED, "MB", lambda trained: trained.at_clients() / trained.clients / 1e6),
)
#: What gamma follows from: the boundary of a client, and how much the model weighs.
EXPLAINING: Final = (
    Column(
        "B, boundary nodes of a client",
        "nodes",
        lambda trained: trained.vectors / trained.clients,
    ),
    Column(
        "weights and updates of lazy's dense bytes",
        "share",
        lambda trained: trained.model("raw") / trained.at_clients("raw"),
    ),
)


def run(setting: Setting) -> Outcome:
    """Train both algorithms with every number of clients."""
    numbers = QUICK_CLIENTS if setting.quick else CLIENTS
    sweep = Sweep(setting, SEEDS)
    sweep.train(
        {
            (dataset, f"{clients} clients", algorithm): keys_for(
                setting, dataset, MODEL, algorithm=algorithm, clients=clients
            )
            for dataset in at_hand(setting, setting.few(DATASETS))
            for algorithm, clients in product(ALGORITHMS, numbers)
        }
    )
    rows = []
    for place in sweep.found:
        rows += sweep.rows(COLUMNS, last="standard", places=[place])
        if place[-1] == "lazy":
            rows += _gamma_rows(sweep, place[:-1])
    return Outcome(
        title=f"RETEXO, figure 8: accuracy and bytes with more clients, {MODEL}",
        setting=described(
            setting,
            {**SMALL, "model": MODEL, "clients": "2 to 24"},
            sweep,
            reference="accuracy and bytes: standard training of ours; gamma: equation 2",
            volume="payload that a client sends and receives, on average over clients",
            published=NOT_AT_HAND["fig8"],
        ),
        rows=rows,
    )


def _gamma_rows(sweep: Sweep, place: Place) -> list[Row]:
    """Return measured gamma beside equation 2, and what it follows from."""
    lazy, standard = (sweep.found[*place, name] for name in ALGORITHMS)
    explaining = [
        Row.of(", ".join((column.metric, *place)), list(map(column.value, lazy)), unit=column.unit)
        for column in EXPLAINING
    ]
    gamma = Row.of(
        ", ".join(("gamma, dense bytes", *place)),
        [
            o.at_clients("raw") / one.at_clients("raw")
            for o, one in zip(standard, lazy, strict=True)
        ],
        unit="times",
        reference=fmean(float(one.result["plan"]["gamma"]) for one in lazy),
    )
    return [*explaining, gamma]


def checks_from(figures: Figures, *, quick: bool) -> list[Check]:
    """Return the lines that must hold."""
    numbers = QUICK_CLIENTS if quick else CLIENTS
    allowed = ALLOWED_QUICK if quick else ALLOWED
    there = [name for name in DATASETS if f"test accuracy, {name}, 2 clients, lazy" in figures]
    return [check for name in there for check in _dataset_checks(figures, name, numbers, allowed)]


def _dataset_checks(
    figures: Figures, dataset: str, numbers: tuple[int, ...], allowed: float
) -> list[Check]:
    def along(metric: str, ending: str = "") -> list[float]:
        return [figures[f"{metric}, {dataset}, {n} clients{ending}"].ours for n in numbers]

    lazy, standard = (along("test accuracy", f", {name}") for name in ALGORITHMS)
    moved = zip(*(along("bytes at a client", f", {name}") for name in ALGORITHMS), strict=True)
    gammas, boundaries = along("gamma, dense bytes"), along("B, boundary nodes of a client")
    predicted = [figures[f"gamma, dense bytes, {dataset}, {n} clients"].reference for n in numbers]
    most = max(
        abs(gamma / (form or math.nan) - 1) for gamma, form in zip(gammas, predicted, strict=True)
    )
    listed = ", ".join(f"{b:,.0f}: {g:.2f}" for b, g in zip(boundaries, gammas, strict=True))
    return [
        Check(
            line=f"{dataset}: with any number of clients lazy training is at most {allowed:g} less "
            f"accurate than standard training",
            holds=all(one >= other - allowed for one, other in zip(lazy, standard, strict=True)),
        ),
        Check(
            line=f"{dataset}: the number of clients changes neither accuracy by more than {SAME:g}",
            holds=max(max(each) - min(each) for each in (lazy, standard)) <= SAME,
        ),
        Check(
            line=f"{dataset}: with any number of clients a client moves less in lazy training",
            holds=all(one < other for one, other in moved),
        ),
        Check(
            line=f"{dataset}: measured gamma is at most {most:.4%} off equation 2 (allowed: "
            f"{GAMMA_ALLOWED:.1%})",
            holds=most <= GAMMA_ALLOWED,
        ),
        Check(
            line=f"{dataset}: gamma rises and falls with B, the boundary nodes of a client "
            f"({listed})",
            holds=_order(gammas) == _order(boundaries),
        ),
    ]


def _order(values: list[float]) -> list[int]:
    return sorted(range(len(values)), key=values.__getitem__)


def pictures(figures: Figures) -> list[Draw]:
    """Return what draws accuracies and bytes."""
    return [partial(_draw_accuracy, figures), partial(_draw_bytes, figures)]


def _draw_accuracy(figures: Figures, axes: Axes) -> None:
    rows = [row for metric, row in figures.items() if metric.startswith("test accuracy")]
    _draw(figures, "test accuracy", axes)
    focus(axes, [value for row in rows for value in row.values])
    axes.set_ylabel("test accuracy, mean of seeds")
    put_legend_below(axes)


def _draw_bytes(figures: Figures, axes: Axes) -> None:
    _draw(figures, MOVED, axes)
    axes.set_yscale("log")
    axes.set_ylabel("MB sent and received at a client")


def _draw(figures: Figures, metric: str, axes: Axes) -> None:
    for dataset, algorithm in product(DATASETS, ALGORITHMS):
        metrics = {float(n): f"{metric}, {dataset}, {n} clients, {algorithm}" for n in CLIENTS}
        color, label = ALGORITHM_COLORS[algorithm], f"{dataset}, {algorithm}"
        draw_line(axes, figures, metrics, marker="o", color=color, label=label)
    axes.set_xlabel("clients")
