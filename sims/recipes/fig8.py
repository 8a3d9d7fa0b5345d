"""RETEXO, figure 8: what more clients do to accuracy and to the bytes of each of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import product
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sims.catalogue import Setting
from sims.charts import ALGORITHM_COLORS, focus, put_legend_below
from sims.outcome import Check, Figures, Outcome, Row, figures_of
from sims.paper import SMALL, at_hand, described, keys_for
from sims.published import NOT_AT_HAND
from sims.trained import Trained
from sims.trainings import Trainings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PURPOSE: Final = "accuracy and bytes with 2 to 24 clients: RETEXO, figure 8"

DATASETS: Final = ("cora",)
MODEL: Final = "sage"
CLIENTS: Final = (2, 4, 6, 8, 16, 24)
QUICK_CLIENTS: Final = (2, 4)
ALGORITHMS: Final = ("lazy", "standard")
MARKERS: Final = ("o", "s")
SEEDS: Final = (0, 1)
#: What lazy training may lose against standard training; with few rounds and narrow layers.
ALLOWED: Final = 0.01
ALLOWED_QUICK: Final = 0.03
#: By how much any number of clients may differ in accuracy: sums are taken in other orders.
SAME: Final = 0.005
#: By how much measured gamma may differ from equation 2.
GAMMA_ALLOWED: Final = 0.005


class Case(NamedTuple):
    """One training."""

    dataset: str
    algorithm: str
    clients: int
    seed: int


#: Trainings of all seeds by graph, algorithm and number of clients.
Lines = Mapping[tuple[str, str, int], list[Trained]]


def run(setting: Setting) -> Outcome:
    """Train both algorithms with every number of clients."""
    datasets = at_hand(setting, DATASETS[:1] if setting.quick else DATASETS)
    seeds = SEEDS[:1] if setting.quick else SEEDS
    numbers = QUICK_CLIENTS if setting.quick else CLIENTS
    trainings = Trainings(setting.kept)
    cases = [Case(*values) for values in product(datasets, ALGORITHMS, numbers, seeds)]
    found = trainings.all({case: _keys(setting, case) for case in cases})
    lines = {
        place: [found[Case(*place, seed)] for seed in seeds]
        for place in product(datasets, ALGORITHMS, numbers)
    }
    rows = _rows(lines)
    return Outcome(
        title=f"RETEXO, figure 8: accuracy and bytes with more clients, {MODEL}",
        setting=described(
            setting,
            {**SMALL, "model": MODEL, "clients": "2 to 24"},
            seeds,
            trainings,
            reference="accuracy and bytes: standard training of ours; gamma: equation 2",
            volume="payload that a client sends and receives, on average over clients",
            published=NOT_AT_HAND["fig8"],
        ),
        rows=rows,
        checks=tuple(checks_from(figures_of(rows), quick=setting.quick)),
        draw=lambda axes: _draw_accuracy(axes, lines),
        beside=(lambda axes: _draw_bytes(axes, lines),),
    )


def _keys(setting: Setting, case: Case) -> dict[str, Any]:
    keys = keys_for(setting, case.dataset, model=MODEL, algorithm=case.algorithm)
    return {**keys, "clients": case.clients, "seed": case.seed}


def _per_client(trained: list[Trained]) -> list[float]:
    """Return MB that a client sends and receives, for each seed."""
    return [one.at_clients() / one.clients / 1e6 for one in trained]


def _rows(lines: Lines) -> list[Row]:
    rows = []
    for (dataset, algorithm, clients), ours in lines.items():
        standard = lines[dataset, "standard", clients]
        name = f"{dataset}, {clients} clients, {algorithm}"
        rows += [
            Row.of(
                f"test accuracy, {name}",
                [one.accuracy for one in ours],
                unit="share",
                reference=fmean(one.accuracy for one in standard),
            ),
            Row.of(
                f"bytes at a client, {name}",
                _per_client(ours),
                unit="MB",
                reference=fmean(_per_client(standard)),
            ),
        ]
        if algorithm == "lazy":
            rows += _explaining_rows(f"{dataset}, {clients} clients", ours)
            rows.append(_gamma(f"{dataset}, {clients} clients", ours, standard))
    return rows


def _explaining_rows(name: str, lazy: list[Trained]) -> list[Row]:
    """Return what gamma follows from: the boundary of a client, and how much the model weighs."""
    return [
        Row.of(
            f"B, boundary nodes of a client, {name}",
            [one.vectors / one.clients for one in lazy],
            unit="nodes",
        ),
        Row.of(
            f"weights and updates of lazy's dense bytes, {name}",
            [one.model("raw") / one.at_clients("raw") for one in lazy],
            unit="share",
        ),
    ]


def _gamma(name: str, lazy: list[Trained], standard: list[Trained]) -> Row:
    pairs = zip(standard, lazy, strict=True)
    return Row.of(
        f"gamma, dense bytes, {name}",
        [one.at_clients("raw") / other.at_clients("raw") for one, other in pairs],
        unit="times",
        reference=fmean(float(one.result["plan"]["gamma"]) for one in lazy),
    )


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


def _draw_accuracy(axes: Axes, lines: Lines) -> None:
    _draw(axes, lines, lambda ours: [one.accuracy for one in ours])
    focus(axes, [one.accuracy for ours in lines.values() for one in ours])
    axes.set_ylabel("test accuracy, mean of seeds")
    put_legend_below(axes)


def _draw_bytes(axes: Axes, lines: Lines) -> None:
    _draw(axes, lines, _per_client)
    axes.set_yscale("log")
    axes.set_ylabel("MB sent and received at a client")


def _draw(axes: Axes, lines: Lines, values: Any) -> None:
    datasets = sorted({dataset for dataset, _, _ in lines})
    for (dataset, marker), algorithm in product(zip(datasets, MARKERS, strict=False), ALGORITHMS):
        points = [
            (clients, fmean(values(ours)))
            for (of, by, clients), ours in lines.items()
            if (of, by) == (dataset, algorithm)
        ]
        axes.plot(
            *zip(*points, strict=True),
            marker=marker,
            color=ALGORITHM_COLORS[algorithm],
            label=f"{dataset}, {algorithm}",
        )
    axes.set_xlabel("clients")
