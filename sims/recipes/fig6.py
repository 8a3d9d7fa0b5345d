"""RETEXO, figure 6: accuracy against the bytes that it took.

Each training gives one curve: validation accuracy after each round, over the bytes that clients
have sent and received until then. Layer by layer, the curve drops where the next layer begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import product
from typing import Final

from sims.catalogue import Setting
from sims.charts import COLORS
from sims.curves import accuracy_curve, bytes_until
from sims.outcome import Axes, Check, Figures, Outcome, Row
from sims.paper import SMALL, at_hand, described, keys_for
from sims.published import NOT_AT_HAND
from sims.sweep import ACCURACY, Column, Place, Sweep
from sims.variants import DROP, LAZY, STANDARD, Variant, bns

PURPOSE: Final = "accuracy against bytes moved, of four algorithms: RETEXO, figure 6"

DATASETS: Final = ("cora", "pubmed")
MODEL: Final = "sage"
VARIANTS: Final[Mapping[str, Variant]] = {
    "lazy": LAZY,
    "standard": STANDARD,
    "bns 0.1": bns(0.1),
    "bns 0.01": bns(0.01),
    "drop": DROP,
}
SEEDS: Final = (0,)
#: A curve has arrived when it is this close to the best validation accuracy of standard training.
CLOSE: Final = 0.01
UNTIL: Final = f"moved until within {CLOSE:g} of standard's best"
#: What lazy training may lose against standard training; with few rounds and narrow layers.
ALLOWED: Final = 0.01
ALLOWED_QUICK: Final = 0.03


COLUMNS: Final = (
    ACCURACY,
    Column("moved in all", "MB", lambda trained: trained.at_clients() / 1e6),
)


def run(setting: Setting) -> Outcome:
    """Train every algorithm on every graph."""
    datasets = at_hand(setting, setting.few(DATASETS))
    sweep = Sweep(setting, SEEDS)
    sweep.train(
        {
            (dataset, name): keys_for(setting, dataset, MODEL, **VARIANTS[name])
            for dataset, name in product(datasets, VARIANTS)
        }
    )
    return Outcome(
        title=f"RETEXO, figure 6: accuracy against bytes moved, {MODEL}, two clients",
        setting=described(
            setting,
            {**SMALL, "model": MODEL},
            sweep,
            reference="standard training of ours",
            volume="payload of exchanges, weights and updates; a vector counted at both ends",
            published=NOT_AT_HAND["fig6"],
        ),
        rows=[
            row
            for place in sweep.found
            for row in (
                *sweep.rows(COLUMNS, last="standard", places=[place]),
                *_arrivals(sweep, place),
            )
        ],
        pictures=tuple(partial(_draw, sweep, dataset) for dataset in datasets),
    )


def _arrivals(sweep: Sweep, place: Place) -> list[Row]:
    """Return the MB until a curve is close to standard training's best; none if one never is."""
    until = []
    for one, other in zip(sweep.found[place], sweep.found[place[0], "standard"], strict=True):
        best = max(point.accuracy for point in accuracy_curve(other))
        until.append(bytes_until(accuracy_curve(one), best - CLOSE))
    arrived = [value for value in until if value is not None]
    if len(arrived) < len(until):
        return []
    return [Row.of(", ".join((UNTIL, *place)), arrived, unit="MB")]


def checks_from(figures: Figures, *, quick: bool) -> list[Check]:
    """Return the lines that must hold."""
    allowed = ALLOWED_QUICK if quick else ALLOWED
    there = [name for name in DATASETS if f"test accuracy, {name}, lazy" in figures]
    lines = [check for name in there for check in _dataset_checks(figures, name, allowed)]
    return lines if quick else [*lines, *(_arrival_check(figures, name) for name in there)]


def _dataset_checks(figures: Figures, dataset: str, allowed: float) -> list[Check]:
    moved = {name: figures[f"moved in all, {dataset}, {name}"].ours for name in VARIANTS}
    scores = {name: figures[f"test accuracy, {dataset}, {name}"].ours for name in VARIANTS}
    return [
        Check(
            line=f"{dataset}: lazy training moves more than dropping edges and less than BNS(0.1) "
            f"and standard training ({moved['drop']:.1f} < {moved['lazy']:.1f} < "
            f"{moved['bns 0.1']:.1f} < {moved['standard']:.1f} MB)",
            holds=moved["drop"] < moved["lazy"] < moved["bns 0.1"] < moved["standard"],
        ),
        Check(
            line=f"{dataset}: lazy training is at most {allowed:g} less accurate than standard "
            f"training ({scores['lazy']:.4f}, {scores['standard']:.4f}), and more than dropping "
            f"edges ({scores['drop']:.4f})",
            holds=scores["lazy"] >= scores["standard"] - allowed
            and scores["lazy"] > scores["drop"],
        ),
    ]


def _arrival_check(figures: Figures, dataset: str) -> Check:
    lazy, standard = (figures.get(f"{UNTIL}, {dataset}, {name}") for name in ("lazy", "standard"))
    return Check(
        line=f"{dataset}: lazy training gets within {CLOSE:g} of standard training's best "
        "validation accuracy with fewer bytes",
        holds=lazy is not None and standard is not None and lazy.ours < standard.ours,
    )


def _draw(sweep: Sweep, dataset: str, axes: Axes) -> None:
    for number, variant in enumerate(VARIANTS):
        curve = accuracy_curve(sweep.found[dataset, variant][0])
        axes.plot(
            [point.megabytes for point in curve],
            [point.accuracy for point in curve],
            color=COLORS[number],
            linewidth=1.2,
            label=variant,
        )
    axes.set_xscale("log")
    axes.set_title(f"{dataset}, seed 0", fontsize=9)
    axes.set_xlabel("MB sent and received at clients")
    axes.set_ylabel("validation accuracy")
    axes.legend(fontsize=8, loc="lower right")
